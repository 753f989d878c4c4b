"""Whatever somebody writes: a configuration, or problems that name their place; never a crash.

`make prove-schedules` tries ten thousand of each kind, `make test` some hundred.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.configuration import crontab
from headgate.configuration.building import build
from headgate.configuration.checking import load
from headgate.configuration.jobchecks import JOB_KEYS
from headgate.configuration.problems import ConfigurationError
from headgate.configuration.reading import read
from headgate.configuration.triggers import read_trigger
from headgate.configuration.writing import from_dsari, table
from headgate.errors import DeclarationError
from headgate.schedules.schedule import Schedule

FULL = os.environ.get("HEADGATE_PROOF") == "full"
pytestmark = pytest.mark.timeout(1800 if FULL else 180)
"""Ten thousand of a kind take minutes, more on a machine that has much else to do."""
patient = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
many = settings(patient, max_examples=10_000 if FULL else 120)
some = settings(patient, max_examples=2_000 if FULL else 80)

names = st.one_of(st.sampled_from(["a", "b", "host-a", "x y", "a.b", "..", "", "a/b"]), st.text())
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), names
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
)
cron_field = st.one_of(
    st.sampled_from(["*", "H", "R", "*/5", "H/7", "H(1-5)", "H(1-5)/2", "1-5", "1,2", "mon", "L"]),
    st.from_regex(r"[H*RL?#~/,()\-0-9a-z]{1,8}", fullmatch=True),
)
crons = st.lists(cron_field, min_size=4, max_size=7).map(" ".join)
rules = st.lists(
    st.one_of(
        st.sampled_from(["FREQ=DAILY", "FREQ=SECONDLY", "INTERVAL=0", "COUNT=2", "BYDAY=MO,-1SU"]),
        st.from_regex(r"(FREQ|BY[A-Z]{3,6}|UNTIL|INTERVAL|WKST)=[-A-Z0-9,]{1,8}", fullmatch=True),
    ),
    max_size=4,
).map(lambda parts: "RRULE:" + ";".join(parts))
schedules = st.one_of(crons, rules, st.text(), st.sampled_from(["@daily", "@reboot", "@x"]))
zones = st.one_of(st.sampled_from(["UTC", "Europe/Berlin", "Mars", "/etc/passwd", ".."]), st.text())

values = {
    "command": st.one_of(st.text(), st.lists(st.text(), max_size=3)),
    "schedule": schedules,
    "schedule_timezone": zones,
    "timezone": zones,
    "environment": st.dictionaries(names, scalars, max_size=3),
    "concurrency_groups": st.lists(names, max_size=3),
    "limits": st.lists(names, max_size=2),
    "max_execution": st.one_of(st.floats(), st.integers(), st.sampled_from(["5m", "-1s", "1e9d"])),
    "start": st.one_of(st.sampled_from(["2026-01-01", "9999-12-31T23:59"]), st.text()),
    "retry_exit_codes": st.lists(st.integers(), max_size=3),
    "missed": st.sampled_from(["skip", "one", "all", "none"]),
}
job = st.fixed_dictionaries(
    {},
    optional={key: st.one_of(values.get(key, anything), scalars, anything) for key in JOB_KEYS},
)
groups = st.dictionaries(names, st.fixed_dictionaries({}, optional={"max": scalars}), max_size=3)
configurations = st.one_of(
    st.fixed_dictionaries(
        {"jobs": st.dictionaries(names, job, max_size=3)},
        optional={
            "job_groups": st.dictionaries(names, st.one_of(job, anything), max_size=2),
            "concurrency_groups": st.one_of(groups, anything),
            "environment": anything,
            "data_dir": st.one_of(st.text(), anything),
            "schedule_timezone": zones,
            "notify": anything,
            "config_d": st.one_of(st.text(max_size=10), scalars),
            "url": anything,
            "concurrency": anything,
            "queues": anything,
            "retention": anything,
            "shutdown_kill_grace": scalars,
        },
    ),
    st.dictionaries(names, anything, max_size=5),
    anything,
)


WHOLE = ("no jobs: there is nothing to run", "must hold a table at its root", "nested too deeply")


def judged(file: Path) -> None:
    """It can be run, or every problem has its place."""
    try:
        scheduled, problems = load(file, environ={})
    except ConfigurationError as error:
        problems = list(error.problems)
        assert any(not problem.warning for problem in problems)
    else:
        build(scheduled)[0].publication("somebody")
    for problem in problems:
        assert problem.file
        assert problem.message
        assert "\n" not in problem.message
        assert problem.line is None or problem.line >= 1
        # Each has a path or a line, but for what is said of a file as a whole.
        assert problem.path or problem.line or problem.message.startswith(WHOLE), str(problem)


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@many
@given(data=configurations)
@example(data={"jobs": {"a": {"command": "x", "cwd": "~nobody-of-that-name"}}})
@example(data={"jobs": {}, "data_dir": "~nobody-of-that-name"})
@example(data={"\0": None})
@example(data={"queues": {" ": {}}})
def test_any_json(folder: Path, data: Any) -> None:
    file = folder / "dsari.json"
    file.write_text(json.dumps(data))
    judged(file)


@some
@given(data=configurations)
def test_any_yaml(folder: Path, data: Any) -> None:
    file = folder / "any.yaml"
    file.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8", errors="replace")
    judged(file)


@some
@given(data=st.fixed_dictionaries({"jobs": st.dictionaries(names, job, max_size=3)}))
def test_any_toml(folder: Path, data: Any) -> None:
    file = folder / "headgate.toml"
    try:
        file.write_text("\n".join(table([], data)))
    except UnicodeEncodeError:
        return
    judged(file)


@some
@given(
    raw=st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "replace"))),
    kind=st.sampled_from(["headgate.toml", "a.json", "a.yaml"]),
)
@example(raw=b"jobs: {a: {command: x, schedule: '0 0 30 2 *'}}", kind="a.yaml")
@example(raw=b"jobs:\n  a: !!int x", kind="a.yaml")
@example(raw=b"a:\n\0", kind="a.yaml")
@example(raw=b"retention: 5", kind="a.yaml")
@example(raw=b"retention:", kind="a.yaml")
@example(raw=b"1.5: x", kind="a.yaml")
@example(raw=b"queues: {a b: 1}", kind="a.yaml")
@example(raw=b"concurrency: {a: 1}", kind="a.yaml")
@example(raw=b'concurrency: {"\'": 1}', kind="a.yaml")
@example(raw=b"concurrency: {limits: {a: 1}, rates: {a: 1/s}}", kind="a.yaml")
def test_any_bytes(folder: Path, raw: bytes, kind: str) -> None:
    file = folder / kind
    file.write_bytes(raw)
    judged(file)


@many
@given(when=schedules, zone=zones, name=st.text(min_size=1))
def test_any_schedule(when: str, zone: str, name: str) -> None:
    """A schedule has a next moment or none, or an error that is about it."""
    try:
        found = Schedule(when, timezone=zone).checked(name)
    except DeclarationError as error:
        about(error, name)
        return
    moment = found.timetable(name).after(1_800_000_000.0)
    assert moment is None or moment > 1_800_000_000.0


def about(error: DeclarationError, name: str) -> None:
    assert str(error).startswith(f"schedule {name!r}: ")


triggers = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(st.text(), anything),
            "description": scalars,
            "environment": st.one_of(st.dictionaries(names, scalars), anything),
            "schedule_time": st.one_of(st.text(), st.floats(), st.integers(), scalars),
            "schedule_timezone": zones,
        },
    ),
    anything,
)


@many
@given(data=triggers, kind=st.sampled_from(["json", "yaml"]))
def test_any_trigger(data: Any, kind: str) -> None:
    text = json.dumps(data) if kind == "json" else yaml.safe_dump(data, allow_unicode=True)
    try:
        found = read_trigger(text.encode("utf-8", "replace"), kind, "job", "trigger.json")
    except ConfigurationError as error:
        placed(error)
    else:
        assert found.schedule_time is None or found.schedule_time >= 0


@some
@given(raw=st.binary(), kind=st.sampled_from(["json", "yaml"]))
def test_any_bytes_as_a_trigger(raw: bytes, kind: str) -> None:
    try:
        read_trigger(raw, kind, "job", "trigger.json")
    except ConfigurationError as error:
        placed(error)


def placed(error: ConfigurationError) -> None:
    assert error.problems
    assert all(problem.file == "trigger.json" and problem.message for problem in error.problems)


crontab_lines = st.one_of(
    st.text(),
    st.tuples(crons, st.text(min_size=1)).map(" ".join),
    st.tuples(st.sampled_from(["@daily", "@reboot", "PATH=", "X = '"]), st.text()).map(" ".join),
)


@some
@given(rows=st.lists(crontab_lines, max_size=5), system=st.booleans())
def test_any_crontab_becomes_a_configuration_that_can_be_used(
    folder: Path, rows: list[str], system: bool
) -> None:
    found = crontab.read("\n".join(rows), "crontab", system=system)
    file = folder / "headgate.toml"
    file.write_text(crontab.to_toml(found, "crontab"), encoding="utf-8", errors="replace")
    try:
        scheduled, _ = load(file, environ={})
    except ConfigurationError as error:
        raise AssertionError(f"{[str(p) for p in error.problems]}\n{file.read_text()}") from error
    assert len(scheduled.jobs) == len(found.entries)


@some
@given(data=configurations)
def test_any_dsari_configuration_that_can_be_used_can_be_imported(folder: Path, data: Any) -> None:
    """And means the same afterwards."""
    file = folder / "dsari.json"
    file.write_text(json.dumps(data))
    try:
        scheduled, _ = load(file, environ={})
    except ConfigurationError:
        return
    made = folder / "headgate.toml"
    made.write_text(from_dsari(read(file), scheduled))
    again, _ = load(made, environ={})
    assert again.jobs == scheduled.jobs
    assert again.groups == scheduled.groups
    assert again.environment == scheduled.environment
