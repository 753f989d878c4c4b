"""What a scheduler process does beside running jobs: triggers, signals, reload, tidying up."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from headgate.app import App
from headgate.codec import visible
from headgate.configuration.building import build, rebuild
from headgate.configuration.checking import load
from headgate.configuration.model import Scheduled
from headgate.configuration.problems import ConfigurationError, Problem
from headgate.configuration.removed import removed_runs
from headgate.configuration.runs import RUNS, TRIGGERED
from headgate.configuration.status import status
from headgate.configuration.triggers import Trigger, TriggerBox
from headgate.errors import HeadgateError, StoreError
from headgate.stores.relational.orphans import GONE_AFTER
from headgate.threads import in_thread
from headgate.waiting import rung_within

log = logging.getLogger("headgate.scheduler")

LOOK_EVERY = 0.5
REMOVED_EVERY = 10.0
TIDY_EVERY = 3600.0
TIDY_AFTER = 86400.0
"""Seconds for which a run's directory is left alone, whatever the store says of its job."""


class Scheduler:
    """A configuration under way in one process: the app, and what keeps it company."""

    def __init__(self, path: Path, url: str | None = None) -> None:
        self._path = path
        self._url = url
        scheduled, problems = load(path, url=url)
        report(problems)
        self.app, self._runs = build(scheduled)
        self._watching: asyncio.Task[None] | None = None
        self._seen: set[str] = set()
        self._wake = asyncio.Event()
        self._removed_at = 0.0
        self.app.on_worker_start(self._start)
        self.app.on_worker_stop(self._stop)
        self.app.hooks.order.append(self._order)

    @property
    def scheduled(self) -> Scheduled:
        return self._runs.scheduled

    # --- beside the jobs ------------------------------------------------------------------

    async def _start(self) -> None:
        self._watching = asyncio.create_task(self._watch(), name="headgate-scheduler")

    async def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        tidy_at = time.monotonic() + 60.0
        while True:
            await self._try("looking for triggers", self.look_for_triggers)
            await self._try("looking for runs that take long", self._runs.tell_over_runs)
            if time.monotonic() >= self._removed_at:
                # Seldom, but for the first look after a reload.
                self._removed_at = time.monotonic() + REMOVED_EVERY
                await self._try("looking for runs of removed jobs", self._tell_removed)
            if time.monotonic() >= tidy_at:
                await self._try("tidying up", self._tidy)
                tidy_at = time.monotonic() + TIDY_EVERY * random.uniform(0.75, 1.25)
            await rung_within(self._wake, LOOK_EVERY)
            self._wake.clear()

    async def _try(self, what: str, call: Callable[[], object]) -> None:
        """Nothing that goes wrong beside the jobs may end what runs them."""
        try:
            await in_thread(call)
        except StoreError as error:
            self._say_once(f"{what} failed ({error}); it will be tried again")
        # A defect of ours, or of a library: it is told with all there is to tell.
        except Exception:
            log.exception("%s failed; it will be tried again", what)

    def _say_once(self, told: str) -> None:
        if told not in self._seen:
            self._seen = {*self._seen, told} if len(self._seen) < 1000 else {told}
            log.warning("%s", visible(told))

    # --- triggers -----------------------------------------------------------------------------

    def look_for_triggers(self) -> int:
        """Submit what lies in the folder of triggers; how many there were."""
        scheduled = self.scheduled
        box = TriggerBox(
            *(scheduled.data_dir / "trigger", self._submit, self._say_once),
            zone=lambda job: scheduled.jobs[job].timezone,
            tell=lambda told: log.warning("%s", visible(told)),
        )
        return box.look(frozenset(scheduled.jobs))

    def _submit(self, trigger: Trigger) -> None:
        task = self.app.tasks[trigger.job].using(idempotency_key=trigger.key)
        due = trigger.schedule_time
        if due is not None and due > time.time():
            task = task.using(run_at=datetime.fromtimestamp(due, UTC))
        handle = task.submit(
            environment=trigger.environment or None,
            trigger=f"{TRIGGERED}:{trigger.type}" if trigger.type else TRIGGERED,
            schedule_time=due,
        )
        log.info(
            "[%s %s] triggered%s%s",
            *(trigger.job, handle.id, f" by {visible(trigger.type)}" if trigger.type else ""),
            f": {visible(trigger.description)}" if trigger.description else "",
        )

    # --- orders ---------------------------------------------------------------------------------

    async def _order(self, what: str) -> bool:
        if what == "reload":
            return await self._reload()
        if what == "look":
            self._wake.set()
        await in_thread(self.print_status)
        return False

    def print_status(self) -> None:
        lines = "\n".join(visible(line) for line in status(self.app.store, self.scheduled))
        print(lines, file=sys.stderr, flush=True)

    async def _reload(self) -> bool:
        """Take the configuration as it is now; if anything is wrong with it, the one in force
        stays in force."""
        try:
            scheduled, problems = await in_thread(lambda: load(self._path, url=self._url))
            report(problems)
            if scheduled.config.url != self.scheduled.config.url:
                log.warning("url has changed: another store is used only after a restart")
            rebuild(self.app, scheduled, self._runs)
        except ConfigurationError as error:
            report(error.problems)
            log.error("the configuration was not reloaded: the one in force stays")
            return False
        except HeadgateError as error:
            log.error("the configuration was not reloaded (%s)", error)
            return False
        log.info("the configuration was reloaded: %d jobs", len(scheduled.jobs))
        self._removed_at = 0.0
        return True

    def _tell_removed(self) -> None:
        for name, runs in removed_runs(self.app.store, self.scheduled.jobs).items():
            told = ", ".join(run.id for run in runs[:3]) + (", …" if len(runs) > 3 else "")
            self._say_once(
                f"{name} was removed from the configuration and {len(runs)} of its runs"
                f" wait ({told}): they will be cancelled, unless a scheduler that has {name} is"
                f" there within {GONE_AFTER:.0f} s"
            )

    # --- tidying up ---------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Directories of runs go when their jobs have been pruned."""
        old = time.time() - TIDY_AFTER
        for job in _folders(self.scheduled.data_dir / RUNS):
            for run in _folders(job):
                old_run = _is_id(run.name) and run.stat().st_mtime < old
                if old_run and self.app.store.job(run.name) is None:
                    shutil.rmtree(run, ignore_errors=True)


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []  # not there yet, or gone meanwhile


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def report(problems: list[Problem] | tuple[Problem, ...]) -> None:
    for problem in problems:
        tell = log.warning if problem.warning else log.error
        tell("%s", visible(str(problem)))


def from_environment(environ: Mapping[str, str]) -> App:
    """The app of the scheduler that the command line asked for, in a worker process of it."""
    from headgate.configuration.variables import CONFIG, URL

    return Scheduler(Path(environ[CONFIG]), environ.get(URL) or None).app
