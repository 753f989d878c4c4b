"""A checked configuration: what its files say, in the form in which it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headgate.config import Config
from headgate.schedules.schedule import Schedule

Occasion = Literal["failure", "recovery", "over-run"]
OCCASIONS: tuple[Occasion, ...] = ("failure", "recovery", "over-run")

DEFAULT_GRACE = 60.0
"""Seconds between TERM and KILL for a run that takes too long."""
DEFAULT_MISSED_WINDOW = 3600.0
"""What was due while no scheduler ran is made up for once, if it is no older than this."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One job: a command, when it runs, and what it shares with others."""

    name: str
    command: str | tuple[str, ...]
    """A text is for the shell, a list is run as it is."""
    schedule: Schedule | None = None
    """None: it runs only when somebody triggers it."""
    timezone: str = "UTC"
    """Of its schedule, and of times that its triggers tell without one."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Its own, over that of the configuration."""
    concurrency_groups: tuple[str, ...] = ()
    """A run needs one of these, picked when it starts."""
    limits: tuple[str, ...] = ()
    """A run needs all of these."""
    concurrent_runs: bool = False
    max_execution: float | None = None
    max_execution_grace: float = DEFAULT_GRACE
    command_append_run: bool = False
    jenkins_environment: bool = False
    job_group: str | None = None
    cwd: str | None = None
    retries: int = 0
    retry_delay: float | None = None
    retry_exit_codes: tuple[int, ...] = ()
    queue: str = "default"
    priority: int = 0
    over_run_after: float | None = None
    notify: frozenset[Occasion] = frozenset()


@dataclass(frozen=True, slots=True)
class Notify:
    """Whom to tell: a command, a web address, or both."""

    command: str | tuple[str, ...] | None = None
    webhook: str | None = None
    on: frozenset[Occasion] = frozenset(OCCASIONS)
    timeout: float = 30.0

    @property
    def anybody(self) -> bool:
        return self.command is not None or self.webhook is not None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """All of it: what `headgate scheduler` runs."""

    path: Path
    data_dir: Path
    config: Config
    """The store, limits, queues and retention; the concurrency groups are among its limits."""
    jobs: Mapping[str, JobConfig] = field(default_factory=dict[str, JobConfig])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    groups: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    undeclared: frozenset[str] = frozenset()
    """Groups that only jobs name: at most one run at a time in each."""
    shutdown_kill_runs: bool = False
    shutdown_kill_grace: float | None = None
    notify: Notify = field(default_factory=Notify)

    def serving(self, groups: frozenset[str] | None) -> dict[str, JobConfig]:
        """The jobs that a machine can run which serves only these groups."""
        if groups is None:
            return dict(self.jobs)
        return {
            name: job
            for name, job in self.jobs.items()
            if not job.concurrency_groups or groups.intersection(job.concurrency_groups)
        }
