"""Leases: the pure timing, then real processes that cannot renew."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import App, Context, Worker
from headgate.errors import StoreUnavailable
from headgate.stores.protocol import Exchange, Exchanged, Store
from headgate.worker.board import Board
from headgate.worker.lease import guard_timeout, must_kill, next_change, stage
from tests.worker import sample
from tests.worker.site import Site, Tree, wait_until

LEASE = 3.0


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


# --- code that outlives its lease ----------------------------------------------------------------


def over_runs(store: Store) -> list[str]:
    return [event.subject for event in store.events("attempt_overran")]


@contextmanager
def embedded(app: App) -> Iterator[threading.Thread]:
    """A worker in this process, until it ends or is stopped."""
    worker = Worker(app, "embedded")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield thread
    finally:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("site", ["sqlite", "postgres"], indirect=True)
def test_a_thread_of_an_embedded_worker_that_goes_on(site: Site) -> None:
    """Nobody can kill it: the worker reports it, and ends beside it."""
    store = site.app.store
    try:
        with embedded(site.app) as thread:
            job = sample.deaf_thread.submit()  # in a limit of 1
            site.wait_for("running")
            (before,) = store.workers()
            store.declare_dead(before.id, "its lease ended")
            wait_until(lambda: over_runs(store) == [job.id])
            assert [t.detail[-3:] for t in store.doctor() if t.what == "over-runs"] == [": 1"]
            assert site.job(job.id).state == "ready", "it claims nothing"
            wait_until(lambda: not thread.is_alive(), why="it ends by itself")
        other = site.start()
        site.wait_for("running", count=2)
    finally:
        site.go()
    assert job.result(timeout=10) == "went on"
    assert [a.outcome for a in store.attempts(job.id)] == ["lost", "succeeded"]
    assert over_runs(store) == [job.id], "once for the attempt"
    assert other.stop() == 0


@pytest.mark.parametrize("ends", [True, False])
def test_code_that_goes_on_after_the_loss(tmp_path: Path, ends: bool) -> None:
    """It ends before its worker knows of the loss, or is stopped then."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    stopped: list[bool] = []

    @app.task
    def lost(ctx: Context) -> int:
        (own,) = app.store.workers()
        app.store.declare_dead(own.id, "its lease ended")
        if not ends:
            wait_until(lambda: ctx.progress(0.5) or ctx.cancelled)
            stopped.append(ctx.cancelled)
        return ctx.attempt

    job = lost.submit()
    with embedded(app) as thread:
        wait_until(lambda: not thread.is_alive(), why="it ends by itself")
    store = app.store
    assert [a.outcome for a in store.attempts(job.id)] == ["lost"], "a late word changes nothing"
    assert over_runs(store) == [job.id]
    assert stopped == ([] if ends else [True])
    app.close()


def test_an_end_that_is_reported_too_late_is_no_over_run(tmp_path: Path) -> None:
    """The store could not be reached from the end of the code until after the lease."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    store, away = app.store, threading.Event()

    class Away:
        """The store, but that it takes no ends."""

        def exchange(self, exchange: Exchange) -> Exchanged:
            if away.is_set() and exchange.finishes:
                (own,) = store.workers()
                store.declare_dead(own.id, "its lease ended")
                away.clear()
                raise StoreUnavailable("the store does not answer")
            return store.exchange(exchange)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    @app.task
    def early() -> None:
        away.set()

    app._store = Away()  # type: ignore[assignment]
    job = early.submit()
    with embedded(app) as thread:
        wait_until(lambda: not thread.is_alive(), why="it ends by itself")
    assert [a.outcome for a in store.attempts(job.id)] == ["lost"]
    assert over_runs(store) == []
    store.close()
