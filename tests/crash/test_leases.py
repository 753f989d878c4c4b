"""Leases: the pure timing, then real processes that cannot renew."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from headgate import App, Context, Worker
from headgate.worker.board import Board
from headgate.worker.lease import guard_timeout, must_kill, next_change, stage
from tests.worker import sample
from tests.worker.site import Site, Tree, wait_until

LEASE = 3.0
SHORT = 1.5
"""Where nothing has to be in time."""


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, "fresh"), (9.9, "fresh"), (10, "renew"), (19.9, "renew"), (20, "stop"), (23.7, "stop"),
     (23.75, "kill"), (1000, "kill")],
)  # fmt: skip
def test_stages_are_counted_from_the_sending(age: float, expected: str) -> None:
    assert stage(1000 + age, 1000, 30) == expected


def test_next_change_is_the_next_boundary() -> None:
    assert [next_change(1000 + age, 1000, 30) for age in (0, 10, 15, 20, 24, 90)] == [
        *(10, 10, 5, 3.75, 0, 0)
    ]


def test_the_guard_looks_at_workers_with_a_lease_only() -> None:
    board = Board.create(3)
    board.pulse(0, 5.0)  # without a lease
    board.lease(1, 30, 1000.0)
    board.lease(2, 60, 1000.0)
    assert guard_timeout(1000.0, board.rows()) == 25
    assert not must_kill(1024.9, board.rows())
    assert must_kill(1025.0, board.rows())
    board.clear(1)
    assert not must_kill(1025.0, board.rows())
    assert guard_timeout(2000.0, board.rows()) == 0


def test_the_board_is_shared_memory() -> None:
    board = Board.create(1)
    other = Board(os.dup(board.fd))
    other.lease(0, 30, 7.5)
    other.work(0, 99.0, 4)
    assert (board.row(0).renewed, board.row(0).deadline, board.row(0).running) == (7.5, 99.0, 4)


@pytest.fixture
def leased(site: Site) -> Tree:
    env = {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": str(LEASE)}
    tree = site.start_module("tests.crash.leased", **env)
    site.ready()
    return tree


def stop_at_once(tree: Tree) -> None:
    tree.signal(signal.SIGTERM)
    # Two signals that nobody has taken yet would be one.
    wait_until(lambda: "once more to stop at once" in tree.output())
    tree.signal(signal.SIGTERM)
    tree.wait()


def renewals(site: Site) -> int:
    path = site.folder / "renewals"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_renewed_while_all_is_well(site: Site, leased: Tree) -> None:
    job = sample.wait_async.submit()
    site.wait_for("running")
    wait_until(lambda: renewals(site) >= 5, LEASE * 4)
    site.go()
    assert job.result(timeout=10) == "went on"
    assert leased.stop() == 0


@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_stopped_at_two_thirds_killed_at_five_sixths(site: Site, leased: Tree, how: str) -> None:
    told = sample.wait_async.submit()
    deaf = sample.blocks_thread.submit()
    site.wait_for("running", count=2)
    (pid,) = leased.processes()
    before = renewals(site)
    (site.folder / how).touch()
    wait_until(lambda: renewals(site) > before)
    failed_at = time.monotonic()  # at most a third of the lease after the last confirmed one
    stopped = site.wait_for("stopped", kind="async")[0]["t"]
    assert stopped - failed_at < LEASE * 2 / 3
    wait_until(lambda: sample.started(pid) == 0, why="killed")
    assert time.monotonic() - failed_at < LEASE * 5 / 6
    (site.folder / how).unlink()

    def lost() -> bool:
        return "lost" in [a.outcome for a in site.app.store.attempts(deaf.id)]

    wait_until(lambda: lost() or leased.guard.poll() is not None)
    if not lost():
        # The machine was so busy that the guard's turn came before the keeper was done: all are
        # stopped in time all the same, and somebody else goes on.
        leased = site.start()
        wait_until(lost)
    assert "lost" not in [a.outcome for a in site.app.store.attempts(told.id)]
    site.go()
    assert told.result(timeout=20) == "went on"
    stop_at_once(leased)


def test_works_again_after_a_short_outage(site: Site, leased: Tree) -> None:
    (pid,) = leased.processes()
    job = sample.wait_async.submit()
    site.wait_for("running")
    (site.folder / "refuse").touch()
    site.wait_for("stopped", kind="async")
    (site.folder / "refuse").unlink()
    site.go()
    assert job.result(timeout=20) == "went on"
    assert leased.processes() == [pid]
    assert leased.stop() == 0


def test_the_guard_kills_when_a_frozen_keeper_does_not(site: Site, leased: Tree) -> None:
    job = sample.nest.submit()
    site.wait_for("nested")
    os.kill(leased.keeper(), signal.SIGSTOP)
    frozen_at = time.monotonic()
    wait_until(lambda: not sample.alive(), LEASE)
    assert time.monotonic() - frozen_at < LEASE
    assert leased.wait(5) != 0
    site.start()
    assert job.result(timeout=20) == []


# --- on_lease_lost="continue" -------------------------------------------------------------------


@pytest.fixture
def lasting(site: Site) -> Tree:
    """A worker whose jobs run on."""
    env = {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": str(SHORT)}
    tree = site.start_module("tests.crash.leased", ON_LEASE_LOST="continue", **env)
    site.ready()
    return tree


def refuse_past_the_lease(site: Site) -> None:
    """Until the last renewal that was confirmed is longer ago than the lease."""
    before = renewals(site)
    (site.folder / "refuse").touch()
    wait_until(lambda: renewals(site) > before)
    refused = time.monotonic()
    path = site.folder / "renewals"
    wait_until(lambda: float(path.read_text().splitlines()[-1]) > refused + SHORT)


def over_runs(site: Site) -> list[str]:
    return [event.subject for event in site.app.store.events("attempt_overran")]


def test_jobs_run_on_and_the_lease_is_had_back(site: Site, lasting: Tree) -> None:
    (pid,) = lasting.processes()
    kept = [sample.wait_async.submit(), sample.blocks_thread.submit()]
    site.wait_for("running", count=2)
    refuse_past_the_lease(site)
    other = sample.add.submit(1)
    refused = renewals(site)
    wait_until(lambda: renewals(site) > refused + 10)  # a third of the lease later
    assert site.job(other.id).state == "ready", "nothing new is claimed"
    assert site.events("stopped") == []
    assert [site.job(job.id).state for job in kept] == ["running", "running"]
    (site.folder / "refuse").unlink()
    assert other.result(timeout=10) == 2
    site.go()
    assert kept[0].result(timeout=10) == "went on"
    assert lasting.processes() == [pid]
    assert len(site.app.store.attempts(kept[0].id)) == 1
    assert over_runs(site) == []
    stop_at_once(lasting)


def test_a_dead_workers_job_runs_on_and_is_counted(site: Site, lasting: Tree) -> None:
    store = site.app.store
    (pid,) = lasting.processes()
    (worker,) = store.workers()
    job = sample.wait_async.submit()  # in a limit of 1
    site.wait_for("running", pid=pid)
    refuse_past_the_lease(site)
    store.declare_dead(worker.id, "its lease ended")
    (site.folder / "refuse").unlink()
    wait_until(lambda: over_runs(site) == [job.id])
    other = site.start("--concurrency", "1")
    (second,) = {e["pid"] for e in site.wait_for("running", count=2)} - {pid}
    assert site.events("stopped") == []
    assert sample.started(pid), "it runs beside the other one"
    assert [t.detail[-3:] for t in store.doctor() if t.what == "over-runs"] == [": 1"]
    assert f"job {job.id} (wait_async) runs on" in lasting.output()

    site.freeze([second])
    site.go()
    wait_until(lambda: not sample.started(pid), why="the dead one ends after its job")
    assert [a.outcome for a in store.attempts(job.id)] == ["lost", "running"]
    site.thaw([second])
    assert job.result(timeout=10) == "went on"
    assert [a.outcome for a in store.attempts(job.id)] == ["lost", "succeeded"]

    new = wait_until(lambda: [w for w in store.workers() if w.name == worker.name])
    assert new[0].id != worker.id
    assert over_runs(site) == [job.id], "once for the attempt"
    assert lasting.stop() == 0
    assert other.stop() == 0


def test_the_guard_waits_for_a_frozen_keeper_and_not_for_a_dead_one(
    site: Site, lasting: Tree
) -> None:
    job = sample.nest.submit()
    site.wait_for("nested")
    nested = sorted(sample.alive())
    keeper = lasting.keeper()
    os.kill(keeper, signal.SIGSTOP)
    frozen_at = time.monotonic()
    wait_until(lambda: time.monotonic() > frozen_at + SHORT * 1.2)
    assert sorted(sample.alive()) == nested
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not sample.alive(), 2)
    assert lasting.wait(5) != 0
    site.start()
    assert job.result(timeout=20) == []
    assert over_runs(site) == []


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_thawed_after_its_lease_has_ended(site: Site) -> None:
    """Nobody says that it is dead but the lease: the whole machine stood still."""
    store = site.app.store
    env = {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": "1.5"}
    tree = site.start("--on-lease-lost", "continue", "--name", "frozen", **env)
    job = sample.wait_thread.submit()
    (first,) = site.wait_for("running")
    pids = [tree.guard.pid, tree.keeper(), first["pid"]]
    site.freeze(pids)
    other = site.start("--name", "other")
    site.wait_for("running", count=2)
    site.thaw(pids)
    wait_until(lambda: over_runs(site) == [job.id])
    assert site.events("stopped") == []
    site.go()
    assert job.result(timeout=10) == "went on"
    assert [a.worker for a in store.attempts(job.id)] == ["frozen", "other"]
    wait_until(lambda: tree.processes() != [first["pid"]])
    assert [t.what for t in store.doctor()] == ["over-runs"]
    assert [tree.stop(), other.stop()] == [0, 0]
    assert over_runs(site) == [job.id]


@pytest.mark.parametrize("site", ["sqlite", "postgres"], indirect=True)
def test_embedded_goes_on_under_a_new_id(site: Site) -> None:
    store = site.app.store
    worker = Worker(site.app, "embedded", on_lease_lost="continue")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        job = sample.wait_thread.submit()
        site.wait_for("running")
        (before,) = store.workers()
        store.declare_dead(before.id, "its lease ended")
        wait_until(lambda: over_runs(site) == [job.id])
        assert site.job(job.id).state == "ready", "it claims nothing"
        assert site.events("stopped") == []
        site.go()
        assert job.result(timeout=10) == "went on"
        assert [a.outcome for a in store.attempts(job.id)] == ["lost", "succeeded"]
        (after,) = store.workers()
        assert (after.name, after.id != before.id) == ("embedded", True)
    finally:
        site.go()
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()
    assert over_runs(site) == [job.id]


@pytest.mark.parametrize("ends", [True, False])
def test_words_after_the_loss_stop_nothing_and_are_counted(tmp_path: Path, ends: bool) -> None:
    """It ends after the loss and before its worker knows of it, or reports how far it is."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    worker = Worker(app, on_lease_lost="continue")
    stopped: list[bool] = []

    @app.task
    def lost(ctx: Context) -> int:
        if ctx.attempt == 1:
            (own,) = app.store.workers()
            app.store.declare_dead(own.id, "its lease ended")
            if ends:
                return 1
            wait_until(lambda: ctx.progress(0.5) or app.store.events("attempt_overran"))
            until = time.monotonic() + 0.5  # some more of them go out, ten a second
            wait_until(lambda: ctx.progress(0.6) or time.monotonic() > until)
            stopped.append(ctx.cancelled)
        return ctx.attempt

    job = lost.submit()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert job.result(timeout=20) == 2
        assert [a.outcome for a in app.store.attempts(job.id)] == ["lost", "succeeded"]
        assert [event.subject for event in app.store.events("attempt_overran")] == [job.id]
        assert stopped == ([] if ends else [False])
    finally:
        worker.stop()
        thread.join(20)
        app.close()
