"""What every store can do, as operations of the domain, each with a parameter object.

The protocol is synchronous and thread-safe: any thread may call any operation. Faces that
are asynchronous run it in threads. Each operation is one transaction: it happens whole, or
raises a `StoreError` and changes nothing.

`tests/conformance` is run against every store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headgate.claim import ClaimState
from headgate.jobs import (
    AttemptRecord,
    Claimed,
    Finish,
    JobFilter,
    JobRecord,
    NewJob,
    Progress,
    Refusal,
    Retention,
    Routing,
    State,
    Submitted,
    Unrouted,
)
from headgate.rates import Pace


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


# --- the catalogue --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitUse:
    """How a task uses a limit. `key`: an argument's name, `callable=True`, or neither."""

    name: str
    key: str | None = None
    callable: bool = False
    units: int = 1


@dataclass(frozen=True, slots=True)
class CapSpec:
    """A cap of a task. `key`: an argument's name, `callable=True`, `arguments=True` (all of
    them together), or none of these. `when_full` is `block` too: who submits waits."""

    name: str
    max_total: int | None = None
    max_waiting: int | None = None
    unique_for: float | None = None
    key: str | None = None
    callable: bool = False
    arguments: bool = False
    when_full: str = "reject"
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task as the catalogue tells it to those who submit by name."""

    name: str
    aliases: tuple[str, ...] = ()
    queue: str = "default"
    priority: int = 0
    expires: float | None = None
    max_lost: int = 3
    limits: tuple[LimitUse, ...] = ()
    one_of: tuple[tuple[LimitUse, ...], ...] = ()
    fair_by: str | None = None
    fair_callable: bool = False
    payload: bool = False
    caps: tuple[CapSpec, ...] = ()
    on_aborted: str | None = None
    """The task that is told of a job of this one that was lost, cancelled or expired: a job
    of it is stored together with that end."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What a program declares when it starts to work."""

    declarer: str
    """Who declares: the worker's name (an earlier declaration by it is replaced)."""
    release: str = ""
    tasks: tuple[TaskSpec, ...] = ()
    code: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Limit values declared in code, by name."""
    file: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Limit values declared in the configuration file, by name."""
    code_rates: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    """Of those declared in code, what makes some of them rates."""
    file_rates: Mapping[str, Pace] = field(default_factory=dict[str, Pace])


