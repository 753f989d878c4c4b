"""Something done to all jobs of a filter: counted first, then done in the background, with a
record of how far it is."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from headgate.errors import DeclarationError, HeadgateError, StoreBusy, StoreUnavailable
from headgate.jobs import JobFilter, JobRecord, State
from headgate.limits import check_name
from headgate.options import check_priority
from headgate.stores.glances import glancing
from headgate.stores.protocol import Store

log = logging.getLogger("headgate.web")

Verb = Literal["cancel", "retry", "priority", "queue"]
VERBS: tuple[Verb, ...] = ("cancel", "retry", "priority", "queue")

MEANT: dict[Verb, tuple[State, ...]] = {
    "cancel": ("ready", "scheduled", "running"),
    "retry": ("failed",),
    "priority": ("ready", "scheduled"),
    "queue": ("ready", "scheduled"),
}
"""The states that a filter means when it names none; others are left alone."""
ALLOWED: dict[Verb, frozenset[State]] = {
    "cancel": frozenset(("ready", "scheduled", "running")),
    "retry": frozenset(("failed", "cancelled", "succeeded")),
    "priority": frozenset(("ready", "scheduled")),
    "queue": frozenset(("ready", "scheduled")),
}

PAGE = 200
PREVIEWED = 600
PREVIEW_PAGES = 3
KEPT = 50
AT_ONCE = 5
"""Orders under way: each has a thread, which writes as fast as the store takes it."""
ERRORS = 20
PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done, to which jobs."""

    verb: Verb
    filter: JobFilter
    by: str
    reason: str = ""
    priority: int | None = None
    queue: str | None = None

    def states(self) -> list[State]:
        chosen = self.filter.states or frozenset(MEANT[self.verb])
        return [state for state in MEANT["cancel"] + MEANT["retry"] + ("cancelled", "succeeded")
                if state in chosen & ALLOWED[self.verb]]  # fmt: skip

    def check(self) -> None:
        if not self.states():
            raise DeclarationError(
                f"{self.verb} does nothing to jobs that are {', '.join(self.filter.states)}"
            )
        if self.verb == "priority":
            check_priority(self.priority)
        if self.verb == "queue":
            check_name(self.queue, "queue")

    def do(self, store: Store, id: str) -> JobRecord:
        if self.verb == "cancel":
            return store.cancel(id, by=self.by, reason=self.reason)
        if self.verb == "retry":
            return store.retry(id, by=self.by)
        return store.relocate(id, queue=self.queue, priority=self.priority, by=self.by)


@dataclass(slots=True)
class Bulk:
    """One order under way, or over."""

    id: int
    order: Order
    started_at: float
    found: int = 0
    done: int = 0
    refused: int = 0
    state: Literal["running", "done", "stopped", "failed"] = "running"
    error: str = ""
    errors: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(job, why) of the first that were refused."""
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Preview:
    count: int
    more: bool
    """There may be more: so many jobs were looked at, and no further."""
    some: tuple[JobRecord, ...]


class Bulks:
    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._bulks: OrderedDict[int, Bulk] = OrderedDict()
        self._threads: list[threading.Thread] = []

    def preview(self, order: Order) -> Preview:
        order.check()
        store, count, some = self._store(), 0, list[JobRecord]()
        pages, more = PREVIEW_PAGES, False
        for state in order.states():
            after: str | None = None
            while True:
                if not pages:
                    return Preview(count, True, tuple(some[:5]))
                pages -= 1
                chosen = replace(order.filter, states=frozenset((state,)))
                page = store.browse(chosen, PREVIEWED, after)
                count += len(page.jobs)
                some += page.jobs[:5]
                after = page.after
                if after is None:
                    break
        return Preview(count, more, tuple(some[:5]))

    def start(self, order: Order) -> Bulk:
        order.check()
        now = self._store().now()
        # What is created from now on is not meant.
        order = replace(order, filter=replace(order.filter, until=order.filter.until or now))
        with self._lock:
            over = [bulk.id for bulk in self._bulks.values() if bulk.state != "running"]
            if len(self._bulks) - len(over) >= AT_ONCE:
                raise StoreBusy(f"{AT_ONCE} orders are under way: wait until one is done")
            while len(self._bulks) >= KEPT:
                del self._bulks[over.pop(0)]
            bulk = Bulk(next(self._numbers), order, now)
            self._bulks[bulk.id] = bulk
            thread = threading.Thread(
                target=self._run, args=(bulk,), name="headgate-bulk", daemon=True
            )
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
        return bulk

    def get(self, id: int) -> Bulk | None:
        return self._bulks.get(id)

    def close(self) -> None:
        with self._lock:
            threads = list(self._threads)
            for bulk in self._bulks.values():
                bulk.stop.set()
        for thread in threads:
            thread.join(5.0)

    def _run(self, bulk: Bulk) -> None:
        try:
            store = self._store()
            for state in bulk.order.states():
                self._each(store, bulk, replace(bulk.order.filter, states=frozenset((state,))))
            bulk.state = "stopped" if bulk.stop.is_set() else "done"
        except HeadgateError as error:
            bulk.state, bulk.error = "failed", str(error)
        except BaseException as error:
            bulk.state, bulk.error = "failed", f"{type(error).__name__}: {error}"
            log.exception("bulk order %s", bulk.id)
            raise

    def _each(self, store: Store, bulk: Bulk, filter: JobFilter) -> None:
        after: str | None = None
        while not bulk.stop.is_set():
            # The page is read before its jobs are changed, and the next goes on from its last
            # place: what leaves the list, or comes back into it, moves no other job's place.
            with glancing(0.0, texts=False):
                page = store.browse(filter, PAGE, after)
            bulk.found += len(page.jobs)
            for job in page.jobs:
                if bulk.stop.is_set():
                    return
                self._one(store, bulk, job.id)
            after = page.after
            if after is None:
                return

    def _one(self, store: Store, bulk: Bulk, id: str) -> None:
        for left in reversed(range(PATIENCE)):
            try:
                bulk.order.do(store, id)
            except (StoreBusy, StoreUnavailable):
                if not left or bulk.stop.wait(0.5):
                    raise
            except HeadgateError as error:
                bulk.refused += 1
                if len(bulk.errors) < ERRORS:
                    bulk.errors.append((id, str(error)))
                return
            else:
                bulk.done += 1
                return
