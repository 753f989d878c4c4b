"""`headgate schedules`, and workers that tick, as people start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli import root
from headgate.schedules.rounds import Rounds
from headgate.stores import open_store
from headgate.stores.protocol import Publication, Schedules, Store, TaskSpec
from tests.schedules.desk import spec
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]


class Command:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, code: int = 0) -> str:
        done = CliRunner().invoke(root, ["--url", self.url, "schedules", *args])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done.stdout if code in (0, 5) else done.stderr

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json"))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def schedules(url: str, store: Store) -> Command:
    return Command(url)


def test_ls_and_show(schedules: Command, store: Store) -> None:
    assert schedules("ls") == ""
    nightly = spec("nightly", "H 2 * * *", timezone="Europe/Berlin", missed="one", jitter=30.0)
    store.declare_schedules(Schedules("web-1", "", (nightly, spec("often", skip_if_running=True))))
    lines = schedules("ls").splitlines()
    assert lines[0].split()[:3] == ["schedule", "when", "zone"]
    assert [line.split()[0] for line in lines[1:]] == ["nightly", "often"]
    assert "Europe/Berlin" in lines[1]
    shown = schedules("show", "nightly")
    assert "made up for once, if within 86400 s" in shown
    assert "web-1 (code)" in shown
    data = schedules.json("show", "nightly")
    assert (data["schedule"], data["missed"], data["jitter"]) == ("nightly", "one", 30.0)
    assert data["ticks"] == []
    assert [one["schedule"] for one in schedules.json("ls")["schedules"]] == ["nightly", "often"]
    assert "no schedule 'other'" in schedules("show", "other", code=3)


def test_next(schedules: Command, store: Store) -> None:
    store.declare_schedules(
        Schedules("a", "", (spec("x", "30 2 * * *", timezone="Europe/Berlin"), spec("y")))
    )
    lines = schedules("next", "x", "--count", "3").splitlines()
    assert len(lines) == 4
    assert all("T02:30:00+0" in line for line in lines[1:])
    both = schedules.json("next", "--count", "2")["next"]
    assert [one["schedule"] for one in both] == ["y", "y"]
    tried = schedules.json("next", "n", "--when", "H 2 * * *", "--zone", "America/New_York")
    assert len(tried["next"]) == 5
    assert "T02:" in tried["next"][0]["at"]
    assert "field hour" in schedules("next", "--when", "0 25 * * *", code=2)


def test_pause_and_resume(schedules: Command, store: Store) -> None:
    store.declare_schedules(Schedules("a", "", (spec(),)))
    assert schedules("pause", "tidy", "--reason", "moving") == "schedule tidy is paused\n"
    found = store.schedule("tidy")
    assert found is not None
    assert found.paused
    assert "moving" in schedules("ls")
    assert schedules.json("resume", "tidy")["paused"] is False
    assert "no schedule" in schedules("pause", "other", code=3)


def test_run_now(schedules: Command, store: Store) -> None:
    store.declare_schedules(Schedules("a", "", (spec(),)))
    assert "is submitted" in schedules("run-now", "tidy")
    assert "waits already" in schedules("run-now", "tidy")
    assert schedules.json("run-now", "tidy")["outcome"] == "merged"
    ticks = schedules.json("show", "tidy")["ticks"]
    assert [tick["outcome"] for tick in ticks] == ["merged", "merged", "run"]
    assert all("@" in tick["by"] for tick in ticks)


# --- workers -------------------------------------------------------------------------------------


def test_a_worker_ticks_and_one_without_scheduler_does_not(
    tmp_path: Path, url: str, store: Store
) -> None:
    env = {
        **os.environ,
        "HEADGATE_URL": url,
        "HEADGATE_TEST_SCHEDULES": "2",
        "HEADGATE_TEST_LOG": str(tmp_path / "log"),
    }

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headgate", "worker", "tests.schedules.scene:app"]
        return subprocess.Popen([*command, *options], cwd=ROOT, env=env, start_new_session=True)

    processes = [start("--no-scheduler", "--name", "idle")]
    try:
        wait_until(lambda: len(store.schedules()) == 2)  # it declares them all the same
        wait_until(lambda: time.time() > store.schedules()[0].since + 1.5)
        assert not any(one.planned for one in store.schedules())
        processes.append(start("--name", "ticking", "--queues", "none"))
        wait_until((tmp_path / "log").exists)
        assert {tick.outcome for tick in store.ticks("quick-1")} == {"run"}
        store.pause_schedule("quick-1", True)
        seen = len(store.ticks("quick-1", 1000))
        store.pause_schedule("quick-1", False)
        wait_until(lambda: len(store.ticks("quick-1", 1000)) > seen)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(PATIENCE) == 0


def test_a_paused_schedule_has_no_next(schedules: Command, store: Store) -> None:
    store.declare_schedules(Schedules("app", "", (spec("nightly", "0 2 * * *"),)))
    Rounds(store).round()
    assert schedules.json("show", "nightly")["next_at"] is not None
    schedules("pause", "nightly")
    assert schedules.json("show", "nightly")["next_at"] is None
    assert "(in " not in schedules("ls")
    assert "next" not in schedules("show", "nightly")


def test_run_now_of_a_task_without_a_schedule_says_how_to_run_it(
    schedules: Command, store: Store
) -> None:
    store.publish(Publication("app", tasks=(TaskSpec("by-hand"),)))
    assert "headgate submit by-hand" in schedules("run-now", "by-hand", code=3)
    assert "headgate submit" not in schedules("run-now", "nobody", code=3)
