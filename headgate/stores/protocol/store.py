"""Every operation of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.jobs import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    NewJob,
    Retention,
    Routing,
    State,
    Submitted,
    Unrouted,
)
from headgate.stores.protocol.bells import Bell
from headgate.stores.protocol.catalogue import Publication, TaskSpec
from headgate.stores.protocol.claims import AHEAD, Exchange, Exchanged
from headgate.stores.protocol.costs import Costs
from headgate.stores.protocol.limits import LimitChange, LimitRecord, SlotRecord, SlotRequest, Words
from headgate.stores.protocol.looking import EventRecord, QueueRecord, Sweep, Trouble, Why
from headgate.stores.protocol.outputs import Output, OutputRecord
from headgate.stores.protocol.schedules import Due, ScheduleRecord, Schedules, Ticking, TickRecord
from headgate.stores.protocol.watching import (
    Ended,
    EndRecord,
    GroupPage,
    JobPage,
    LanePage,
    LaneWalk,
    LimitLoad,
    LimitPage,
)
from headgate.stores.protocol.workers import NewWorker, Registration, WorkerRecord


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What differs between stores, asked for by name, never by type."""

    leases: bool
    """Workers must renew a lease (False: the kernel tells when a worker is gone)."""
    local: bool
    """All processes that share this store run on one machine."""
    callers: bool = False
    """A submit may go through a connection of the caller's, into its transaction."""
    compacts: bool = False
    """Workers must call `compact` now and then."""
    ahead: float = AHEAD
    """Seconds of work that a worker may reserve behind each slot it holds: more where a round trip
    takes longer."""


