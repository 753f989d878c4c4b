"""What the checker is told beside the log: changes of limits, submitted jobs, kills."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """From `t` on, the limit or group `name` has this value (None: unlimited)."""

    t: float
    name: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job and what must have become of it."""

    job: str
    expect: str = "succeeded"
    """`succeeded`, `failed` (ran, never well), `cancelled` (never well), `unrun` or `any`."""
    submitted: float | None = None
    """When it could have started, by the clock of the log."""
    lost: int = 3
    """How many attempts it may lose with killed processes."""
    groups: dict[str, int] | None = None
    """Units of each group it needs; without it, those of its first start."""
    one_of: list[list[str]] = field(default_factory=list[list[str]])
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that is gone: `t` is when it was seen gone, `sent` when the signal was sent.

    Between the two nobody can say whether its code still ran: a start in that window is not
    held against the engine on its account, and how often that mattered is printed.
    """

    t: float
    pid: int | None = None
    worker: str | None = None
    sent: float | None = None
