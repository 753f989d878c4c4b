"""What the store looks like, every few seconds, and how it looked in the last hour.

However many look, the store is asked once. Every read is bounded, and when nobody has looked for
some minutes nothing is read at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.errors import HeadgateError
from headgate.stores.glances import glancing
from headgate.stores.protocol import (
    Ended,
    EndRecord,
    LimitLoad,
    QueueRecord,
    Store,
    WorkerRecord,
)

log = logging.getLogger("headgate.web")

EVERY = 5.0
FRESH = 1.0
"""Seconds for which a sample does for whoever asks."""
IDLE = 600.0
MINUTES = 60
KEPT = 720
GROUPS = 300
"""So many groups have a history."""
ENDED_BOUND = 20_000
PAST_BOUND = 1000
ENDS_BOUND = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    queues: tuple[QueueRecord, ...]
    loads: tuple[LimitLoad, ...]
    workers: tuple[WorkerRecord, ...]
    events: int
    """The number of the last event."""

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.queues)

    @property
    def waiting_bounded(self) -> bool:
        return any(queue.bounded for queue in self.queues)

    @property
    def running(self) -> int:
        return sum(queue.running for queue in self.queues)

    @property
    def scheduled(self) -> int:
        return sum(queue.scheduled for queue in self.queues)

    def load(self, group: str) -> LimitLoad | None:
        return next((load for load in self.loads if load.limit.group == group), None)


@dataclass(slots=True)
class Minute:
    """Jobs that ended in one minute."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    bounded: bool = False

    def add(self, ended: Ended) -> None:
        self.succeeded += ended.succeeded
        self.failed += ended.failed
        self.cancelled += ended.cancelled
        self.bounded = self.bounded or ended.bounded


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a group."""

    at: float
    held: int
    limit: int | None
    waiting: int


@dataclass(frozen=True, slots=True)
class Total:
    at: float
    waiting: int
    running: int


@dataclass(slots=True)
class History:
    minutes: OrderedDict[int, Minute] = field(default_factory=OrderedDict[int, Minute])
    totals: deque[Total] = field(default_factory=lambda: deque[Total](maxlen=KEPT))
    groups: dict[str, deque[Point]] = field(default_factory=dict[str, deque[Point]])

    def last_minutes(self, now: float) -> list[tuple[float, Minute]]:
        """The last hour, without gaps."""
        last = int(now // 60)
        return [
            (minute * 60.0, self.minutes.get(minute, Minute()))
            for minute in range(last - MINUTES + 1, last + 1)
        ]


class Sampler:
    """`latest()` is never older than a second or so; `history` is filled from a thread."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._began = 0.0
        self._taken = 0.0
        self._changed = 0.0
        self._asked = 0.0
        self._counted: float | None = None
        """Up to when ends are counted, by the store's clock."""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.history = History()
        self.watchers: list[Callable[[Sequence[EndRecord]], None]] = []
        """Told of the jobs that ended, some at a time."""

    def latest(self) -> Sample:
        self._asked = time.monotonic()
        self._start()
        with self._lock:
            # A look that was under way when something was changed may not have seen it.
            stale = self._sample is None or self._began <= self._changed
            if stale or time.monotonic() - self._taken > FRESH:
                self._take()
            assert self._sample is not None, "just taken"
            return self._sample

    def forget(self) -> None:
        """Something was changed: who looks next sees it."""
        self._changed = time.monotonic()

    def close(self) -> None:
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(5.0)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="headgate-sampler", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            with self._lock:
                if time.monotonic() - self._asked > IDLE:
                    self._thread = None  # whoever looks next starts another
                    return
                try:
                    if time.monotonic() - self._taken >= EVERY - 0.5:
                        self._take()
                except HeadgateError as error:
                    # Pages that are asked for say so themselves; history has a gap.
                    log.warning("the dashboard could not look at the store: %s", error)

    def _take(self) -> None:
        with glancing(FRESH):
            self._look(self._store())

    def _look(self, store: Store) -> None:
        began = time.monotonic()
        events = store.events(limit=1)
        sample = Sample(
            store.now(),
            tuple(store.queues()),
            tuple(store.loads()),
            tuple(store.workers()),
            events[0].seq if events else 0,
        )
        self._count(store, sample.at)
        self._note(sample)
        self._sample, self._began, self._taken = sample, began, time.monotonic()

    def _count(self, store: Store, now: float) -> None:
        """Ends since the last count; after a gap (or at the start) the last hour, coarsely."""
        since = self._counted
        minutes = self.history.minutes
        if since is None or now - since > 60.0 or now < since:
            first = int(now // 60) - MINUTES + 1
            edges = [*((first + n) * 60.0 for n in range(MINUTES)), now]
            for n, ended in enumerate(store.ended(edges, PAST_BOUND)):
                minutes[first + n] = Minute()
                minutes[first + n].add(ended)
        else:
            (ended,) = store.ended([since, now], ENDED_BOUND)
            minutes.setdefault(int(now // 60), Minute()).add(ended)
        while len(minutes) > MINUTES + 1:
            minutes.pop(min(minutes))
        if self.watchers and since is not None:
            ends = store.ends(since, ENDS_BOUND)
            for watcher in self.watchers:
                watcher(ends)
        self._counted = now

    def _note(self, sample: Sample) -> None:
        history = self.history
        _add(history.totals, Total(sample.at, sample.waiting, sample.running))
        seen: set[str] = set()
        for load in sample.loads[:GROUPS]:
            group = load.limit.group
            seen.add(group)
            points = history.groups.setdefault(group, deque[Point](maxlen=KEPT))
            value = None if load.limit.keyed else load.limit.value
            _add(points, Point(sample.at, load.held, value, load.waiting))
        for gone in set(history.groups) - seen:
            del history.groups[gone]


_P = TypeVar("_P", Point, Total)


def _add(points: deque[_P], point: _P) -> None:
    """One every few seconds, so that all of them are an hour; the last is always the latest."""
    if len(points) > 1 and points[-1].at - points[-2].at < EVERY:
        points[-1] = point
    else:
        points.append(point)
