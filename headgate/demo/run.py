"""The demo from beginning to end: submit, watch, kill, wait, stop, and let the checker judge."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from headgate.app import App
from headgate.checker import Job, Kill, Report, check
from headgate.config import Config
from headgate.demo.fleet import CONCURRENCY, NAMES, Fleet, busiest, kill
from headgate.demo.tasks import LIMITS, declare
from headgate.demo.view import Scene, View, opened
from headgate.execlog import now
from headgate.jobs import JobFilter

TENANTS = {"globex": (240, 50), "initech": (80, 25), "hooli": (16, 5)}
"""By tenant: mails and renderings."""
SHORTEST, LONGEST = 0.08, 0.3
LOOK_EVERY = 0.1
KILL_AT = 0.3
"""The share of jobs that are done when a worker is killed."""
DEADLINE = 40.0
"""Seconds for the jobs; starting, stopping and judging have the rest of the minute."""
STARTED: JobFilter = JobFilter(states=frozenset(("running", "succeeded", "failed", "cancelled")))
ENDED: JobFilter = JobFilter(states=frozenset(("succeeded", "failed", "cancelled")))


@dataclass(slots=True)
class Verdict:
    """The checker's report, and what the demo adds: was it all done in time?"""

    report: Report
    killed: int
    trouble: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        return self.report.ok and not self.trouble

    def line(self) -> str:
        r = self.report
        return (
            f"demo: {r.jobs} jobs, {r.groups} groups, {len(r.over)} over limit, {len(r.lost)} lost"
        )

    def words(self) -> str:
        """What stands above the last line."""
        return "\n".join([*self.trouble, self.report.text()])

    def data(self) -> dict[str, Any]:
        r = self.report
        return {
            "ok": self.ok,
            "jobs": r.jobs,
            "attempts": len(r.attempts),
            "groups": r.groups,
            "over": [str(item) for item in r.over],
            "lost": [str(item) for item in r.lost],
            "doubled": [str(item) for item in r.doubled],
            "broken": r.broken,
            "killed_attempts": r.explained,
            "usage": {name: use.ratio for name, use in r.usage.items()},
            "trouble": self.trouble,
        }


def run(*, live: bool, quiet: bool = False) -> Verdict:
    """Run it, in a temporary folder that is gone afterwards."""
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="headgate-demo-") as name:
        folder = Path(name)
        url, log = f"sqlite:///{folder}/demo.db", folder / "execution.log"
        app = App(config=Config(url=url))
        fleet = Fleet(folder, url, log)
        with app:
            try:
                fleet.start()
                with opened(live, quiet) as view:
                    story = _Story(app, fleet, view)
                    story.tell()
            finally:
                with _deaf_to_interrupts():
                    fleet.stop()
        logs = [log] if log.exists() else []
        report = check(
            logs, limits=LIMITS, jobs=story.jobs, kills=story.kills, room=CONCURRENCY * len(NAMES)
        )
        return Verdict(report, len(story.kills), story.trouble)


def _submit(app: App) -> list[Job]:
    """The largest tenant comes first: without turns the others would wait for all of it."""
    mail, render = declare(app)
    dice = random.Random(7)  # the same demo every time
    jobs: list[Job] = []
    for tenant, (mails, renderings) in TENANTS.items():
        calls = [mail.call(tenant, dice.uniform(SHORTEST, LONGEST)) for _ in range(mails)]
        calls += [render.call(tenant, dice.uniform(SHORTEST, LONGEST)) for _ in range(renderings)]
        handles = app.submit_many(calls)
        submitted = now()
        both = {f"tenant/{tenant}": 1, "mail-api": 1}
        either = {f"tenant/{tenant}": 1}
        jobs += [
            Job(
                handle.id,
                submitted=submitted,
                groups=both if n < mails else either,
                one_of=[] if n < mails else [["render-a", "render-b"]],
                turn=tenant,
            )
            for n, handle in enumerate(handles)
        ]
    return jobs


class _Story:
    """What happens between the start of the workers and the last end."""

    def __init__(self, app: App, fleet: Fleet, view: View) -> None:
        self.jobs: list[Job] = []
        self.kills: list[Kill] = []
        self.trouble: list[str] = []
        self._app, self._store, self._fleet, self._view = app, app.store, fleet, view
        self._victim: str | None = None
        self._killed_at = 0.0
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def tell(self) -> None:
        if not self._wait_until(lambda: self._fleet.ready(self._store), "the workers are there"):
            return
        self._view.say(f"{' and '.join(NAMES)} are ready")
        self.jobs = _submit(self._app)
        for name, (mails, renderings) in TENANTS.items():
            self._view.say(f"{name} submits {mails} mails and {renderings} renderings")
        self._wait_until(self._all_done, "all jobs have ended")

    def _wait_until(self, reached: Callable[[], bool], what: str) -> bool:
        while not reached():
            if (ended := self._fleet.ended()) is not None:
                self.trouble.append(ended)
                return False
            if self.elapsed > DEADLINE:
                self.trouble.append(f"it took more than {DEADLINE:g} s until {what}")
                return False
            time.sleep(LOOK_EVERY)
        return True

    def _all_done(self) -> bool:
        done = self._look()
        self._disturb(done)
        return done == len(self.jobs)

    def _look(self) -> int:
        store = self._store
        done = store.count(ENDED)
        waiting = {
            tenant: (
                sum(TENANTS[tenant]) - store.count(_of(STARTED, tenant)),
                sum(TENANTS[tenant]),
            )
            for tenant in TENANTS
        }
        names = [*(f"tenant/{tenant}" for tenant in TENANTS), "mail-api", "render-a", "render-b"]
        values = store.values(names)
        self._view.show(
            Scene(
                self.elapsed,
                done,
                len(self.jobs),
                [values[name] for name in names],
                waiting,
                store.workers(),
            )
        )
        return done

    def _disturb(self, done: int) -> None:
        if not self.kills and done >= len(self.jobs) * KILL_AT:
            worker = busiest(self._store)
            if worker is None:
                return
            self.kills.append(kill(worker))
            self._victim, self._killed_at = worker.name, self.elapsed
            self._view.say(
                f"{worker.name} (process {worker.pid}) is killed with {worker.running} jobs running"
            )
        elif self._victim is not None:
            pids = {kill.pid for kill in self.kills}
            for worker in self._store.workers():
                if worker.name == self._victim and worker.pid not in pids:
                    took = f"{self.elapsed - self._killed_at:.1f} s later"
                    self._view.say(f"process {worker.pid} takes its place, {took}")
                    self._victim = None
                    return


def _of(filter: JobFilter, tenant: str) -> JobFilter:
    return JobFilter(states=filter.states, group=f"tenant/{tenant}")


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """SIGTERM and a closed terminal end the demo as Ctrl-C does: through every `finally`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deaf_to_interrupts() -> Generator[None]:
    """A second Ctrl-C must not leave workers behind: stopping them takes bounded time."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
