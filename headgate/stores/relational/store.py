"""The operations that are the same on every relational database: each is one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    NewJob,
    Retention,
    Routing,
    State,
    Unrouted,
)
from headgate.limits import check_group
from headgate.stores.protocol import (
    Costs,
    Due,
    Ended,
    EndRecord,
    EventRecord,
    GroupPage,
    JobPage,
    LanePage,
    LaneWalk,
    LimitChange,
    LimitLoad,
    LimitPage,
    LimitRecord,
    Output,
    OutputRecord,
    QueueRecord,
    ScheduleRecord,
    Schedules,
    SlotRecord,
    TaskSpec,
    Ticking,
    TickRecord,
    Trouble,
    Why,
    Words,
    WorkerRecord,
)
from headgate.stores.relational import (
    cataloguing,
    events,
    holding,
    inspecting,
    looking,
    oddities,
    outputs,
    overriding,
    overruns,
    queueing,
    reasons,
    registry,
    relocating,
    routing,
    scheduling,
    searching,
    ticking,
    values,
    watching,
)
from headgate.stores.relational.ticking import Submit
from headgate.stores.relational.transaction import Row, Transaction

T = TypeVar("T")

SUBMIT_CHUNK = 1000


class RelationalStore(ABC):
    """A store adds how a transaction begins, and what its engine does in its own way."""

    @abstractmethod
    def _write(self) -> AbstractContextManager[Transaction]: ...

    @abstractmethod
    def _read(self) -> AbstractContextManager[Transaction]: ...

    def _look(self) -> AbstractContextManager[Transaction]:
        """To read a few of many: by their keys, never through a whole table."""
        return self._read()

    @abstractmethod
    def _alive(self, worker: Row) -> bool:
        """Is this worker still there?"""

    # --- declare ---------------------------------------------------------------------------

    def task(self, name: str) -> TaskSpec | None:
        with self._read() as tx:
            return cataloguing.find(tx, name)

    def tasks(self) -> list[TaskSpec]:
        with self._read() as tx:
            return cataloguing.every(tx)

    def values(self, groups: Iterable[str]) -> dict[str, LimitRecord]:
        with self._read() as tx:
            return values.limit_records(tx, groups)

    # --- submit ----------------------------------------------------------------------------

    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]:
        with self._read() as tx:
            return routing.unrouted(tx, tasks, limit)

    def route(self, routings: Sequence[Routing]) -> int:
        with self._write() as tx:
            return routing.route(tx, routings)

    # --- work --------------------------------------------------------------------------------

    def mark(self, worker: str, state: str) -> None:
        with self._write() as tx:
            registry.mark(tx, worker, state)

    def extend(self, token: int, seconds: float) -> bool:
        with self._write() as tx:
            return holding.extend(tx, token, seconds)

    def release_groups(self, token: int) -> bool:
        with self._write() as tx:
            return holding.release(tx, token)

    def overdue(self, token: int, reason: str) -> None:
        with self._write() as tx:
            holding.overdue(tx, token, reason)

    def over_ran(self, job: str, token: int, worker: str, ago: float = 0.0) -> bool:
        ended = overruns.since(ago)
        with self._write() as tx:
            return overruns.over_ran(tx, job, token, worker, ended)

    def put_output(self, told: Sequence[Output]) -> frozenset[int]:
        with self._write() as tx:
            return frozenset(outputs.put(tx, told))

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        with self._write() as tx:
            scheduling.prune(tx, retention, limit)
            return inspecting.prune(tx, retention, limit)

    # --- slots by hand ------------------------------------------------------------------------

    def drop_slot(self, group: str, slot: int, token: int | None, by: str = "") -> bool:
        with self._write() as tx:
            return holding.drop(tx, group, slot, token, by)

    def extend_slot(self, group: str, slot: int, token: int, seconds: float) -> float | None:
        with self._write() as tx:
            return holding.extend_slot(tx, group, slot, token, seconds)

    def expire_slots(self, group: str) -> int:
        with self._write() as tx:
            return holding.expire(tx, group)

    # --- operate --------------------------------------------------------------------------------

    @abstractmethod
    def change_limits(self, changes: Sequence[LimitChange]) -> list[LimitRecord]:
        """Nobody grants while limits change."""

    def change_limit(self, change: LimitChange) -> LimitRecord:
        return self.change_limits([change])[0]

    def words(self) -> list[Words]:
        with self._read() as tx:
            return overriding.every(tx)

    def limits(self) -> list[LimitRecord]:
        with self._read() as tx:
            return looking.limits(tx)

    def group(self, group: str) -> tuple[LimitRecord, list[SlotRecord]]:
        group = check_group(group)
        with self._look() as tx:
            return values.limit_records(tx, [group])[group], values.slot_records(tx, group)

    def groups(self) -> list[str]:
        with self._read() as tx:
            return looking.groups(tx)

    def queues(self) -> list[QueueRecord]:
        with self._look() as tx:
            return looking.queues(tx)

    def pause_queue(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None:
        with self._write() as tx:
            queueing.pause(tx, queue, paused, by, reason)

    def workers(self) -> list[WorkerRecord]:
        with self._read() as tx:
            return registry.records(tx, self._alive)

    def events(
        self, kind: str | None = None, limit: int = 100, subject: str | None = None
    ) -> list[EventRecord]:
        with self._read() as tx:
            return events.last(tx, kind, limit, subject)

    # --- watch ------------------------------------------------------------------------------------

    def loads(self) -> list[LimitLoad]:
        with self._read() as tx:
            return watching.loads(tx)

    def limit_page(
        self, limit: int = 100, after: str | None = None, *, said: bool = False
    ) -> LimitPage:
        with self._look() as tx:
            return looking.limit_page(tx, limit, after, said=said)

    def lanes(self, walk: LaneWalk) -> LanePage:
        with self._read() as tx:
            return watching.lanes(tx, walk)

    def held_groups(self, start: str, after: str | None = None, limit: int = 100) -> GroupPage:
        with self._read() as tx:
            return watching.held_groups(tx, start, after, limit)

    def ended(self, edges: Sequence[float], bound: int = 1000) -> list[Ended]:
        with self._read() as tx:
            return watching.ended(tx, edges, bound)

    def ends(self, since: float = 0.0, limit: int = 1000) -> list[EndRecord]:
        with self._read() as tx:
            return watching.ends(tx, since, limit)

    def browse(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        with self._look() as tx:
            return searching.browse(tx, filter, limit, after)

    def listing(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        with self._look() as tx:
            return searching.listing(tx, filter, limit, after)

    def past_events(
        self, kind: str = "", subject: str = "", before: int | None = None, limit: int = 100
    ) -> list[EventRecord]:
        with self._read() as tx:
            return watching.events(tx, kind, subject, before, limit)

    # --- schedules --------------------------------------------------------------------------------

    @abstractmethod
    def _ticked(self, work: Callable[[Transaction, Submit[Any]], T]) -> T:
        """Do this in one transaction, with what stores jobs in it, under their caps."""

    def declare_schedules(self, schedules: Schedules) -> None:
        with self._write() as tx:
            scheduling.declare(tx, schedules)

    def due_schedules(self, limit: int = 100, without: frozenset[str] = frozenset()) -> Due:
        with self._read() as tx:
            return ticking.due(tx, limit, without)

    def tick(self, tickings: Sequence[Ticking]) -> list[TickRecord]:
        return self._ticked(lambda tx, submit: ticking.tick(tx, tickings, submit))

    def run_now(self, name: str, job: NewJob, by: str = "") -> TickRecord:
        return self._ticked(lambda tx, submit: ticking.run_now(tx, name, job, by, submit))

    def schedules(self) -> list[ScheduleRecord]:
        with self._read() as tx:
            return scheduling.every(tx)

    def schedule(self, name: str) -> ScheduleRecord | None:
        with self._read() as tx:
            return scheduling.find(tx, name)

    def ticks(self, name: str, limit: int = 20) -> list[TickRecord]:
        with self._read() as tx:
            return ticking.last(tx, name, limit)

    def pause_schedule(self, name: str, paused: bool, by: str = "", reason: str = "") -> None:
        with self._write() as tx:
            scheduling.pause(tx, name, paused, by, reason)

    def job(self, id: str) -> JobRecord | None:
        with self._look() as tx:
            try:
                return inspecting.to_record(inspecting.job_row(tx, id))
            except JobNotFound:
                return None

    def attempts(self, id: str) -> list[AttemptRecord]:
        with self._look() as tx:
            return inspecting.attempts(tx, id)

    def output(
        self, id: str, after: tuple[int, int] = (0, -1), limit: int = 100
    ) -> list[OutputRecord]:
        with self._read() as tx:
            return outputs.after(tx, inspecting.job_row(tx, id)["n"], after, limit)

    def last_output(
        self, id: str, before: tuple[int, int] | None = None, limit: int = 100
    ) -> list[OutputRecord]:
        with self._read() as tx:
            return outputs.before(tx, inspecting.job_row(tx, id)["n"], before, limit)

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        with self._read() as tx:
            return inspecting.find(tx, filter, limit, after)

    def latest(self, task: str, state: State, look: int = 10_000) -> JobRecord | None:
        with self._read() as tx:
            return inspecting.latest(tx, task, state, look)

    def count(self, filter: JobFilter, limit: int = 10_000) -> int:
        with self._read() as tx:
            return inspecting.count(tx, filter, limit)

    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord:
        with self._write() as tx:
            return inspecting.cancel(tx, id, by, reason)

    def retry(self, id: str, by: str = "") -> JobRecord:
        with self._write() as tx:
            return inspecting.retry(tx, id, by)

    def relocate(
        self, id: str, *, queue: str | None = None, priority: int | None = None, by: str = ""
    ) -> JobRecord:
        with self._write() as tx:
            return relocating.relocate(tx, id, queue, priority, by)

    def why(self, id: str) -> Why:
        with self._look() as tx:
            return reasons.why(tx, lambda tx: registry.records(tx, self._alive), id)

    def oddities(self, older: float = 60.0) -> list[Trouble]:
        with self._read() as tx:
            return oddities.find(tx, registry.records(tx, self._alive), older)

    def costs(self) -> Costs | None:
        return None

    def remaining(
        self,
        tasks: frozenset[str],
        queues: tuple[str, ...] | None,
        closed: frozenset[str] = frozenset(),
    ) -> int:
        with self._read() as tx:
            return looking.remaining(tx, tasks, queues, closed)


def check_chunk(jobs: Sequence[NewJob]) -> None:
    if len(jobs) > SUBMIT_CHUNK:
        raise StoreError(
            f"at most {SUBMIT_CHUNK} jobs go into one submit, so that nobody waits long for it;"
            f" got {len(jobs)}"
        )
