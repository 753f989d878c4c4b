"""Signals: reload, status, stop; and what happens when the configuration is wrong."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.scheduler.stage import RECORDER, Stage
from tests.scheduler.test_runs import ended, trigger
from tests.waiting import wait_until


def test_a_reload_takes_what_is_new_and_leaves_what_runs(stage: Stage) -> None:
    stage.write(
        {
            "jobs": {
                "goes-on": {"command": [*RECORDER, "3"], "schedule": "* * * * * *"},
                "goes": {"command": ["true"], "schedule": "* * * * * *"},
            }
        }
    )
    tree = stage.start()
    wait_until(stage.starts, why="a run")
    ended(stage, "goes")
    stage.write(
        {
            "jobs": {
                "goes-on": {"command": [*RECORDER, "3"]},
                "comes": {"command": ["true"], "schedule": "* * * * * *"},
            }
        }
    )
    tree.signal(signal.SIGHUP)
    ended(stage, "comes", 2)
    assert "the configuration was reloaded: 2 jobs" in tree.output()
    first = ended(stage, "goes-on")[0]
    assert (first.state, first.attempt) == ("succeeded", 1)
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0
    report = stage.judge({"jobs": {"goes-on": {}, "goes": {}, "comes": {}}}, {})
    assert not report.over
    assert not report.doubled
    # What was taken out has no further runs: nothing of it was left behind to tick.
    with stage.store() as store:
        names = {schedule.spec.name for schedule in store.schedules() if not schedule.orphaned}
    assert "comes" in names
    assert "goes-on" not in names


def test_a_reload_while_the_worker_process_starts_is_not_lost(stage: Stage) -> None:
    job = {"command": ["true"], "concurrency_groups": ["nowhere"]}
    stage.write({"jobs": {"before": job}})
    with stage.store():
        pass  # it is made here, so that its lock can be taken
    lock = sqlite3.connect(stage.url.removeprefix("sqlite:///"), isolation_level=None)
    # With this the process has read its configuration, and cannot be registered.
    lock.execute("BEGIN IMMEDIATE")
    tree = stage.start()
    wait_until(lambda: "'nowhere' is not declared" in tree.output(), why="the first read")
    stage.write({"jobs": {"after": {"command": ["true"], "schedule": "* * * * * *"}}})
    tree.signal(signal.SIGHUP)
    wait_until(lambda: _waits_for_nobody(tree.guard.pid), why="the signal taken")
    lock.execute("ROLLBACK")
    lock.close()
    ended(stage, "after")
    assert "the configuration was reloaded: 1 jobs" in tree.output()
    assert tree.stop() == 0


def _waits_for_nobody(pid: int) -> bool:
    """No signal is pending for the process."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = [int(row.split()[1], 16) for row in rows if row.startswith(("SigPnd", "ShdPnd"))]
    return not any(pending)


def test_runs_of_a_removed_job_are_told_and_shown(stage: Stage) -> None:
    kept = {"command": ["true"]}
    stage.write({"jobs": {"old": {"command": ["true"]}, "kept": kept}})
    tree = stage.start()
    trigger(stage, "old", {"schedule_time": time.time() + 3600})
    (run,) = wait_until(lambda: stage.runs(task="old"), why="a run that waits")
    stage.write({"jobs": {"kept": kept}})
    tree.signal(signal.SIGHUP)
    told = f"old was removed from the configuration and 1 of its runs wait ({run.id})"
    wait_until(lambda: told in tree.output(), why=told)
    tree.signal(signal.SIGQUIT)
    shown = f"[old {run.id}] waiting for "
    wait_until(lambda: shown in tree.output(), why=shown)
    with stage.store() as store:
        (worker,) = store.workers()
    assert "old" not in worker.tasks
    assert tree.stop() == 0
    # After a restart too.
    tree = stage.start()
    wait_until(lambda: told in tree.output(), why=told)
    assert tree.stop() == 0
    assert tree.output().count(told) == 1


def test_a_bad_configuration_on_reload_changes_nothing_and_is_reported(stage: Stage) -> None:
    stage.write({"jobs": {"a": {"command": ["true"], "schedule": "* * * * * *"}}})
    tree = stage.start()
    before = len(ended(stage, "a"))
    for content, told in (
        ('{"jobs": {"a": {"command": []}, "b": {}}}', "jobs.b: command is missing"),
        ("{", "dsari.json:1: not valid JSON"),
        (None, "no such file"),
    ):
        if content is None:
            stage.file.unlink()
        else:
            stage.file.write_text(content)
        tree.signal(signal.SIGHUP)
        wait_until(lambda: told in tree.output(), why=told)  # noqa: B023
    assert tree.output().count("was not reloaded") == 3
    ended(stage, "a", before + 2)
    assert tree.stop() == 0


