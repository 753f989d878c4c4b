"""The store as it is now, for `/metrics`: from a few bounded reads, however many jobs and keys
there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.errors import HeadgateError
from headgate.limits import split_group
from headgate.stores.glances import glancing
from headgate.stores.protocol import (
    EndRecord,
    LimitLoad,
    QueueRecord,
    ScheduleRecord,
    Store,
    WorkerRecord,
)
from headgate.telemetry import names
from headgate.telemetry.counts import MOST, Counts, Labels, short
from headgate.telemetry.meter import Meter

FRESH = 5.0
"""Seconds for which one look does for whoever asks."""
AGE = 1.0
"""Seconds that what it sees may be old."""
KEYS = 1000
"""Keys of all limits whose keys are told apart."""
EVENTS = 500
ALARMING = ("worker_lost", "worker_stalled", "attempt_lost", "attempt_overran", "attempt_overdue",
            "cap_refused")  # fmt: skip

Value = tuple[names.Family, Labels, float]


class Sample(Protocol):
    """What somebody has read already."""

    @property
    def at(self) -> float: ...
    @property
    def queues(self) -> Sequence[QueueRecord]: ...
    @property
    def loads(self) -> Sequence[LimitLoad]: ...
    @property
    def workers(self) -> Sequence[WorkerRecord]: ...


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    queues: Sequence[QueueRecord]
    loads: Sequence[LimitLoad]
    workers: Sequence[WorkerRecord]


def values(
    sample: Sample, schedules: Sequence[ScheduleRecord], held: Iterable[tuple[str, int]] = ()
) -> list[Value]:
    """`held`: (group, units) of keys that are told apart. Each series is there once, and the
    number of them is bounded."""
    found: dict[tuple[str, Labels], Value] = {}

    def put(family: names.Family, labels: Labels, value: float) -> None:
        told = tuple(short(label) for label in labels)
        found[family.name, told] = (family, told, value)

    for load in sample.loads[:MOST]:
        group = load.limit.group
        if split_group(group)[1] is not None:
            continue  # a key of which an operator said something: counted with its limit
        put(names.ACTIVE, (group,), load.held)
        put(names.WAITING, (group,), load.waiting)
        put(names.PAUSED, (group,), int(load.limit.paused))
        put(names.KEYED, (group,), int(load.limit.keyed))
        waited = 0.0 if load.oldest is None else max(0.0, sample.at - load.oldest)
        put(names.OLDEST_WAIT, (group,), waited)
        if load.limit.value is not None:
            put(names.LIMIT, (group,), load.limit.value)
    for group, units in held:
        put(names.ACTIVE, (group,), units)
    for queue in sample.queues[:MOST]:
        for state, count in (
            ("ready", queue.waiting),
            ("running", queue.running),
            ("scheduled", queue.scheduled),
        ):
            put(names.QUEUE_JOBS, (queue.name, state), count)
        put(names.QUEUE_PAUSED, (queue.name,), int(queue.paused))
        oldest = queue.oldest_ready_at
        waited = 0.0 if oldest is None else max(0.0, sample.at - oldest)
        put(names.QUEUE_OLDEST, (queue.name,), waited)
    states: dict[str, int] = dict.fromkeys(("alive", "stalled", "stopping", "dead"), 0)
    for worker in sample.workers:
        states[worker.state] = states.get(worker.state, 0) + 1
    for state, count in states.items():
        put(names.WORKERS, (state,), count)
    room = sum(worker.concurrency for worker in sample.workers if worker.state == "alive")
    put(names.ROOM, (), room)
    for one in schedules[:MOST]:
        if one.planned and one.next_at is not None and not one.paused:
            put(names.LAG, (one.spec.name,), max(0.0, sample.at - one.next_at))
    return list(found.values())


class Past:
    """What is seen of the past of a store: events and, for who counts nothing itself, ends. What
    was before it began to look is not counted."""

    def __init__(self, counts: Counts, keyed: frozenset[str] = frozenset()) -> None:
        self._counts = counts
        self._meter = Meter()
        self._meter.keyed = keyed
        self._meter.sinks.append(counts)
        self._last: int | None = None
        self._counted: dict[int, int] = {}
        """Of events that are written on for a minute: how much of each is counted."""
        for kind in ALARMING:
            # A counter that begins with its first event would show no increase by that.
            counts.add(names.EVENTS, (kind,), 0)

    def note_events(self, store: Store, *, rejected: bool) -> None:
        """`rejected`: what caps refused counts as an acquisition too; those who were refused count
        it otherwise."""
        events = store.past_events(limit=EVENTS)
        last, self._last = self._last, events[0].seq if events else (self._last or 0)
        before, self._counted = self._counted, {}
        for event in events:
            if event.kind in ("cap_refused", "cap_skipped"):
                # One event a minute for each cap, with their number.
                total = self._counted[event.seq] = int(event.data.get("count", 1))
                count = total - before.get(event.seq, 0)
            else:
                count = int(last is None or event.seq > last)
            if last is not None and count > 0:
                self._counts.add(names.EVENTS, (event.kind,), count)
                if rejected and event.kind == "cap_refused":
                    label = self._meter.label(event.subject)
                    self._counts.add(names.ACQUISITION, (label, "rejected"), count)

    def note_ends(self, ends: Sequence[EndRecord]) -> None:
        for end in ends:
            self._meter.know((end.task,))
            self._counts.add(names.ENDED, (end.task, end.state))
            if end.started_at is None:
                continue
            self._counts.observe(names.DURATION, (end.task,), max(0.0, end.at - end.started_at))
            waited = max(0.0, end.started_at - end.due_at)
            self._counts.observe(names.QUEUE_WAIT, (end.queue,), waited)
            for group, _ in end.groups:
                label = self._meter.label(group)
                self._counts.add(names.ACQUISITION, (label, "acquired"))
                self._counts.observe(names.WAIT, (label,), waited)


def held_keys(store: Store, keyed: Iterable[str]) -> list[tuple[str, int]]:
    """The keys that are told apart and that somebody holds."""
    found: list[tuple[str, int]] = []
    for name in sorted(keyed):
        page = store.held_groups(f"{name}/", limit=max(0, KEYS - len(found)))
        found += [(load.group, load.held) for load in page.groups]
        if len(found) >= KEYS:
            break
    return found


class Looker:
    """Looks at a store when it is asked to, at most every few seconds, whoever asks."""

    def __init__(
        self, store: Callable[[], Store], counts: Counts, keyed: frozenset[str] = frozenset()
    ) -> None:
        self._store = store
        self._keyed = keyed
        self._past = Past(counts, keyed)
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._seen: list[Value] = []

    def values(self) -> list[Value]:
        with self._lock:
            if time.monotonic() - self._looked >= FRESH:
                try:
                    self._seen = [*self._look(), (names.UP, (), 1.0)]
                except HeadgateError:
                    # What was seen before would look like now: only this is true now.
                    self._seen = [(names.UP, (), 0.0)]
                self._looked = time.monotonic()
            return self._seen

    def _look(self) -> list[Value]:
        # Where each question costs a request, one does for all of them.
        with glancing(AGE):
            return self._ask(self._store())

    def _ask(self, store: Store) -> list[Value]:
        self._past.note_events(store, rejected=False)
        look = Look(store.now(), store.queues(), store.loads(), store.workers())
        return values(look, store.schedules(), held_keys(store, self._keyed))
