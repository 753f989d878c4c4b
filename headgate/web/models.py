"""What the API answers and takes. Every answer is made as one of these, so that it is as its
description says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headgate.jobs import State

Text = Annotated[str, msgspec.Meta(max_length=2000)]
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Span = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Units = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Error(msgspec.Struct):
    error: str


class Word(msgspec.Struct):
    """What an operator said."""

    value: int | None
    by: str
    reason: str
    at: str
    until: str | None


class Disagreement(msgspec.Struct):
    declarer: str
    limit: int | None


class Limit(msgspec.Struct):
    group: str
    limit: int | None
    source: str
    paused: bool
    paused_by: str
    active: int
    holders: int
    declared: int | None
    keyed: bool
    per: float | None
    burst: int | None
    opens_at: str | None
    reserved_by: str | None
    disagree: list[Disagreement]
    override: Word | None
    pause: Word | None
    weight: Word | None
    orphaned: bool


class Load(msgspec.Struct):
    """A limit, with what is held and waits over all its keys."""

    limit: Limit
    held: int
    held_bounded: bool
    keys: int
    waiting: int
    waiting_bounded: bool
    oldest_ready_at: str | None


class Loads(msgspec.Struct):
    groups: list[Load]


class Key(msgspec.Struct):
    key: str
    held: int
    holders: int
    waiting: int
    waiting_bounded: bool
    oldest_ready_at: str | None


class Keys(msgspec.Struct):
    keys: list[Key]
    found: int
    complete: bool
    """False: they are still being looked for."""


class Slot(msgspec.Struct):
    slot_id: int
    task_id: str
    worker_id: str
    token: int
    units: int
    since: str
    expires_at: str | None
    job: bool
    overdue: bool


class Group(msgspec.Struct):
    limit: Limit
    slots: list[Slot]
    more: bool


class Need(msgspec.Struct):
    group: str
    units: int


class Needs(msgspec.Struct):
    all: list[Need]
    one_of: list[list[Need]]


class Failure(msgspec.Struct):
    type: str
    message: str
    traceback: str


class Job(msgspec.Struct):
    id: str
    task: str
    state: State
    reason: str
    queue: str
    priority: int
    turn: str
    args: Any
    options: Any
    needs: Needs
    created_at: str
    run_at: str | None
    ready_at: str | None
    started_at: str | None
    finished_at: str | None
    expires_at: str | None
    attempt: int
    token: int | None
    worker: str | None
    groups: list[str]
    progress: float | None
    progress_text: str
    cancel_requested: bool
    result: Any
    error: Failure | None
    idempotency_key: str | None
    parent: str | None


class Attempt(msgspec.Struct):
    attempt: int
    token: int
    worker: str
    started_at: str
    ended_at: str | None
    outcome: str
    reason: str
    groups: list[str]
    error: Failure | None


class WholeJob(msgspec.Struct):
    job: Job
    attempts: list[Attempt]


class Jobs(msgspec.Struct):
    jobs: list[Job]
    after: str | None
    """Where to go on. There may be more even if this page is empty."""


class Holder(Slot, kw_only=True):
    group: str
    lease_ends: str | None


class Why(msgspec.Struct):
    id: str
    state: State
    code: str
    text: str
    groups: list[Limit]
    holders: list[Holder]
    ahead: int | None
    ahead_bounded: bool
    before: int
    before_bounded: bool
    turns: int | None
    until: str | None
    typical_secs: float | None
    measured: int
    estimated_start: str | None
    detail: str


class Piece(msgspec.Struct):
    attempt: int
    stream: str
    at: str
    start: int
    text: str


class Outputs(msgspec.Struct):
    output: list[Piece]
    after: str | None


class Queue(msgspec.Struct):
    queue: str
    paused: bool
    paused_by: str
    waiting: int
    waiting_bounded: bool
    running: int
    scheduled: int
    oldest_ready_at: str | None


class Queues(msgspec.Struct):
    queues: list[Queue]


class Worker(msgspec.Struct):
    id: str
    name: str
    state: str
    host: str
    pid: int
    queues: list[str]
    tasks: list[str]
    concurrency: int
    running: int
    started_at: str
    lease_ends: str | None


class Workers(msgspec.Struct):
    workers: list[Worker]


class Schedule(msgspec.Struct):
    schedule: str
    when: str
    timezone: str
    task: str
    state: str
    next_at: str | None
    last_at: str | None
    last_run_at: str | None
    last_job: str | None
    paused: bool
    paused_by: str
    reason: str
    source: str


class Schedules(msgspec.Struct):
    schedules: list[Schedule]


class Tick(msgspec.Struct):
    schedule: str
    at: str
    outcome: str
    job: str | None
    recorded_at: str
    through: str | None
    count: int
    by: str


class Event(msgspec.Struct):
    seq: int
    at: str
    kind: str
    subject: str
    by: str
    data: dict[str, Any]


class Events(msgspec.Struct):
    events: list[Event]
    before: int | None


class Share(msgspec.Struct):
    key: str
    weight: int
    starts: int
    share_of_starts: float
    share_of_running_time: float
    share_due: float
    median_wait_secs: float
    longest_wait_secs: float


class Fairness(msgspec.Struct):
    keys: list[Share]
    seen: int


# --- what is taken ------------------------------------------------------------------------------


class ChangeLimit(msgspec.Struct, forbid_unknown_fields=True):
    group: Short
    action: Literal["set", "reset", "pause", "resume", "weight", "reset-weight"]
    value: Units | None = None
    reason: Text = ""
    lasts: Span | None = None


class ReleaseSlot(msgspec.Struct, forbid_unknown_fields=True):
    group: Short
    slot_id: Units
    token: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Released(msgspec.Struct):
    released: bool


class CancelJob(msgspec.Struct, forbid_unknown_fields=True):
    reason: Text = ""


class RetryJob(msgspec.Struct, forbid_unknown_fields=True):
    pass


class MoveJob(msgspec.Struct, forbid_unknown_fields=True):
    queue: Short | None = None
    priority: Annotated[int, msgspec.Meta(ge=-32768, le=32767)] | None = None


class PauseQueue(msgspec.Struct, forbid_unknown_fields=True):
    queue: Short
    paused: bool
    reason: Text = ""


class PauseSchedule(msgspec.Struct, forbid_unknown_fields=True):
    name: Short
    paused: bool
    reason: Text = ""


class RunSchedule(msgspec.Struct, forbid_unknown_fields=True):
    name: Short