# --- workers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A worker process about to start. Its id is never used again once it is dead."""

    id: str
    name: str
    keeper: str = ""
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    concurrency: int = 1
    lease: float = 30.0


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered worker lives while `fds` are open in any process (or its lease lasts)."""

    id: str
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    id: str
    name: str
    keeper: str
    host: str
    pid: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    started_at: float
    state: str
    """`alive`, `stalled`, `stopping` or `dead` (its slots are being taken back)."""
    running: int
    lease_ends: float | None = None


# --- claim, finish -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueShare:
    """How much of one queue a worker may take in this claim."""

    name: str
    room: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Chain:
    """What a worker has of jobs that hold exactly the same groups."""

    places: int
    """Attempts that run, each with slots that the next may take over."""
    waiting: float = 0.0
    """Seconds of work reserved behind them."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A job reserved ahead has started, in the slots of an attempt of this worker's that
    ended. `owner` is the attempt under which the store still knows those slots; None: the
    store need not move them, for there are none or this attempt has ended too."""

    token: int
    owner: int | None
    ago: float
    """Seconds since it started."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker with room asks for work. It gets only tasks that it knows."""

    room: int
    tasks: frozenset[str]
    state: ClaimState
    """The turns, kept in the worker's memory between its claims."""
    queues: tuple[QueueShare, ...] | None = None
    """None: all queues, with the same weight."""
    other_queues: bool = False
    """Queues that are not among `queues` are served too, with weight 1."""
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    running: Mapping[str, int] = field(default_factory=dict[str, int])
    """Jobs running in this worker, by fairness key."""
    spread: frozenset[str] = frozenset()
    """Tasks that use a processor each (sync code in threads): of their groups a claim takes
    only an equal part at once, so that they do not all end up in one process."""
    ageing: float | None = None
    served: frozenset[str] | None = None
    """Of a one-of only these limits are picked here; None: any of them."""
    ahead: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that a job of this task takes at most as a rule, for short tasks only: the next
    of them may be reserved ahead, to run through slots that this worker holds, one after the
    other, without a round trip in between."""
    ahead_room: int = 0
    """How many more jobs may be reserved ahead."""
    ahead_keyed: int | None = None
    """How many of those may belong to a key; None: all."""
    chains: Mapping[str, Chain] = field(default_factory=dict[str, Chain])
    """By `Claimed.chain`, what this worker runs and has reserved."""
    fresh: bool = True
    """Look at the line as it is now. False: nothing was heard of since the last round trip, so
    what the store saw at its end will do."""
    again: bool = False
    """The worker is busy and comes back soon: the store may look at the line for it now."""
    hops: int = 2000
    """The budget: how many lanes may be looked at in one claim."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round trip of a worker: what ended, how far others are, what may start next."""

    worker: str
    finishes: Sequence[Finish] = ()
    progress: Sequence[Progress] = ()
    passed: Sequence[Passed] = ()
    """What was reserved ahead and has started since the last round trip; comes before the
    finishes."""
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Exchanged:
    stale: frozenset[int] = frozenset()
    """Tokens whose finish or progress changed nothing: those attempts are not ours any more."""
    refused: tuple[tuple[int, Refusal], ...] = ()
    """Tokens whose finish changed nothing because a job that was to follow did not fit under a
    cap. The attempt still runs: it is to be finished again, as failed."""
    claimed: tuple[Claimed, ...] = ()
    more: bool = False
    """The budget ended before all lanes were looked at: ask again at once."""
    wake_in: float | None = None
    """Seconds until something is due that this worker may be able to run."""
    cancels: tuple[tuple[int, str], ...] = ()
    """(token, reason) of this worker's attempts that somebody wants stopped."""
    unrouted: bool = False
    """Jobs of tasks that this worker knows wait for their stamp: call `unrouted`."""
    recall: bool = False
    """Something changed (a limit, a pause): give back what is reserved and has not started."""
    dead: bool = False
    """This worker was declared dead (or never registered): nothing was claimed, every finish
    was stale. It must stop its code and end."""


# --- what commands write ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of what an attempt wrote. `start` counts the bytes that it wrote before."""

    seq: int
    stream: str
    """`out` or `err`."""
    ago: float
    """Seconds since it was written."""
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """What an attempt wrote since it was told last. May be told again: it is kept once."""

    token: int
    pieces: Sequence[OutputPiece]
    forget: tuple[int, int] | None = None
    """Pieces of these numbers (from, up to but not including) are not kept any more."""


@dataclass(frozen=True, slots=True)
class OutputRecord:
    token: int
    attempt: int
    seq: int
    stream: str
    at: float
    start: int
    data: bytes

    @property
    def place(self) -> tuple[int, int]:
        """Where to go on reading."""
        return self.token, self.seq


# --- slots and limits -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A slot for something that is not a job, under a lease of its own."""

    group: str
    holder: str
    worker: str
    lease: float
    limit: int | None = None
    """Counts only where nothing else declares a value."""
    carries_limit: bool = False
    units: int = 1
    waited: float = 0.0
    """Seconds for which this holder has been asking: after some, what becomes free is kept
    for it, or it would wait for as long as jobs do."""


@dataclass(frozen=True, slots=True)
class SlotRecord:
    group: str
    slot: int
    token: int
    holder: str
    """The job's id, or the `task_id` of a slot taken by hand."""
    worker: str
    units: int
    since: float
    expires_at: float | None
    """None: lives as long as its worker."""
    job: bool
    overdue: bool = False
    worker_id: str | None = None
    lease_ends: float | None = None
    """What `why` adds: the end of its own lease, else of its worker's, where there are any."""


