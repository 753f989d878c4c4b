"""Triggers: a file in `data_dir/trigger/JOB/` asks for a run of that job.

A file is first moved aside under a name of its own, so that what somebody writes in its place
meanwhile is another trigger; then read, submitted, and deleted. The submission carries a key
that this name decides: whoever finds it again, after a crash or beside us, submits the same run
and not a second one. Nothing else of a file would do: a link, or a copy that keeps its time, may
be like the one before it in all but that.
"""

from __future__ import annotations

import os
import stat as modes
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from headgate.configuration import section as read
from headgate.configuration.jobchecks import zone_of
from headgate.configuration.problems import ConfigurationError, Problem, Problems
from headgate.configuration.reading import KINDS, kind_of, parse
from headgate.configuration.section import Section, Wrong

NAMES = ("trigger.json", "trigger.yaml", "trigger.yml", "trigger.toml")
TAKEN = ".taken"
BAD = ".bad"
SETTLED = 2.0
"""Seconds after its last change in which a file that cannot be read may still be being written."""
MAX_BYTES = 1024 * 1024
MAX_TYPE = 64
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Trigger:
    """One wish for a run."""

    job: str
    key: str = ""
    type: str = ""
    description: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    schedule_time: float | None = None
    """None: at once."""


def read_trigger(raw: bytes, kind: str, job: str, file: str, zone: str = "UTC") -> Trigger:
    """A trigger from the bytes of its file, or a `ConfigurationError` with all its problems."""
    text, data = parse(raw, kind, file)
    del text
    problems = Problems(lambda _: (file, None))
    table = Section(data, (), problems)
    zone = table.take("schedule_timezone", zone_of, zone)
    found = Trigger(
        job=job,
        type=table.take("type", _type, ""),
        description=table.take("description", read.text, ""),
        environment=read.environment(table, "environment"),
        schedule_time=table.take("schedule_time", lambda value: _moment(value, zone), None),
    )
    table.done(
        ["type", "description", "environment", "schedule_time", "schedule_timezone"], strict=False
    )
    problems.raise_if_fatal()
    return found


def _type(value: object) -> str:
    told = read.text(value)
    if len(told) > MAX_TYPE:
        raise Wrong(f"has {len(told)} characters, at most {MAX_TYPE}")
    return told


def _moment(value: object, zone: str) -> float:
    """Seconds since the epoch, or ISO 8601; without an offset it is a time of `zone`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        moment = float(value) if abs(value) < _LATEST else _LATEST
    else:
        told = read.text(value)
        try:
            stamp = datetime.fromisoformat(told)
            if stamp.tzinfo is None:
                stamp = stamp.replace(tzinfo=ZoneInfo(zone))
            moment = stamp.timestamp()
        except (ValueError, OverflowError):
            raise Wrong(
                f"must be seconds since 1970 or a time like 2026-01-31T06:00, got {kind_of(value)}"
            ) from None
    if not 0 <= moment < _LATEST:
        raise Wrong(f"must be a moment from 1970 to 8999, got {kind_of(value)}")
    return moment


# --- the folder ------------------------------------------------------------------------------


class TriggerBox:
    """The folder of triggers: takes what lies in it, sets aside what cannot be used."""

    def __init__(
        self,
        folder: Path,
        submit: Callable[[Trigger], None],
        report: Callable[[str], None],
        *,
        zone: Callable[[str], str] = lambda _: "UTC",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`report` is called at every look for what lies there still; `tell` once for each file
        that is set aside. `zone`: the one of a job, by its name, for times that name none."""
        self._tell = tell or report
        self._folder = folder
        self._submit = submit
        self._report = report
        self._zone = zone

    def look(self, jobs: frozenset[str]) -> int:
        """Take all that is there now; how many were submitted. Errors of the file system and of
        single files are reported, never raised; those of the store are raised, and what they
        concern is found again by the next look."""
        try:
            entries = sorted(self._folder.iterdir())
            folders = [entry for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return 0
        except OSError as error:
            self._report(f"{self._folder}: cannot be looked into: {error.strerror}")
            return 0
        for entry in entries:
            if entry.name in NAMES:
                self._report(f"{entry}: is of no job: it belongs into {self._folder}/JOB/")
        return sum(self._look_into(folder, jobs) for folder in folders)

    def _look_into(self, folder: Path, jobs: frozenset[str]) -> int:
        count = 0
        try:
            for name in NAMES:
                file = folder / name
                if file.is_file():
                    self._take(file)
                elif os.path.lexists(file):
                    # A pipe or a directory, or a link to nothing: to read it could take for ever.
                    self._report(f"{file}: is no regular file: it triggers nothing; take it away")
            taken = [file for file in folder.iterdir() if _is_taken(file)]
            taken.sort(key=_written_at)
        except OSError as error:
            self._report(f"{folder}: a trigger cannot be taken: {error.strerror}")
            return 0
        for file in taken:
            try:
                count += self._use(file, jobs)
            except FileNotFoundError:
                continue  # somebody else who looks here was quicker
            except OSError as error:
                self._report(f"{file}: cannot be read: {error.strerror}")
        return count

    def _take(self, file: Path) -> None:
        """Out of the way of the next one. What others write to `file` from now on is a new file."""
        try:
            file.rename(file.with_name(f"{file.name}.{uuid.uuid4().hex}{TAKEN}"))
        except FileNotFoundError:
            pass  # somebody else who looks here was quicker

    def _use(self, file: Path, jobs: frozenset[str]) -> bool:
        stat = file.stat()
        name = _original(file)
        job = file.parent.name
        written = str(file.with_name(name))
        try:
            if job not in jobs:
                raise refused(f"there is no job {job!r}", written)
            if not modes.S_ISREG(stat.st_mode):
                raise refused("is no regular file", written)
            if stat.st_size > MAX_BYTES:
                raise refused(f"has more than {MAX_BYTES:,} bytes", written)
            kind = KINDS[Path(name).suffix]
            found = read_trigger(file.read_bytes(), kind, job, written, self._zone(job))
        except ConfigurationError as error:
            # Whoever does not move a finished file here may still be writing this one.
            if abs(time.time() - stat.st_mtime) >= SETTLED:
                self._set_aside(file, error)
            return False
        key = f"trigger/{job}/{file.name}"
        self._submit(
            Trigger(job, key, found.type, found.description, found.environment, found.schedule_time)
        )
        file.unlink(missing_ok=True)
        return True

    def _set_aside(self, file: Path, error: ConfigurationError) -> None:
        for problem in error.problems:
            self._tell(str(problem))
        aside = file.with_name(_original(file) + BAD)
        if aside.exists():
            aside = file.with_name(file.name.removesuffix(TAKEN) + BAD)
        file.rename(aside)
        self._tell(f"{aside}: set aside; put it right and move it back")


def refused(message: str, file: str) -> ConfigurationError:
    return ConfigurationError([Problem(message, file=file)])


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0  # somebody else who looks here was quicker


def _is_taken(file: Path) -> bool:
    """Moved aside by us, or by another scheduler that looks here."""
    return file.name.endswith(TAKEN) and _original(file) in NAMES


def _original(file: Path) -> str:
    """trigger.json.1f0c….taken → trigger.json"""
    return file.name.removesuffix(TAKEN).rpartition(".")[0] or file.name
