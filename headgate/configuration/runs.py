"""What a scheduler does round each run: prepares its directory and environment, reads what it
leaves behind, and notes what somebody wants to be told of.

`before` and `after` are called in threads, `on_end` in the event loop.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.commands.command import CommandRun, Setting
from headgate.configuration.environment import (
    NO_PAST,
    Past,
    RunFacts,
    exit_code_of,
    merged,
    past_runs,
    schedule_time,
    variables,
)
from headgate.configuration.model import JobConfig, Occasion, Scheduled
from headgate.configuration.problems import ConfigurationError
from headgate.configuration.reading import KINDS, parse
from headgate.jobs import Claimed, Finish, NewJob

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.notify import Facts

log = logging.getLogger("headgate.scheduler")

RUNS = "runs"
TRIGGERED = "file"
RETURN_DATA = ("return_data.json", "return_data.yaml")
MAX_RETURN_DATA = 1024 * 1024


@dataclass(slots=True)
class Begun:
    """A run under way in this process."""

    job: JobConfig
    run: CommandRun
    past: Past
    began: float
    due: float
    """When it should have begun: the same for each of its attempts."""
    exit_code: int | None = None
    """Set when its command has ended."""
    over_run: bool = False
    """Somebody was told that it takes long."""


class Runs:
    """The runs of one scheduler process. `scheduled` is replaced when it is told to reload."""

    def __init__(self, app: App, scheduled: Scheduled) -> None:
        self.app = app
        self.scheduled = scheduled
        self._lock = threading.Lock()
        self._begun: dict[int, Begun] = {}

    def directory(self, job: str, run: str) -> Path:
        return self.scheduled.data_dir / RUNS / job / run

    # --- before and after ---------------------------------------------------------------------

    def before(self, job: JobConfig, run: CommandRun) -> Setting:
        wants_past = past_runs(self.app.store, job.name)
        due = self._due(run)
        directory = self.directory(job.name, run.job)
        directory.mkdir(parents=True, exist_ok=True)
        more = run.trigger.partition(":")[2]
        facts = RunFacts(
            job_name=job.name,
            run_id=run.job,
            data_dir=self.scheduled.data_dir,
            run_dir=directory,
            schedule_time=due,
            start_time=run.started_at,
            trigger_type=trigger_type(run.trigger),
            concurrency_group=run.group if run.group in job.concurrency_groups else None,
            job_group=job.job_group,
            jenkins=job.jenkins_environment,
            attempt=run.attempt,
            past=wants_past,
        )
        told = merged(variables(facts), {"TRIGGER_KIND": more} if more else {})
        told = merged(told, self.scheduled.environment)
        whole = merged(told, job.environment, run.environment or {})
        with self._lock:
            self._begun[run.token] = Begun(job, run, wants_past, time.monotonic(), due)
        return Setting(
            environment=told,
            arguments=(job.name, run.job) if job.command_append_run else (),
            # The variable says where a run begins, if somebody sets it.
            cwd=job.cwd if job.cwd is not None else whole["PWD"],
        )

    def _due(self, run: CommandRun) -> float:
        if run.schedule_time is not None:
            return run.schedule_time
        # An attempt after the first was ready when its delay was over, which is another matter.
        record = self.app.store.job(run.job) if run.attempt > 1 else None
        return run.ready_at if record is None else schedule_time(record)

    def after(self, job: JobConfig, run: CommandRun, code: int) -> Any:
        """What the run wants to be known of it; its directory goes if it left nothing there."""
        with self._lock:
            if (begun := self._begun.get(run.token)) is not None:
                begun.exit_code = code
        directory = self.directory(job.name, run.job)
        found = read_return_data(directory)
        try:
            directory.rmdir()
        except OSError:
            pass  # it holds something: kept as long as the job is
        return None if found is None else {"exit_code": code, "return_data": found}

    # --- how it ended -------------------------------------------------------------------------

    def on_end(self, claimed: Claimed, finish: Finish) -> Sequence[NewJob]:
        """The notifications that are stored together with the end of a run."""
        with self._lock:
            begun = self._begun.pop(claimed.token, None)
        job = self.scheduled.jobs.get(claimed.task)
        if job is None or finish.outcome not in ("succeeded", "failed"):
            return ()
        past = begun.past if begun is not None else NO_PAST
        occasion: Occasion
        if finish.outcome == "failed":
            occasion = "failure"
        elif past.last is not None and not past.last.good:
            occasion = "recovery"
        else:
            return ()
        if occasion not in job.notify:
            return ()
        facts = facts_of(occasion, job, claimed, begun, finish)
        return [call.new_job(parent=claimed.job) for call in self.notifications(facts)]

    def notifications(self, facts: Facts) -> list[Any]:
        """One call for each way of telling, so that one that fails is not told twice by another."""
        notify = self.scheduled.notify
        task = self.app.tasks[NOTIFY]
        ways = [("command", notify.command), ("webhook", notify.webhook)]
        return [task.call(way=way, facts=dict(facts)) for way, given in ways if given is not None]

    def tell_over_runs(self) -> None:
        """Tell of runs that take longer than they should; called now and then."""
        now = time.monotonic()
        with self._lock:
            late = [b for b in self._begun.values() if not b.over_run and _is_late(b, now)]
        for begun in late:
            if "over-run" in begun.job.notify:
                facts = facts_of("over-run", begun.job, None, begun, None)
                for call in self.notifications(facts):
                    key = f"over-run/{begun.run.job}/{begun.run.attempt}/{call.bound['way']}"
                    call.task.using(idempotency_key=key).submit(**call.bound)
            begun.over_run = True
            log.warning(
                "%s %s has been running for %.0f s",
                begun.job.name,
                begun.run.job,
                now - begun.began,
            )


NOTIFY = "headgate.notify"


def _is_late(begun: Begun, now: float) -> bool:
    allowed = begun.job.over_run_after or begun.job.max_execution
    return allowed is not None and now - begun.began >= allowed


def facts_of(
    occasion: Occasion,
    job: JobConfig,
    claimed: Claimed | None,
    begun: Begun | None,
    finish: Finish | None,
) -> dict[str, str | int | float | None]:
    """What is told of a run."""
    facts: dict[str, str | int | float | None] = {
        "occasion": occasion,
        "job_name": job.name,
        "job_group": job.job_group,
        "run_id": claimed.job if claimed is not None else begun.run.job if begun else "",
        "host": socket.gethostname(),
    }
    if begun is not None:
        last = begun.past.last
        facts |= {
            "trigger_type": trigger_type(begun.run.trigger),
            "attempt": begun.run.attempt,
            "concurrency_group": begun.run.group,
            "schedule_time": begun.due,
            "start_time": begun.run.started_at,
            "seconds": round(time.monotonic() - begun.began, 3),
            "previous_run_id": last.run_id if last is not None else None,
            "previous_exit_code": last.exit_code if last is not None else None,
        }
    if finish is not None:
        error = finish.error
        known = None if begun is None else begun.exit_code
        message = error.message if error is not None else ""
        facts |= {
            "exit_code": exit_code_of(finish.outcome, finish.reason, message)
            if known is None
            else known,
            "stop_time": round(time.time(), 3),
            "reason": finish.reason or finish.outcome,
            "error": error.message if error is not None else None,
        }
    return facts


def trigger_type(trigger: str) -> str:
    """What started a run: `schedule`, `file` (what that says of itself stands behind the colon), or
    `submit` where nobody says anything else."""
    return trigger.partition(":")[0] or "submit"


def read_return_data(directory: Path) -> Any:
    """What a run wrote down to be kept with it, in return_data.json or .yaml; None: nothing."""
    for name in RETURN_DATA:
        file = directory / name
        try:
            if not file.is_file():
                continue
            if file.stat().st_size > MAX_RETURN_DATA:
                log.warning("%s has more than %d bytes: it is not kept", file, MAX_RETURN_DATA)
                continue
            raw = file.read_bytes()
        except OSError as error:
            log.warning("%s cannot be read: %s", file, error.strerror)
            continue
        try:
            return (
                json.loads(raw)
                if name.endswith("json")
                else parse(raw, KINDS[file.suffix], name)[1]
            )
        except (ValueError, RecursionError, ConfigurationError) as error:
            log.warning("%s cannot be used: %s", file, error)
    return None