def test_status_tells_every_run_every_wait_and_every_group(stage: Stage) -> None:
    stage.write(
        {
            "jobs": {
                "holds": {"command": ["sleep", "600"], "concurrency_groups": ["one"]},
                "waits": {"command": ["true"], "concurrency_groups": ["one"]},
                "later": {"command": ["true"]},
            },
            "shutdown_kill_runs": True,
        }
    )
    tree = stage.start()
    trigger(stage, "holds")
    stage.wait_for(lambda store: store.groups() and store.group("one")[1], why="one is held")
    trigger(stage, "waits")
    trigger(stage, "later", {"schedule_time": time.time() + 3600})
    wait_until(lambda: len(stage.runs()) == 3, why="three runs")
    tree.signal(signal.SIGQUIT)
    wait_until(lambda: "concurrency group one" in tree.output(), why="status")
    lines = tree.output().splitlines()
    assert [line for line in lines if line.startswith("[holds ") and "running for" in line]
    (blocked,) = [line for line in lines if line.startswith("[waits ")]
    assert "blocked for" in blocked
    assert "one" in blocked
    assert [line for line in lines if line.startswith("[later ") and "due " in line]
    assert "concurrency group one: 1 out of 1" in lines
    # A stop ends what runs, where the configuration says so.
    assert tree.stop() == 0
    (held,) = stage.runs(task="holds")
    # dsari's rule: what was killed has ended, and is not begun anew.
    assert (held.state, held.reason) == ("failed", "exit 143")


def test_what_a_second_stop_kills_goes_back_into_line_unless_kills_are_asked_for(
    stage: Stage,
) -> None:
    stage.write({"jobs": {"a": {"command": ["sleep", "600"]}}})
    tree = stage.start()
    trigger(stage, "a")
    stage.wait_for(lambda _: stage.runs(states=frozenset(["running"])), why="it runs")
    tree.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in tree.output(), why="stopping")
    tree.signal(signal.SIGTERM)
    tree.wait()
    (run,) = stage.runs()
    assert run.state == "ready"


def test_a_configuration_that_cannot_be_used_is_told_whole_at_the_start(stage: Stage) -> None:
    stage.write({"jobs": {"a": {"command": 5}, "b": {"command": "x", "schedule": "nonsense"}}})
    tree = stage.start()
    assert tree.wait() == 2
    assert "jobs.a.command: must be a list of a program" in tree.output()
    assert "jobs.b.schedule: 'nonsense' has 1 fields" in tree.output()


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_machines_that_serve_some_groups_share_the_rest(stage: Stage) -> None:
    """Two schedulers on one store: each runs what its own groups allow, every tick once."""
    data = stage.example("distribution", 0.5)
    data["jobs"]["anywhere"] = {"command": ["true"], "schedule": "* * * * * *"}
    stage.write(data)
    first = stage.start("--groups", "host-a_group", "--name", "machine-a")
    second = stage.start("--groups", "host-b_group", "--name", "machine-b")
    wait_until(
        lambda: (
            {"host-a_group", "host-b_group"}
            <= {group for start in stage.starts()[6:] for group in start["groups"]}
        ),
        why="runs in both groups",
    )
    assert [first.stop(), second.stop()] == [0, 0]
    report = stage.judge(
        {"jobs": {**data["jobs"], "anywhere": {}}}, {"host-a_group": 2, "host-b_group": 1}
    )
    assert not report.over, report.text()
    assert not report.doubled, report.text()
    stage.ticks()
    with stage.store() as store:
        for run in stage.runs(states=frozenset(["succeeded"])):
            if run.task == "anywhere":
                continue
            (attempt,) = [a for a in store.attempts(run.id) if a.outcome == "succeeded"]
            machine = attempt.worker.rpartition("-")[2]
            assert f"host-{machine}_group" in attempt.groups, (attempt.worker, attempt.groups)


def test_an_unknown_group_is_refused(stage: Stage) -> None:
    stage.example("distribution", 1)
    tree = stage.start("--groups", "host-c")
    assert tree.wait() == 2
    assert "no group 'host-c'" in tree.output()


def test_config_check_and_the_scheduler_agree(stage: Stage) -> None:
    stage.write({"jobs": {}})
    stage.file.write_text(json.dumps({"jobs": {"a": {"command": ["x"], "schedule": 5}}}))
    tree = stage.site.start_module("headgate", "config", "check", str(stage.file), "--json")
    assert tree.wait() == 2
    told = json.loads(tree.output().splitlines()[0])
    assert [problem["path"] for problem in told["problems"]] == ["jobs.a.schedule"]
