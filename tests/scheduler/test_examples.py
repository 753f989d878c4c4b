"""The three example configurations of dsari, their minutes made seconds, judged by the checker."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.scheduler.stage import Stage, Watcher
from tests.waiting import wait_until
from tests.worker.site import Tree

FULL = os.environ.get("HEADGATE_PROOF") == "full"
STORES = ["sqlite", "postgres"] if FULL else ["postgres"]
"""The other examples are run on SQLite."""
MORE = 3 if FULL else 1
LONG = 1.5
"""As 90 s to a minute: longer than the second after which the next tick is due."""


def ran(stage: Stage, tree: Tree, starts: int, jobs: int = 5) -> None:
    """Until so many runs have started, and each job has; then a stop, which waits for those that
    are under way."""

    def enough() -> bool:
        found = stage.starts()
        return len(found) >= starts and len({start["task"] for start in found}) == jobs

    wait_until(enough, why=f"{starts} starts, of all jobs")
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0


def test_jobs_that_take_longer_than_their_schedule_do_not_overlap_with_themselves(
    stage: Stage,
) -> None:
    data = stage.example("overlap", LONG)
    ran(stage, stage.start(), 7 * MORE, jobs=3)
    report = stage.judge(data, {})
    assert report.ok, report.text()
    assert {name: report.usage[name].peak for name in data["jobs"]} == dict.fromkeys(
        data["jobs"], 1
    )
    attempts = sorted(report.attempts, key=lambda attempt: attempt.start)
    together = [sum(a.start <= b.start < a.until for a in attempts) for b in attempts]
    assert max(together) == 3  # of each other they know nothing
    assert stage.ticks() >= 7


def test_a_declared_group_has_room_for_two_and_an_undeclared_one_for_one(stage: Stage) -> None:
    data = stage.example("groups", LONG)
    tree = stage.start()
    ran(stage, tree, 9 * MORE)
    report = stage.judge(data, {"host-a_group": 2, "host-b_group": 1})
    assert report.ok, report.text()
    assert report.usage["host-a_group"].peak == 2
    assert report.usage["host-b_group"].peak == 1
    assert "'host-b_group' is not declared" in tree.output()
    # A blocked run starts the moment a slot is free.
    assert (report.usage["host-b_group"].ratio or 0) > 0.75, report.text()
    stage.ticks()


@pytest.mark.parametrize("site", STORES, indirect=True)
def test_runs_are_distributed_over_the_groups(stage: Stage) -> None:
    data = stage.example("distribution", LONG)
    ran(stage, stage.start(), 9 * MORE)
    report = stage.judge(data, {"host-a_group": 2, "host-b_group": 1})
    assert report.ok, report.text()
    assert report.usage["host-a_group"].peak == 2
    assert report.usage["host-b_group"].peak == 1
    ratios = [report.usage[name].ratio or 0 for name in ("host-a_group", "host-b_group")]
    assert min(ratios) > 0.75, report.text()
    stage.ticks()


@pytest.mark.parametrize("site", STORES, indirect=True)
def test_after_a_kill_nothing_overlaps_and_nothing_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On PostgreSQL what a dead machine held is free when its lease ends.
    monkeypatch.setenv("HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS", "3")
    data = stage.example("distribution", 2.0)
    watcher = Watcher(stage)
    tree = stage.start()
    for round_ in range(2 * MORE):
        before = len(stage.starts())
        wait_until(lambda: len(stage.starts()) >= before + 4, why="runs under way")  # noqa: B023
        watcher.kill(tree)
        if round_ % 2 == 0:
            tree.guard.wait()
        # Every second time at once, beside what is being killed.
        restarted = time.time()
        tree = stage.start()
    ran(stage, tree, len(stage.starts()) + 6)
    report = stage.judge(data, {"host-a_group": 2, "host-b_group": 1}, watcher.kills())
    assert report.ok, report.text()
    assert report.explained >= 2  # those that had begun just before the kills, at least
    stage.ticks(gaps=True)
    # What was cut short has run again: a job is over, or waits for its next turn; one that was
    # killed four times, more often than it may be, says so. One that had not begun when an older
    # run of its schedule came back was merged into that one, which stands for its ticks.
    with stage.store() as store:
        runs = {run.id: run for run in stage.runs()}
        for run in runs.values():
            if run.state == "cancelled":
                into = runs[run.reason.removeprefix("merged into ")]
                assert (into.task, store.attempts(run.id)) == (run.task, [])
                assert run.id not in {tick.job for tick in store.ticks(run.task, limit=10_000)}
                continue
            assert run.state in ("succeeded", "ready", "scheduled", "failed"), run
            if run.state == "failed":
                attempts = store.attempts(run.id)
                assert (run.reason, [a.outcome for a in attempts]) == ("lost", ["lost"] * 4)
    assert max(run.created_at for run in stage.runs()) > restarted
