"""What programs declare, as the store tells it to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.rates import Pace


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
    source: str = "code"
    """`file`: a job of a configuration. What waits of one that is in none any more is cancelled."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What a program declares when it starts to work."""

    declarer: str
    """Who declares: the worker's name (an earlier declaration by it is replaced)."""
    release: str = ""
    tasks: tuple[TaskSpec, ...] = ()
    worker: str = ""
    """The id of the registered worker that declares: it knows these tasks from now on, whatever it
    said at its start."""
    code: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Limit values declared in code, by name."""
    file: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Limit values declared in the configuration file, by name."""
    code_rates: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    """Of those declared in code, what makes some of them rates."""
    file_rates: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