@dataclass(frozen=True, slots=True)
class Word:
    """What an operator said about a group: a limit, a pause or a weight."""

    value: int | None
    by: str
    reason: str
    at: float
    until: float | None = None
    """When it ends by itself, by the store's clock; None: when it is taken back."""


@dataclass(frozen=True, slots=True)
class Words:
    """All that operators said about one group, and that is in force."""

    group: str
    limit: Word | None = None
    pause: Word | None = None
    weight: Word | None = None


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit, or a group with something of its own (override, holders)."""

    group: str
    value: int | None
    source: str
    """`override`, `file`, `code`, `carried`, or `none` when nothing declares a value."""
    paused: bool
    held: int
    holders: int
    paused_by: str = ""
    declared: int | None = None
    reserved_by: str | None = None
    keyed: bool = False
    """Its value is for each key apart: the holders are in the groups of its keys."""
    disagree: tuple[tuple[str, int | None], ...] = ()
    """(declarer, value) of live declarations that differ from the value in force."""
    override: Word | None = None
    """The operator's word that the value comes from, where it does."""
    pause: Word | None = None
    weight: Word | None = None
    orphaned: bool = False
    """It was declared, and no worker that is there declares it any more."""
    pace: Pace | None = None
    """It is a rate: `held` counts the starts of its period, and nobody holds them."""
    opens_at: float | None = None
    """Of a rate that lets nothing start now: when it lets one unit start."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """An operator's word on a limit or group; every change is recorded.

    It may set or reset the value, pause or resume, and set or reset the weight, all at once.
    What is set ends by itself after `lasts` seconds, or at `until`, if either is given.
    """

    group: str
    value: int | None = None
    set_value: bool = False
    reset: bool = False
    paused: bool | None = None
    by: str = ""
    reason: str = ""
    weight: int | None = None
    reset_weight: bool = False
    lasts: float | None = None
    until: float | None = None
    said: Word | None = None
    """Who said it first, when and why, where `by` repeats it from a file."""


@dataclass(frozen=True, slots=True)
class QueueRecord:
    name: str
    paused: bool
    waiting: int
    """Counted up to a bound; see `bounded`."""
    running: int
    scheduled: int
    oldest_ready_at: float | None
    bounded: bool = False
    paused_by: str = ""


@dataclass(frozen=True, slots=True)
class EventRecord:
    seq: int
    at: float
    kind: str
    subject: str
    who: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is where it is, as facts; `headgate.why` puts them into words."""

    job: JobRecord
    code: str
    """scheduled, retry, unrouted, cap, queue-paused, unknown-task, no-worker, limit-full,
    rate-full, limit-zero, limit-paused, limit-missing, too-wide, reserved, priority, turn, running,
    cancelling, done"""
    groups: tuple[LimitRecord, ...] = ()
    """The groups that block it now."""
    holders: tuple[SlotRecord, ...] = ()
    ahead: int | None = None
    """Jobs before it in its lane (at most 1,000 counted)."""
    ahead_bounded: bool = False
    until: float | None = None
    """When the cause ends by itself, where it does: due, resumed, the first slot that ends."""
    detail: str = ""
    """By code: who paused the queue and why; the job that reserved; or what is amiss."""
    before: int = 0
    """Ready jobs of its queue with a better priority (at most 1,000 counted)."""
    before_bounded: bool = False
    turns: int | None = None
    """Fairness keys that take turns there, its own included (at most 1,000 counted)."""
    typical: float | None = None
    """Seconds that a job of its task takes: the median of the last that ended well."""
    measured: int = 0
    """Of how many that is."""
    estimated_start: float | None = None
    """At the earliest, from `typical`; None: nobody can tell."""


# --- schedules --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """A schedule as a program declares it: all plain values, all that is needed to tick it."""

    name: str
    when: str
    timezone: str = "UTC"
    jitter: float = 0.0
    start: float | None = None
    end: float | None = None
    missed: str = "skip"
    missed_window: float = 86400.0
    pile_up: bool = False
    skip_if_running: bool = False
    source: str = "code"
    """`code` or `file`."""
    job: str = "{}"
    """The job of each tick, as `headgate.schedules.template` writes it."""


