"""One job of a configuration: every key checked, down to the times of its schedule."""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import cast

from headgate.configuration import section as read
from headgate.configuration.model import (
    DEFAULT_GRACE,
    DEFAULT_MISSED_WINDOW,
    OCCASIONS,
    JobConfig,
    Occasion,
)
from headgate.configuration.reading import kind_of
from headgate.configuration.section import Section, Wrong
from headgate.errors import DeclarationError
from headgate.jobs import DEFAULT_QUEUE
from headgate.limits import check_name
from headgate.schedules.schedule import DEFAULT_LATE, MISSED, Missed, Schedule
from headgate.schedules.zones import find_zone

MAX_NAME = 64
RESERVED = "headgate."
"""What tells of runs has tasks of its own."""
_NAME = re.compile(r"[- A-Za-z0-9_+.:@]+")

TIMING_KEYS = (
    *("schedule", "schedule_timezone", "timezone", "jitter", "start", "end"),
    *("missed", "missed_window", "late", "pile_up", "skip_if_running"),
)
JOB_KEYS = (
    *("command", "command_append_run", "environment", "concurrency_groups", "limits"),
    *("concurrent_runs", "max_execution", "max_execution_grace", "jenkins_environment"),
    *("job_group", "cwd", "retries", "retry_delay", "retry_exit_codes", "queue", "priority"),
    *("over_run_after", "notify", "render_reports"),
    *TIMING_KEYS,
)


def job_of(
    table: Section,
    name: str,
    *,
    group: str | None,
    zone: str,
    notify: frozenset[Occasion],
    dsari: bool,
) -> JobConfig | None:
    """The job, or None and the problems that it has."""
    before = len([p for p in table.problems.found if not p.warning])
    named = table.checked(table.path, lambda: check_name_of(name, "job"), "")
    if not table.has("command"):
        table.left.pop("command", None)
        table.problems.add(table.path, "command is missing: what this job is to run")
    table.ignore(["render_reports"], "has no effect: Headgate writes no HTML reports")
    command = table.take("command", lambda value: command_of(value, dsari=dsari), ("?",))
    wanted = table.take("notify", lambda value: _notify(value, notify), notify)
    retry_codes = table.take("retry_exit_codes", _exit_codes, ())
    timezone = _timezone(table) or zone
    job = JobConfig(
        name=named,
        command=command,
        schedule=_schedule(table, name, timezone, dsari=dsari),
        timezone=timezone,
        environment=read.environment(table, "environment"),
        concurrency_groups=table.take("concurrency_groups", _names("concurrency group"), ()),
        limits=table.take("limits", _names("limit"), ()),
        concurrent_runs=table.take("concurrent_runs", read.flag, False),
        max_execution=table.take("max_execution", read.positive_seconds, None),
        max_execution_grace=table.take("max_execution_grace", read.seconds, DEFAULT_GRACE),
        command_append_run=table.take("command_append_run", read.flag, False),
        jenkins_environment=table.take("jenkins_environment", read.flag, False),
        job_group=table.take("job_group", read.text, None) or group,
        cwd=table.take("cwd", _directory, None),
        retries=table.take("retries", read.whole(0, 1000), 1 if retry_codes else 0),
        retry_delay=table.take("retry_delay", read.positive_seconds, None),
        retry_exit_codes=retry_codes,
        queue=table.take("queue", lambda value: check_name(value, "queue"), DEFAULT_QUEUE),
        priority=table.take("priority", read.whole(-100, 100), 0),
        over_run_after=table.take("over_run_after", read.positive_seconds, None),
        notify=wanted,
    )
    _together(table, job)
    table.done(JOB_KEYS, strict=not dsari)
    errors = len([p for p in table.problems.found if not p.warning])
    return job if errors == before else None


def _together(table: Section, job: JobConfig) -> None:
    """What fits alone and not together."""
    if retry_without := (job.retry_exit_codes and not job.retries):
        table.problems.add(
            (*table.path, "retries"), "0 leaves retry_exit_codes without effect: leave one out"
        )
    both = set(job.concurrency_groups) & set(job.limits)
    if both and not retry_without:
        table.problems.add(
            (*table.path, "limits"),
            f"{sorted(both)[0]!r} is in concurrency_groups too: a run needs it once",
        )


# --- names and commands ----------------------------------------------------------------------


