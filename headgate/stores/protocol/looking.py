"""What operators are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.jobs import JobRecord
from headgate.stores.protocol.limits import LimitRecord, SlotRecord


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
    """scheduled, retry, unrouted, cap, queue-paused, unknown-task, no-worker, no-group, limit-full,
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


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep found."""

    lost_workers: tuple[str, ...] = ()
    lost_attempts: int = 0
    expired_jobs: int = 0
    expired_slots: int = 0
    removed: tuple[tuple[str, int], ...] = ()
    """Runs that were cancelled because their job is in no configuration any more, by task."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something `doctor` found. `repair` says what `--repair` would do, if it can."""

    what: str
    detail: str
    repair: str = ""
    repaired: bool = False
