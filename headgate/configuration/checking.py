"""From plain data to a configuration that can be run, or to all that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.config import CONFIG_KEYS, DATABASE, Config, data_directory, database_url
from headgate.configuration import section as read
from headgate.configuration.jobchecks import check_name_of, command_of, job_of, occasions, zone_of
from headgate.configuration.localzone import local_zone
from headgate.configuration.model import JobConfig, Notify, Scheduled
from headgate.configuration.problems import Problem, Problems
from headgate.configuration.reading import Source
from headgate.configuration.reading import read as read_source
from headgate.configuration.section import Section, Wrong
from headgate.errors import ConfigError
from headgate.limits import MAX_VALUE

_REPORTS = (
    "template_dir",
    "report_html_gz",
    "report_output_limit",
    "report_run_output_start",
    "report_run_output_end",
)
# What the reader of the common parts says of a whole table or of a name in it, and where that is.
_PLACES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"(?P<path>.+?) (?P<told>must be a table, got .*)", re.DOTALL), ()),
    (re.compile(r"unknown key (?P<q>['\"])(?P<path>.+?)(?P=q)(?P<told>)", re.DOTALL), ()),
    (
        re.compile(r"(?P<q>['\"])(?P<path>.+?)(?P=q)(?P<told>) stands in concurrency"),
        ("concurrency", "limits"),
    ),
)
ROOT_KEYS = (
    *("config_d", "data_dir", "database", "environment", "shutdown_kill_runs"),
    *("shutdown_kill_grace", "schedule_timezone", "jobs", "job_groups", "concurrency_groups"),
    "notify",
)


def load(
    named: str | Path, *, url: str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Scheduled, list[Problem]]:
    """The configuration and what it warns of; a `ConfigurationError` has every problem.

    >>> load("headgate.toml")                                           # doctest: +SKIP
    """
    source = read_source(named)
    return check(source, url=url, environ=environ)


def job_names(named: str | Path) -> frozenset[str]:
    """The jobs that a file names, right or wrong."""
    root = Section(read_source(named).data, (), Problems(lambda _: ("", None)))
    groups = [Section(c, (), root.problems) for _, c in root.items("job_groups")]
    inner = [name for group in groups for name in group.take("job_names", read.texts, ())]
    return frozenset((*(name for name, _ in root.items("jobs")), *inner))


def check(
    source: Source, *, url: str | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Scheduled, list[Problem]]:
    """All of a source that was read."""
    problems = Problems(source.locate)
    found = _check(source, problems, url, environ)
    problems.raise_if_fatal()
    return found, problems.found


def _check(
    source: Source, problems: Problems, url: str | None, environ: Mapping[str, str] | None
) -> Scheduled:
    root = Section(source.data, (), problems)
    strict = not source.dsari
    given = {key: root.left.pop(key) for key in CONFIG_KEYS if key in root.left}
    own = {key: value for key, value in given.items() if value is not None}
    root.take("config_d", read.text, "")
    root.take("data_dir", read.path, "")
    data_dir = data_directory(source.data, source.directory)
    root.ignore(_REPORTS, "has no effect: Headgate writes no HTML reports")
    root.ignore(["database"], f"has no effect: runs are kept in the store ({DATABASE}, or url)")
    zone = root.take("schedule_timezone", zone_of, None) or local_zone()
    environment = read.environment(root, "environment")
    notify = _notify(root)
    groups = _groups(root, strict)
    jobs = _jobs(root, source, zone, notify, strict)
    scheduled = Scheduled(
        path=source.main,
        data_dir=data_dir,
        config=_config(own, source, problems, data_dir, url, environ),
        jobs=jobs,
        environment=environment,
        shutdown_kill_runs=root.take("shutdown_kill_runs", read.flag, False),
        shutdown_kill_grace=root.take("shutdown_kill_grace", read.seconds, None),
        notify=notify,
    )
    root.done((*ROOT_KEYS, *CONFIG_KEYS), strict=strict)
    if not jobs and not problems.fatal:
        problems.warn((), "no jobs: there is nothing to run")
    return _with_groups(scheduled, groups, problems)


def _config(
    own: dict[str, Any],
    source: Source,
    problems: Problems,
    data_dir: Path,
    url: str | None,
    environ: Mapping[str, str] | None,
) -> Config:
    """The parts that every command of Headgate reads."""
    default = database_url(data_dir)
    try:
        config = Config.of({"url": default, **own}, source.main, url=url, environ=environ)
    except ConfigError as error:
        # Its message names the key after the file, which is told by the place here.
        path, told = _place_in(str(error), str(source.main))
        problems.add(path, told)
        return Config(url=default)
    return config


def _place_in(message: str, file: str) -> tuple[tuple[str, ...], str]:
    rest = message.removeprefix(f"{file}: ")
    key, colon, told = rest.partition(": ")
    if colon and (" " not in key or key.partition(".")[0] in CONFIG_KEYS):
        return tuple(key.split(".")), told
    for pattern, under in _PLACES:
        if (found := pattern.match(rest)) is not None:
            name = found["path"]
            return (*under, name) if under else tuple(name.split(".")), found["told"] or rest
    return (), rest


# --- concurrency groups ----------------------------------------------------------------------


def _groups(root: Section, strict: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, content in root.items("concurrency_groups"):
        path = ("concurrency_groups", name)
        group = Section({} if content is None else content, path, root.problems)
        named = group.checked(path, lambda name=name: check_name_of(name, "concurrency group"), "")
        value = group.take("max", read.whole(0, MAX_VALUE), 1)
        group.done(["max"], strict=strict)
        if value == 0:
            root.problems.warn((*path, "max"), "0 lets no run start: they wait until it is raised")
        if named:
            found[named] = value
    return found


def _with_groups(scheduled: Scheduled, declared: dict[str, int], problems: Problems) -> Scheduled:
    """Groups that are named by jobs alone have room for one."""
    limits = scheduled.config.limits
    undeclared: dict[str, tuple[str, int]] = {}
    for job in scheduled.jobs.values():
        for index, name in enumerate(job.concurrency_groups):
            if name not in declared and name not in limits:
                undeclared.setdefault(name, (job.name, index))
    for name, (job_name, index) in undeclared.items():
        problems.warn(
            ("jobs", job_name, "concurrency_groups", index),
            f"the group {name!r} is not declared in concurrency_groups: one run at a time is"
            " assumed",
        )
    for name in declared:
        if name in limits and limits[name] != declared[name]:
            problems.add(
                ("concurrency_groups", name, "max"),
                f"is {declared[name]} here and {limits[name]} in concurrency.limits: say it once",
            )
    groups = {**limits, **declared, **dict.fromkeys(undeclared, 1)}
    for job in scheduled.jobs.values():
        for index, name in enumerate(job.limits):
            if name not in groups and name not in scheduled.config.rates:
                problems.add(
                    ("jobs", job.name, "limits", index),
                    f"no limit {name!r}: declare it in concurrency_groups or concurrency.limits",
                )
    config = replace(scheduled.config, limits=groups)
    return replace(scheduled, config=config, groups=groups, undeclared=frozenset(undeclared))


# --- jobs and their groups -------------------------------------------------------------------


def _jobs(
    root: Section, source: Source, zone: str, notify: Notify, strict: bool
) -> dict[str, JobConfig]:
    found: dict[str, JobConfig] = {}

    def add(name: str, content: object, path: tuple[str | int, ...], group: str | None) -> None:
        table = Section(content, path, root.problems)
        if not isinstance(content, dict):
            return  # which is told, and all there is to tell
        job = job_of(
            table,
            name,
            group=group,
            zone=zone,
            notify=notify.on if notify.anybody else frozenset(),
            dsari=source.dsari,
        )
        if job is not None:
            found[name] = job

    for name, content in root.items("jobs"):
        add(name, content, ("jobs", name), None)
    for group_name, content in root.items("job_groups"):
        path = ("job_groups", group_name)
        group = Section(content, path, root.problems)
        group.checked(path, lambda n=group_name: check_name_of(n, "job group"), "")
        if not group.has("job_names"):
            root.problems.add(path, "job_names is missing: the names of the jobs of this group")
            continue
        names = group.take("job_names", read.texts, ())
        for index, name in enumerate(names):
            if name in found:
                root.problems.add(
                    (*path, "job_names", index),
                    f"a job {name!r} is there already: give one of them another name",
                )
                continue
            add(name, dict(group.left), path, group_name)
    return found


# --- whom to tell ----------------------------------------------------------------------------


def _notify(root: Section) -> Notify:
    if not root.has("notify"):
        root.left.pop("notify", None)
        return Notify()
    table = root.section("notify")
    default = Notify()
    made = Notify(
        command=table.take("command", lambda value: command_of(value, dsari=False), None),
        webhook=table.take("webhook", _webhook, None),
        on=table.take("on", occasions, default.on),
        timeout=table.take("timeout", read.positive_seconds, default.timeout),
    )
    table.done(["command", "webhook", "on", "timeout"], strict=True)
    if not made.anybody and not root.problems.fatal:
        root.problems.add(("notify",), "names neither a command nor a webhook: nobody is told")
    return made


def _webhook(value: object) -> str:
    url = read.text(value)
    if not url.startswith(("http://", "https://")) or not url.isascii() or " " in url:
        raise Wrong(f"must be an address that begins with https:// or http://, got {url!r}")
    return url