def check_name_of(name: object, what: str) -> str:
    """A name of a job or a group: it also names a limit, and a directory."""
    if not isinstance(name, str) or not name:
        raise Wrong(f"the name of a {what} must be a text that is not empty, got {kind_of(name)}")
    if len(name) > MAX_NAME:
        raise Wrong(f"the name of a {what} has at most {MAX_NAME} characters, not {len(name)}")
    if what == "job" and name.startswith(RESERVED):
        raise Wrong(f"names that begin with {RESERVED!r} are taken: give it another one")
    if not _NAME.fullmatch(name) or name in (".", "..") or name.strip() != name:
        raise Wrong(
            f"{name!r} is no name of a {what}: letters, digits, spaces inside, and - _ + . : @"
        )
    return name


def _names(what: str):
    def check(value: object) -> tuple[str, ...]:
        names = tuple(check_name_of(name, what) for name in read.texts(value))
        if len(set(names)) != len(names):
            raise Wrong(f"names a {what} twice")
        return names

    return check


def command_of(value: object, *, dsari: bool) -> str | tuple[str, ...]:
    """A list is run as it is. A text is for the shell, but in a dsari configuration it is taken
    apart into words, as dsari does."""
    if isinstance(value, str):
        if not value.strip():
            raise Wrong("is empty: say what to run")
        if not dsari:
            return value
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise Wrong(f"{value!r} cannot be split into words: {error}") from None
        if not words:
            raise Wrong("is empty: say what to run")
        return tuple(words)
    if not isinstance(value, list):
        raise Wrong(
            "must be a list of a program and its arguments, or a text as one would type it, got"
            f" {kind_of(value)}"
        )
    words = read.texts(cast("list[object]", value))
    if not words or not words[0]:
        raise Wrong("must name a program: a list of it and its arguments, or a text")
    return words


def _exit_codes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise Wrong(f"must be a list of exit codes, got {kind_of(value)}")
    check = read.whole(1, 255)
    return tuple(check(code) for code in cast("list[object]", value))


def _directory(value: object) -> str:
    path = read.path(value)
    if not path.startswith("/"):
        raise Wrong(f"must be an absolute path, got {path!r}")
    return path


def _notify(value: object, default: frozenset[Occasion]) -> frozenset[Occasion]:
    found = occasions(value)
    if found and not default:
        raise Wrong("says when to tell, and notify at the root does not say whom")
    return found


def occasions(value: object) -> frozenset[Occasion]:
    """When to tell: true for always, false for never, or a list."""
    if isinstance(value, bool):
        return frozenset(OCCASIONS) if value else frozenset()
    words = read.texts(value)
    for word in words:
        if word not in OCCASIONS:
            raise Wrong(f"must be of {', '.join(OCCASIONS)}, got {kind_of(word)}")
    return frozenset(cast("tuple[Occasion, ...]", words))


# --- schedules -------------------------------------------------------------------------------


def zone_of(value: object) -> str:
    """The name of a time zone."""
    return find_zone(read.text(value)).key


def _timezone(table: Section) -> str | None:
    if table.has("timezone") and table.has("schedule_timezone"):
        table.problems.add(
            (*table.path, "timezone"), "is schedule_timezone by another name: give one of them"
        )
    own = table.take("timezone", zone_of, None), table.take("schedule_timezone", zone_of, None)
    return own[0] or own[1]


def _schedule(table: Section, name: str, zone: str, *, dsari: bool) -> Schedule | None:
    when = table.take("schedule", read.text, None)
    schedule = Schedule(
        when=spread_seconds(when) if dsari and when is not None else when or "",
        timezone=zone,
        jitter=table.take("jitter", read.seconds, 0.0),
        start=table.take("start", _moment, None),
        end=table.take("end", _moment, None),
        missed=cast("Missed", table.take("missed", read.one_word_of(*MISSED), "one")),
        missed_window=table.take("missed_window", read.seconds, DEFAULT_MISSED_WINDOW),
        pile_up=table.take("pile_up", read.flag, False),
        skip_if_running=table.take("skip_if_running", read.flag, False),
        late=table.take("late", read.seconds, DEFAULT_LATE),
    )
    if when is None:
        return None
    # Its own message begins with the name, which the place tells here.
    told = f"schedule {name!r}: "
    try:
        return schedule.checked(name)
    except DeclarationError as error:
        table.problems.add((*table.path, "schedule"), str(error).removeprefix(told))
        return None


def spread_seconds(when: str) -> str:
    """dsari runs a job at a second of the minute that the job's name decides."""
    return f"{when} H" if len(when.split()) == 5 and not when.startswith("RRULE") else when


def _moment(value: object) -> datetime:
    """A moment in ISO 8601; without an offset it is in the zone of the schedule."""
    told = read.text(value)
    try:
        return datetime.fromisoformat(told)
    except ValueError:
        raise Wrong(
            f"must be a moment like 2026-01-31T06:00 or 2026-01-31T06:00+01:00, got {told!r}"
        ) from None