class Store(Protocol):
    url: str
    capabilities: Capabilities

    def close(self) -> None: ...
    def now(self) -> float: ...

    # declare
    def publish(self, publication: Publication) -> None: ...
    def task(self, name: str) -> TaskSpec | None: ...
    def tasks(self) -> list[TaskSpec]: ...
    def values(self, groups: Iterable[str]) -> dict[str, LimitRecord]:
        """The value in force of each group, `source="none"` where nothing declares one."""
        ...

    # submit
    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]: ...
    def submit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Submit through the caller's connection: the jobs are there when its transaction
        commits. Where `capabilities.callers` is false, `WrongConnection`."""
        ...

    async def asubmit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]: ...
    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]: ...
    def route(self, routings: Sequence[Routing]) -> int: ...

    # work
    def register(self, worker: NewWorker) -> Registration: ...
    def renew(self, worker: str) -> bool: ...
    def mark(self, worker: str, state: str) -> None: ...
    def unregister(self, worker: str) -> None: ...
    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        """Its attempts are lost. `started`: the tokens reserved ahead of which it is known that
        they had started; the other reserved ones go back unspent. None: nobody knows, so all
        of them are lost attempts."""
        ...

    def exchange(self, exchange: Exchange) -> Exchanged: ...
    def extend(self, token: int, seconds: float) -> bool: ...
    def release_groups(self, token: int) -> bool: ...
    def retake_groups(self, token: int, waited: float = 0.0) -> bool: ...
    def overdue(self, token: int, reason: str) -> None: ...
    def over_ran(self, job: str, token: int, worker: str, ago: float = 0.0) -> bool:
        """The code of this attempt went on after the attempt was lost with its worker; it ended
        `ago` seconds before now (0: it still ran when its worker heard of the loss). Recorded
        once for each attempt; False: it is already, or the code had ended before the loss."""
        ...

    def put_output(self, told: Sequence[Output]) -> frozenset[int]:
        """Keep what running attempts wrote; the tokens of those that are no longer running,
        for which nothing is kept."""
        ...

    def sweep(self) -> Sweep: ...
    def prune(self, retention: Retention, limit: int = 1000) -> int: ...
    def compact(self) -> None:
        """Keep what claims read small, where the store does not do so by itself. To be called
        several times a second: it knows when there may be something to do."""
        ...

    # slots by hand
    def take_slot(self, request: SlotRequest) -> SlotRecord | None: ...
    def drop_slot(self, group: str, slot: int, token: int | None, by: str = "") -> bool:
        """Fenced by `token`; None releases whoever holds it (the force of operator `by`). What is
        released by somebody is recorded."""
        ...

    def extend_slot(self, group: str, slot: int, token: int, seconds: float) -> float | None:
        """Adds to the time that is left; the new end, or None when the slot is held no more."""
        ...

    def expire_slots(self, group: str) -> int: ...

    # operate
    def change_limit(self, change: LimitChange) -> LimitRecord: ...
    def change_limits(self, changes: Sequence[LimitChange]) -> list[LimitRecord]:
        """All of these, or none. A change that changes nothing is not recorded."""
        ...

    def words(self) -> list[Words]:
        """All that operators said and that is in force, by group."""
        ...

    def limits(self) -> list[LimitRecord]: ...
    def group(self, group: str) -> tuple[LimitRecord, list[SlotRecord]]: ...
    def groups(self) -> list[str]: ...
    def queues(self) -> list[QueueRecord]: ...
    def pause_queue(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None: ...
    def workers(self) -> list[WorkerRecord]: ...
    def events(
        self, kind: str | None = None, limit: int = 100, subject: str | None = None
    ) -> list[EventRecord]:
        """The latest first."""
        ...

    # watch: each of these is bounded, however many jobs and keys there are
    def loads(self) -> list[LimitLoad]:
        """Declared limits and groups that operators spoke of, with what is held and waits."""
        ...

    def limit_page(
        self, limit: int = 100, after: str | None = None, *, said: bool = False
    ) -> LimitPage:
        """All declared limits, and so many of the other groups with something of their own, from
        this one on. `said`: all of which somebody said something, and not what is merely held."""
        ...

    def lanes(self, walk: LaneWalk) -> LanePage: ...
    def held_groups(self, start: str, after: str | None = None, limit: int = 100) -> GroupPage:
        """Groups whose name begins so and that somebody holds, in the order of their names."""
        ...

    def ended(self, edges: Sequence[float], bound: int = 1000) -> list[Ended]:
        """How many jobs ended from each of these moments to the next."""
        ...

    def ends(self, since: float = 0.0, limit: int = 1000) -> list[EndRecord]:
        """The last jobs that succeeded or failed, the latest first."""
        ...

    def browse(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        """As `find`, but a page looks at some thousand jobs and no further. Jobs of one state are
        in the order in which they came into it, the latest first."""
        ...

    def listing(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        """As `browse`, but the newest first, where no more jobs are in these states than a page
        looks at; else state after state. `after` may be the id of a job, and a page goes on there
        unless it goes by state."""
        ...

    def past_events(
        self, kind: str = "", subject: str = "", before: int | None = None, limit: int = 100
    ) -> list[EventRecord]:
        """As `events`, from a place on, among some thousands and no further."""
        ...

    # schedules
    def declare_schedules(self, schedules: Schedules) -> None: ...
    def due_schedules(self, limit: int = 100, without: frozenset[str] = frozenset()) -> Due: ...
    def tick(self, tickings: Sequence[Ticking]) -> list[TickRecord]:
        """Record ticks together with the jobs that they become. What another process has ticked
        or is ticking, and what was changed or paused since, is passed over."""
        ...

    def run_now(self, name: str, job: NewJob, by: str = "") -> TickRecord:
        """A run beside those of the clock, or merged into the one that waits. It is a tick at
        this moment; which one is due next does not change."""
        ...

    def schedules(self) -> list[ScheduleRecord]: ...
    def schedule(self, name: str) -> ScheduleRecord | None: ...
    def ticks(self, name: str, limit: int = 20) -> list[TickRecord]:
        """The latest first."""
        ...

    def pause_schedule(self, name: str, paused: bool, by: str = "", reason: str = "") -> None:
        """Ticks of the time for which it is paused are not missed: they never were."""
        ...

    def job(self, id: str) -> JobRecord | None: ...
    def attempts(self, id: str) -> list[AttemptRecord]: ...
    def output(
        self, id: str, after: tuple[int, int] = (0, -1), limit: int = 100
    ) -> list[OutputRecord]:
        """What the attempts of a job wrote, in order, from the first or `after` a place."""
        ...

    def last_output(
        self, id: str, before: tuple[int, int] | None = None, limit: int = 100
    ) -> list[OutputRecord]:
        """The last pieces of it, or the last `before` a place; in the order of writing too."""
        ...

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        """Newest first; `after` is the id of the last job of the page before. It reads what it
        must to find them, as `count` does: where there may be many jobs, see `listing`."""
        ...

    def latest(self, task: str, state: State, look: int = 10_000) -> JobRecord | None:
        """The last job of this task that ended so, if it is among the last `look` of all that
        did: bounded, however many are kept."""
        ...

    def count(self, filter: JobFilter, limit: int = 10_000) -> int: ...
    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord: ...
    def retry(self, id: str, by: str = "") -> JobRecord: ...
    def relocate(
        self, id: str, *, queue: str | None = None, priority: int | None = None, by: str = ""
    ) -> JobRecord:
        """Put a job that waits into another queue, or give it another priority."""
        ...

    def why(self, id: str) -> Why: ...
    def remaining(
        self,
        tasks: frozenset[str],
        queues: tuple[str, ...] | None,
        closed: frozenset[str] = frozenset(),
    ) -> int:
        """Jobs that a worker of these could still run: ready, running, or due for a retry,
        with nothing paused or at 0 (for `--burst`), and not in a queue that is `closed` to
        it. Counted up to a bound."""
        ...

    def doctor(self, repair: bool = False) -> list[Trouble]: ...
    def oddities(self, older: float = 60.0) -> list[Trouble]:
        """What looks wrong though the tables agree: expired leases, overdue attempts, jobs that
        have waited for more than `older` seconds and could start or that nobody would start,
        a fleet that disagrees about a limit, what is orphaned."""
        ...

    def costs(self) -> Costs | None:
        """What its requests cost, where each is paid for; None elsewhere."""
        ...

    # wake-ups
    def bell(self, what: str) -> Bell:
        """`work`: something may have become claimable. `done`: a job ended. `room`: a group
        may have room for who waits for a slot by hand. `output`: a command wrote something."""
        ...

    def ring(self, what: str) -> None: ...
