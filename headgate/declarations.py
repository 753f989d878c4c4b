"""Which options a declaration takes, each written once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from headgate.backoff import RetryDelay
from headgate.caps import Cap, Policy
from headgate.limits import Key, Limit, OneOf
from headgate.taskoptions import Isolate

if TYPE_CHECKING:
    from headgate.schedules.schedule import Missed, Schedule


class CommandDeclaration(TypedDict, total=False):
    """The options of `app.command(...)` that it shares with tasks."""

    limits: Sequence[Limit | OneOf | str]
    retries: int
    retry_delay: RetryDelay | None
    max_lost: int
    expires: float | timedelta | None
    queue: str
    priority: int
    aliases: Sequence[str]
    caps: Sequence[Cap]
    unique_for: float | timedelta | None
    schedule: str | Schedule | None
    timezone: str | None


class CodeDeclaration(CommandDeclaration, total=False):
    """What tasks and job classes share: they are Python code, with arguments to look at."""

    name: str
    timeout: float | timedelta | None
    isolate: Isolate
    fair_by: Key
    unique_key: Key


class Declaration(CodeDeclaration, total=False):
    """The options of `@app.task(...)`."""

    max_concurrent: int | None


class JobDeclaration(CodeDeclaration, total=False):
    """The options of `@app.job(...)`: each wins over the attribute of the class."""

    one_per: str | None
    cap_at_submit: bool | Policy


class ScheduleOptions(TypedDict, total=False):
    """The options of `app.schedule(...)`; see `headgate.Schedule`."""

    timezone: str
    jitter: float | timedelta
    start: datetime | float | None
    end: datetime | float | None
    missed: Missed
    missed_window: float | timedelta
    pile_up: bool
    skip_if_running: bool
    late: float | timedelta
