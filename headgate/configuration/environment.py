"""What a command finds in its environment: the facts of its run and of those before it.

The environment is built from nothing, as cron's is: a command behaves the same whoever
started the scheduler. What is told automatically comes first; the configuration, the job and
the trigger may override it, in this order.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headgate.jobs import JobRecord, State
from headgate.schedules.template import tick_of
from headgate.stores.protocol import Store

DEFAULT_PATH = "/usr/bin:/bin"

_EXIT = re.compile(r"\bexit(?: code)? (\d{1,3})\b")
_TICKS = 20
TERMINATED = 143
KILLED = 137


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that is over, as the next one hears of it."""

    run_id: str
    schedule_time: float
    start_time: float
    stop_time: float
    exit_code: int

    @property
    def good(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Past:
    """The last run of a job, the last good and the last bad one; None where there is none."""

    last: PastRun | None = None
    good: PastRun | None = None
    bad: PastRun | None = None


NO_PAST = Past()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """All that the variables of one run depend on."""

    job_name: str
    run_id: str
    data_dir: Path
    run_dir: Path
    schedule_time: float
    start_time: float
    trigger_type: str = "schedule"
    concurrency_group: str | None = None
    job_group: str | None = None
    jenkins: bool = False
    attempt: int = 1
    past: Past = NO_PAST


def variables(facts: RunFacts) -> dict[str, str]:
    """Everything that is told without being asked for.

    >>> facts = RunFacts("backup", "0190", Path("/var"), Path("/var/runs/backup/0190"), 10.5, 12.0)
    >>> told = variables(facts)
    >>> told["JOB_NAME"], told["SCHEDULE_TIME"], told["TRIGGER_TYPE"]
    ('backup', '10.5', 'schedule')
    """
    told = {
        "CI": "true",
        "DSARI": "true",
        "HEADGATE": "true",
        "PATH": os.environ.get("PATH") or DEFAULT_PATH,
        **_user(),
        "PWD": str(facts.run_dir),
        "DATA_DIR": str(facts.data_dir),
        "JOB_NAME": facts.job_name,
        "JOB_DIR": str(facts.run_dir.parent),
        "RUN_ID": facts.run_id,
        "RUN_DIR": str(facts.run_dir),
        "RUN_ATTEMPT": str(facts.attempt),
        "SCHEDULE_TIME": seconds(facts.schedule_time),
        "START_TIME": seconds(facts.start_time),
        "TRIGGER_TYPE": facts.trigger_type,
        "TRIGGER_DIR": str(facts.data_dir / "trigger" / facts.job_name),
    }
    if facts.concurrency_group is not None:
        told["CONCURRENCY_GROUP"] = facts.concurrency_group
    if facts.job_group is not None:
        told["JOB_GROUP"] = facts.job_group
    told |= _of_run("PREVIOUS_", facts.past.last)
    told |= _of_run("PREVIOUS_GOOD_", facts.past.good)
    told |= _of_run("PREVIOUS_BAD_", facts.past.bad)
    return told | (_jenkins(facts) if facts.jenkins else {})


def _user() -> dict[str, str]:
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return {}  # nobody knows the user: better no variable than a guess
    return {"LOGNAME": entry.pw_name, "HOME": entry.pw_dir}


def _of_run(prefix: str, run: PastRun | None) -> dict[str, str]:
    if run is None:
        return {}
    return {
        f"{prefix}RUN_ID": run.run_id,
        f"{prefix}SCHEDULE_TIME": seconds(run.schedule_time),
        f"{prefix}START_TIME": seconds(run.start_time),
        f"{prefix}STOP_TIME": seconds(run.stop_time),
        f"{prefix}EXIT_CODE": str(run.exit_code),
    }


def _jenkins(facts: RunFacts) -> dict[str, str]:
    return {
        "BUILD_ID": facts.run_id,
        "BUILD_NUMBER": facts.run_id,
        "BUILD_TAG": f"dsari-{facts.job_name}-{facts.run_id}",
        "BUILD_URL": f"{facts.run_dir.absolute().as_uri()}/",
        "EXECUTOR_NUMBER": "0",
        "JENKINS_URL": f"{facts.data_dir.absolute().as_uri()}/",
        "NODE_NAME": "master",
        "WORKSPACE": str(facts.run_dir),
    }


def seconds(moment: float) -> str:
    """Seconds since the epoch, as short as they can be told to the millisecond.

    >>> seconds(1460822675.99), seconds(5.0)
    ('1460822675.99', '5.0')
    """
    return str(round(moment, 3))


# --- the runs before --------------------------------------------------------------------------


def past_runs(store: Store, job: str) -> Past:
    """The runs of a job that are over, asked of the store: a run hears of those before it on
    whatever machine they were. Bounded: among very many runs of others, only those of the last
    ticks of its schedule are found."""
    good = _latest(store, job, "succeeded")
    bad = _latest(store, job, "failed")
    if good is None or bad is None:
        ticks = store.ticks(job, limit=_TICKS)
        found = [store.job(tick.job) for tick in ticks if tick.job is not None]
        ended = [_past_run(store, record) for record in found if record is not None]
        good = good or _last(run for run in ended if run is not None and run.good)
        bad = bad or _last(run for run in ended if run is not None and not run.good)
    return Past(_last(run for run in (good, bad) if run is not None), good, bad)


def _last(runs: Iterable[PastRun]) -> PastRun | None:
    return max(runs, key=lambda run: run.stop_time, default=None)


def _latest(store: Store, job: str, state: State) -> PastRun | None:
    record = store.latest(job, state)
    return None if record is None else _past_run(store, record)


def _past_run(store: Store, record: JobRecord) -> PastRun | None:
    """A job as a run that is over; None while it is not, or where it was cancelled."""
    if record.state not in ("succeeded", "failed") or record.finished_at is None:
        return None
    attempts = store.attempts(record.id)
    return PastRun(
        run_id=record.id,
        schedule_time=schedule_time(record),
        start_time=attempts[-1].started_at if attempts else record.created_at,
        stop_time=record.finished_at,
        exit_code=exit_code(record),
    )


def schedule_time(record: JobRecord) -> float:
    """When the run was due: its tick, what its trigger said, else when it could have started."""
    tick = tick_of(record.options)
    if tick is not None:
        return tick[1]
    told: Any = json.loads(record.args)
    moment: object = cast("dict[str, Any]", told).get("schedule_time")
    if isinstance(moment, int | float):
        return float(moment)
    return record.run_at if record.run_at is not None else record.created_at


def exit_code(record: JobRecord) -> int:
    """How the command of this job ended; 1 where it never came to an end of its own."""
    error = record.error
    return exit_code_of(record.state, record.reason, error.message if error is not None else "")


def exit_code_of(state: str, reason: str, message: str) -> int:
    """The same, from what is said of an end."""
    if state == "succeeded":
        return 0
    for text in (reason, message):
        if (found := _EXIT.search(text)) is not None:
            return int(found[1])
    if reason == "timeout":
        return TERMINATED
    return KILLED if reason in ("lost", "crashed") else 1


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """The layers of an environment, the later over the earlier."""
    found: dict[str, str] = {}
    for layer in layers:
        found |= layer
    return found