@dataclass(frozen=True, slots=True)
class Schedules:
    """All that one program schedules: what it declared before and does not name here is gone."""

    declarer: str
    release: str = ""
    schedules: tuple[ScheduleSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule as it stands."""

    spec: ScheduleSpec
    digest: str
    """Changes with anything in the spec."""
    since: float
    """Nothing before this moment counts: when it was declared so, or resumed."""
    next_at: float | None
    """The tick that is due next; None: none is, for it has ended."""
    planned: bool
    """False: nobody has worked out `next_at` yet."""
    last_at: float | None = None
    """The last tick that was due, whatever became of it."""
    last_run_at: float | None = None
    last_job: str | None = None
    paused: bool = False
    paused_by: str = ""
    reason: str = ""
    declarers: tuple[str, ...] = ()
    orphaned: bool = False
    """No worker that is there declares it: it will be forgotten."""


@dataclass(frozen=True, slots=True)
class Due:
    """What a ticker finds."""

    now: float
    schedules: tuple[ScheduleRecord, ...]
    """To be ticked or planned, those that have waited longest first."""
    next_at: float | None
    """When the next of all others is due."""


TickOutcome = Literal["run", "merged", "skipped", "refused", "missed"]
"""What became of a tick. `merged`: the run before it still waited, and stands for it too.
`skipped`: a run was not over. `refused`: a cap did not take it. `missed`: too late."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick that is due, with the job that it is to become; without one it was missed, alone
    or as the first of `count` up to `through`."""

    at: float
    job: NewJob | None = None
    through: float | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ticking:
    """Ticks of one schedule, and the next one after them. Changes nothing unless the schedule is
    still the one that was seen: the same digest, the same tick due next."""

    schedule: str
    digest: str
    expected: float | None
    """`next_at` as it was seen; None: it was not planned."""
    next_at: float | None
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True)
class TickRecord:
    """A tick as it is kept."""

    schedule: str
    at: float
    outcome: TickOutcome
    job: str | None
    """The job it became, or into which it was merged."""
    recorded_at: float
    through: float | None = None
    count: int = 1
    by: str = ""
    """Who asked for it, where it was not the clock."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep found."""

    lost_workers: tuple[str, ...] = ()
    lost_attempts: int = 0
    expired_jobs: int = 0
    expired_slots: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something `doctor` found. `repair` says what `--repair` would do, if it can."""

    what: str
    detail: str
    repair: str = ""
    repaired: bool = False


class Bell(Protocol):
    """Rings when something changed. `fileno()` is readable then; None: poll instead."""

    def awake(self, busy: bool) -> None:
        """Who is busy need not be woken, and where that costs something, nobody tries. A bell
        is listened to from the start; after `awake(False)` it rings once more if it may have
        missed something."""
        ...

    def fileno(self) -> int | None: ...
    def drain(self) -> None: ...
    def wait(self, timeout: float) -> bool: ...
    def close(self) -> None: ...


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
        """Fenced by `token`; None releases whoever holds it (the force of operator `by`)."""
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

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        """Newest first; `after` is the id of the last job of the page before."""
        ...

    def latest(self, task: str, state: State, look: int = 10_000) -> JobRecord | None:
        """The last job of this task that ended so, if it is among the last `look` of all that
        did: bounded, however many are kept."""
        ...

    def count(self, filter: JobFilter, limit: int = 10_000) -> int: ...
    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord: ...
    def retry(self, id: str, by: str = "") -> JobRecord: ...
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

    # wake-ups
    def bell(self, what: str) -> Bell:
        """`work`: something may have become claimable. `done`: a job ended. `room`: a group
        may have room for who waits for a slot by hand. `output`: a command wrote something."""
        ...

    def ring(self, what: str) -> None: ...
