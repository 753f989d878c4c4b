"""The demo from beginning to end: submit, watch, kill, wait, stop, and let the checker judge."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Generator, Sequence
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
from headgate.stores.protocol import Store

TENANTS = {"globex": (300, 60), "initech": (75, 15), "hooli": (15, 3)}
"""By tenant: mails and renderings."""
SHORTEST, LONGEST = 0.04, 0.16
LOOK_EVERY = 0.1
KILL_AT = 0.3
"""The share of jobs that are done when a worker is killed."""
DEADLINE = 50.0
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
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="headgate-demo-") as name:
        folder = Path(name)
        url, log = f"sqlite:///{folder}/demo.db", folder / "execution.log"
        app = App(config=Config(url=url))
        fleet = Fleet(folder, url, log)
        with app:
            try:
                fleet.start()
                with opened(live, quiet) as view:
                    jobs = _submit(app)
                    story = _Story(app.store, fleet, view, jobs)
                    story.watch()
            finally:
                with _deaf_to_interrupts():
                    fleet.stop()
        logs = [log] if log.exists() else []
        report = check(
            logs, limits=LIMITS, jobs=jobs, kills=story.kills, room=CONCURRENCY * len(NAMES)
        )
        return Verdict(report, len(story.kills), story.trouble)


def _submit(app: App) -> list[Job]:
    """The largest tenant comes first: without turns the others would wait for all of it."""
    mail, render = declare(app)
    dice = random.Random(7)  # noqa: S311
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
    """What happens between the submit and the last end."""

    def __init__(self, store: Store, fleet: Fleet, view: View, jobs: Sequence[Job]) -> None:
        self.kills: list[Kill] = []
        self.trouble: list[str] = []
        self._store, self._fleet, self._view = store, fleet, view
        self._total = len(jobs)
        self._victim: str | None = None
        self._killed_at = 0.0
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def watch(self) -> None:
        for name, (mails, renderings) in TENANTS.items():
            self._view.say(f"{name} submits {mails} mails and {renderings} renderings")
        done = 0
        while done < self._total:
            if (ended := self._fleet.ended()) is not None:
                self.trouble.append(ended)
                return
            if self.elapsed > DEADLINE:
                self.trouble.append(f"only {done} of {self._total} jobs ended in {DEADLINE:g} s")
                return
            time.sleep(LOOK_EVERY)
            done = self._look()
            self._disturb(done)
        self._look()

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
                self._total,
                [values[name] for name in names],
                waiting,
                store.workers(),
            )
        )
        return done

    def _disturb(self, done: int) -> None:
        if not self.kills and done >= self._total * KILL_AT:
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
                if worker.name == self._victim and worker.pid not in pids and worker.running:
                    took = f"{self.elapsed - self._killed_at:.1f} s later"
                    self._view.say(
                        f"{worker.name} (process {worker.pid}) works in its place, {took}"
                    )
                    self._victim = None
                    return


def _of(filter: JobFilter, tenant: str) -> JobFilter:
    return JobFilter(states=filter.states, group=f"tenant/{tenant}")


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """SIGTERM ends the demo as Ctrl-C does: through every `finally`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _deaf_to_interrupts() -> Generator[None]:
    """A second Ctrl-C must not leave workers behind: stopping them takes bounded time."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
