"""Each tick once, with five processes that tick, killed and started again all the while.

The short form has processes that only tick; the long one (`make prove-schedules`) real workers.
What ran is judged from the log that the runs themselves write."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate import Worker
from headgate.app import App
from headgate.jobs import FINAL, JobFilter
from headgate.schedules.planning import table_of
from headgate.stores.protocol import ScheduleRecord, TickRecord
from tests.schedules import scene
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("HEADGATE_PROOF") == "full"


@dataclass(frozen=True)
class Size:
    schedules: int
    when: str
    seconds: float
    kills: int
    ticks: int
    """At least so many."""
    slow: float
    """Seconds of a run of which there is one at a time: more than there is time for."""
    schedulers: int = 5


SHORT = Size(schedules=30, when="* * * * * *", seconds=5, kills=8, ticks=120, slow=0.13)
LONG = Size(schedules=1000, when="* * * * * H/20", seconds=185, kills=24, ticks=5000, slow=0.1)


@dataclass
class Stage:
    """The schedulers, the worker that runs what they submit, and the log."""

    app: App
    folder: Path
    size: Size
    random: random.Random = field(default_factory=lambda: random.Random(7))
    schedulers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "execution.log"

    def start(self) -> subprocess.Popen[bytes]:
        if FULL:
            # Real workers, which serve a queue in which there is nothing: a run that is killed
            # in the middle is started again, and that is not what is asked here.
            arguments = ["headgate", "worker", "tests.schedules.scene:app", "--queues", "none"]
        else:
            arguments = ["tests.schedules.scene"]
        with (self.folder / "schedulers.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def play(self) -> None:
        """Kill one of them at any moment and start another, again and again."""
        self.schedulers = [self.start() for _ in range(self.size.schedulers)]
        self.wait_for_ticks(1)
        end = time.monotonic() + self.size.seconds
        pause = self.size.seconds / self.size.kills
        while time.monotonic() < end or self.kills < self.size.kills:
            time.sleep(self.random.uniform(0.2, 1.6) * pause)
            victims = [self.random.randrange(len(self.schedulers))]
            if self.kills % 8 == 7:  # and now and then all at once
                victims = list(range(len(self.schedulers)))
            for n in victims:
                kill(self.schedulers[n])
                self.kills += 1
            for n in victims:
                self.schedulers[n] = self.start()
        self.wait_for_ticks(self.size.ticks)
        for process in self.schedulers:
            kill(process)

    def wait_for_ticks(self, count: int) -> None:
        def enough() -> bool:
            return sum(len(ticks) for ticks in self.ticks().values()) >= count

        wait_until(enough, why=self.said)

    def ticks(self) -> dict[str, list[TickRecord]]:
        store = self.app.store
        return {
            name: list(reversed(store.ticks(name, 100_000))) for name in list(self.app.schedules)
        }

    def said(self) -> str:
        return (self.folder / "schedulers.log").read_text()

    # --- the judgement -----------------------------------------------------------------------

    def judge(self) -> str:
        ticks = self.ticks()
        outcomes: Counter[str] = Counter()
        runs: dict[str, TickRecord] = {}
        for schedule in self.app.store.schedules():
            found = ticks[schedule.spec.name]
            self.complete(schedule, found)
            outcomes.update(tick.outcome for tick in found)
            for tick in found:
                if tick.outcome == "run":
                    assert tick.job not in runs, f"two ticks are one job: {tick}"
                    runs[tick.job or ""] = tick
            for tick in found:
                if tick.outcome == "merged":
                    self.merged(tick, runs)
        assert set(outcomes) <= {"run", "merged"}, outcomes
        assert sum(outcomes.values()) >= self.size.ticks
        assert outcomes["merged"], "nothing was ever merged: that was not tried"
        # No job but those of ticks, and each of them over.
        assert self.app.store.count(JobFilter(), limit=1_000_000) == len(runs)
        self.wait_done(len(runs))
        started = Counter(
            (line["job"], line["schedule"], line["tick"])
            for line in map(json.loads, self.log.read_text().splitlines())
            if line["ev"] == "start"
        )
        assert set(started.values()) == {1}, "a run was started twice"
        assert set(started) == {(id, tick.schedule, tick.at) for id, tick in runs.items()}
        return f"{dict(outcomes)} with {self.kills} kills"

    def complete(self, schedule: ScheduleRecord, ticks: list[TickRecord]) -> None:
        """None is missing from the first to the one that is due next, and none is there twice."""
        assert schedule.next_at is not None, schedule
        due = list(table_of(schedule.spec).between(schedule.since, schedule.next_at - 1))
        assert [tick.at for tick in ticks] == due, schedule.spec.name

    def merged(self, tick: TickRecord, runs: dict[str, TickRecord]) -> None:
        """The run that stands for it is of the same schedule and began no earlier."""
        run = runs[tick.job or ""]
        assert run.schedule == tick.schedule
        assert run.at < tick.at
        record = self.app.store.job(tick.job or "")
        assert record is not None
        for attempt in self.app.store.attempts(record.id):
            assert attempt.started_at >= tick.at, f"{tick} was merged into a run that ran"

    def wait_done(self, count: int) -> None:
        final = JobFilter(states=FINAL)
        wait_until(
            lambda: self.app.store.count(final, limit=1_000_000) >= count,
            2 * PATIENCE,
            "all runs are over",
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    size = LONG if FULL else SHORT
    for name, value in {
        "HEADGATE_URL": store_url(request.param, tmp_path),
        "HEADGATE_TEST_LOG": str(tmp_path / "execution.log"),
        "HEADGATE_TEST_SCHEDULES": str(size.schedules),
        "HEADGATE_TEST_WHEN": size.when,
        "HEADGATE_TEST_SECONDS": str(size.slow),
        "HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": "10",
    }.items():
        monkeypatch.setenv(name, value)
    app = importlib.reload(scene).app
    stage = Stage(app, tmp_path, size)
    worker = Worker(app, "runner", concurrency=20, scheduler=False, queues=["quick", "slow"])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield stage
    finally:
        for process in stage.schedulers:
            if process.poll() is None:
                kill(process)
        worker.stop()
        thread.join(60)
        app.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["sqlite", "postgres"], indirect=True)
def test_each_tick_is_recorded_once_and_each_run_started_once(stage: Stage) -> None:
    stage.play()
    print(stage.judge())
