"""The records of a job's life: what is submitted, claimed, finished and shown."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from headgate.limits import NO_NEEDS, Needs

State = Literal["scheduled", "ready", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("scheduled", "ready", "running", "succeeded", "failed", "cancelled")
FINAL: frozenset[State] = frozenset(("succeeded", "failed", "cancelled"))

Outcome = Literal["succeeded", "failed", "retry", "snoozed", "cancelled", "interrupted", "returned"]
"""How an attempt ends. `interrupted`: its worker stopped it, the job goes back at no cost;
`returned`: it never started, and is as if it had not been claimed."""

DEFAULT_QUEUE = "default"
DEFAULT_MAX_LOST = 3


def new_id() -> str:
    """A job id: a UUID of version 7, so that ids made later sort later."""
    ms = time.time_ns() // 1_000_000
    raw = bytearray(ms.to_bytes(6) + os.urandom(10))
    raw[6] = 0x70 | (raw[6] & 0x0F)
    raw[8] = 0x80 | (raw[8] & 0x3F)
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


CapRule = Literal["total", "waiting", "period"]
WhenFull = Literal["reject", "skip", "replace", "cancel_running"]


@dataclass(frozen=True, slots=True)
class CapUse:
    """A cap that a submission must fit under, with its key filled in.

    `max_total` counts jobs of the group that are not over, `max_waiting` those of them that do
    not run; `unique_for` lets one be submitted in so many seconds.
    """

    group: str
    max_total: int | None = None
    max_waiting: int | None = None
    unique_for: float | None = None
    when_full: WhenFull = "reject"
    wait: float = 0.0
    """Seconds for which the submitter tries again; nothing to the store."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a submission was not stored: it would have been one too many."""

    group: str
    rule: CapRule
    count: int
    cap: int
    existing: str | None = None
    """A job that is counted there."""
    until: float | None = None
    """When the period ends in which one was submitted already."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """One submission, ready to be stored. `args` and `options` are JSON texts."""

    task: str
    args: str = "{}"
    id: str = field(default_factory=new_id)
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    needs: Needs = NO_NEEDS
    turn: str = ""
    fair_limit: str = ""
    """The limit whose key is also the turn, if any."""
    routed: bool = True
    """False: no one who knows the task has stamped queue, needs and turn yet."""
    delay: float = 0.0
    run_at: float | None = None
    """Seconds since the epoch, by the store's clock; wins over `delay`."""
    expires: float | None = None
    """Seconds after becoming due in which the job must have started."""
    max_lost: int = DEFAULT_MAX_LOST
    idempotency_key: str | None = None
    carried: tuple[tuple[str, int | None], ...] = ()
    """(limit name or group, value): counts only where nothing else declares one."""
    options: str = "{}"
    """What only the worker's code reads: retries, timeout, backoff, using(...)."""
    parent: str | None = None
    caps: tuple[CapUse, ...] = ()

    @property
    def depends(self) -> bool:
        """May it depend on somebody's open transaction what becomes of it?"""
        return bool(self.caps) or self.idempotency_key is not None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one submission. `existing`: an idempotency key met its earlier job, or a
    cap that skips did. `refused`: nothing was stored."""

    id: str
    existing: bool = False
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Routing:
    """The stamp that a worker puts on an unrouted job; `error` fails it as `unroutable`."""

    job: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    needs: Needs = NO_NEEDS
    turn: str = ""
    fair_limit: str = ""
    expires: float | None = None
    max_lost: int = DEFAULT_MAX_LOST
    task: str | None = None
    """The task's own name, where the job was submitted under an alias."""
    carried: tuple[tuple[str, int | None], ...] = ()
    """As that of a submission: a job class may say it job by job."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Unrouted:
    """A job that waits for somebody who knows its task."""

    job: str
    task: str
    args: str
    options: str


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One attempt, granted: it holds all its groups from the commit that made this record."""

    job: str
    token: int
    attempt: int
    task: str
    args: str
    queue: str
    priority: int
    turn: str
    options: str
    groups: tuple[tuple[str, int], ...] = ()
    """(group, slot number) of every slot held."""
    picked: tuple[str, ...] = ()
    """The group picked from each one-of, in order."""
    errors: int = 0
    lost: int = 0
    created_at: float = 0.0
    ready_at: float = 0.0
    started_at: float = 0.0
    chain: str = ""
    """The groups and units held, as one text: a job reserved ahead runs in the slots of an
    ended attempt with the same one."""
    reserved: bool = False
    """Granted ahead: it may start only when an attempt of the same chain has ended here, in
    that one's slots."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is stored: texts only."""

    type: str
    message: str
    traceback: str = ""


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended. Changes nothing unless `token` is the running attempt's."""

    token: int
    outcome: Outcome
    reason: str = ""
    result: str | None = None
    error: Failure | None = None
    delay: float = 0.0
    followups: tuple[NewJob, ...] = ()
    keep: bool = True
    """False: retention is 0 for such an end, so the store may forget the job at once."""


@dataclass(frozen=True, slots=True)
class Progress:
    token: int
    fraction: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One execution, as it is kept."""

    token: int
    attempt: int
    worker: str
    started_at: float
    ended_at: float | None
    outcome: str
    """`running`, `succeeded`, `error` (a retry may follow), `snoozed`, `cancelled`,
    `interrupted` or `lost`; with ` (before)` behind it when the job was run anew since."""
    reason: str
    groups: tuple[str, ...]
    error: Failure | None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as anyone may look at it."""

    id: str
    task: str
    state: State
    reason: str
    queue: str
    priority: int
    turn: str
    args: str
    options: str
    needs: Needs
    created_at: float
    run_at: float | None = None
    ready_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    expires_at: float | None = None
    attempt: int = 0
    token: int | None = None
    worker: str | None = None
    groups: tuple[str, ...] = ()
    progress: float | None = None
    progress_text: str = ""
    cancel_requested: bool = False
    result: str | None = None
    error: Failure | None = None
    idempotency_key: str | None = None
    parent: str | None = None

    @property
    def done(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list or act on; empty means any."""

    states: frozenset[State] = frozenset()
    task: str | None = None
    queue: str | None = None
    group: str | None = None
    since: float | None = None
    """Created at or after (seconds since the epoch)."""
    until: float | None = None
    ids: tuple[str, ...] = ()
    text: str | None = None
    """In its arguments, its error or its id."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds for which a finished job and its attempts are kept; None: for ever."""

    succeeded: float | None = 7 * 86400.0
    failed: float | None = 30 * 86400.0
    cancelled: float | None = 7 * 86400.0
    events: float | None = 30 * 86400.0

    def of(self) -> Mapping[str, float | None]:
        return {"succeeded": self.succeeded, "failed": self.failed, "cancelled": self.cancelled}
