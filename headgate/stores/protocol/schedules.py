"""Schedules and their ticks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.jobs import NewJob


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
    late: float = 60.0
    """Seconds after its time at which a tick is not missed yet."""
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
    keep: bool = False
    """It becomes a run of its own, beside whatever waits."""


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
