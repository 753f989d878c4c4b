"""Leases: the pure timing, then real processes that cannot renew."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import App, Context, Worker, kernel
from headgate.errors import StoreUnavailable
from headgate.jobs import new_id
from headgate.stores.protocol import Exchange, Exchanged, Store
from headgate.worker.board import Board
from headgate.worker.lease import guard_timeout, must_kill, next_change, over, stage
from headgate.worker.runs import ROWS, Run
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
    assert not over(1029.9, board.rows())
    assert over(1030.0, board.rows())
    board.clear(1)
    assert not must_kill(1025.0, board.rows())
    assert guard_timeout(2000.0, board.rows()) == 0


def test_the_board_is_shared_memory() -> None:
    board = Board.create(1)
    other = Board(os.dup(board.fd))
    other.lease(0, 30, 7.5)
    other.work(0, 99.0, 4)
    other.process(0, 1234)
    other.outlived(0, 38.5)
    assert (board.row(0).renewed, board.row(0).deadline, board.row(0).running) == (7.5, 99.0, 4)
    assert (board.row(0).pid, board.row(0).outlived) == (1234, 38.5)


def test_the_board_shows_what_a_process_ran() -> None:
    board = Board.create(2)
    runs = Board(os.dup(board.fd)).runs(1)
    jobs = [new_id() for _ in range(ROWS + 1)]
    rows = [runs.start(token, job) for token, job in enumerate(jobs, 1)]
    assert rows[-1] is None, "there is no room for more"
    assert board.runs(1).all() == [Run(job, n) for n, job in enumerate(jobs[:-1], 1)]
    runs.end(rows[-1], 4.0)
    runs.end(rows[7], 5.0)
    runs.end(rows[3], 6.0)
    runs.start(9999, jobs[-1])
    seen = board.runs(1).all()
    assert (seen[7], seen[3]) == (Run(jobs[-1], 9999), Run(jobs[3], 4, 6.0)), "the oldest goes"
    assert board.runs(0).all() == []
    board.forget_attempts(1)
    assert board.runs(1).all() == []


def env(lease: float) -> dict[str, str]:
    return {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": str(lease)}


def start_leased(site: Site, lease: float) -> Tree:
    tree = site.start_module("tests.crash.leased", **env(lease))
    site.ready()
    return tree


@pytest.fixture
def leased(site: Site) -> Tree:
    return start_leased(site, LEASE)


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


def dead(pid: int) -> bool:
    """With all its threads, the first of which may be gone earlier."""
    process = kernel.look(pid)
    return process is None or (
        process.state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    )


def freeze_past_the_lease(site: Site, pids: list[int]) -> None:
    site.freeze(pids)
    frozen = time.monotonic()
    wait_until(lambda: time.monotonic() > frozen + SHORT, why="the lease is over")


def test_code_that_was_killed_in_time(site: Site, leased: Tree) -> None:
    """The store hears of it only after the lease: that is no over-run."""
    store = site.app.store
    (worker,) = store.workers()
    job = sample.deaf_thread.submit()
    (running,) = site.wait_for("running")
    (site.folder / "refuse").touch()
    wait_until(lambda: dead(running["pid"]))
    store.declare_dead(worker.id, "its lease ended")
    (site.folder / "refuse").unlink()
    # A new process starts once this one is reported. On a machine so busy that the guard's turn
    # came before the keeper was done, all has ended.
    wait_until(lambda: len(site.events("running")) > 1 or leased.guard.poll() is not None)
    assert over_runs(store) == []
    if leased.guard.poll() is not None:
        leased = site.start()
    site.go()
    assert job.result(timeout=20) == "went on"
    assert [a.outcome for a in store.attempts(job.id)] == ["lost", "succeeded"]
    assert leased.stop() == 0


@pytest.mark.parametrize("reports", ["process", "keeper"])
def test_declared_dead_while_its_code_runs(site: Site, reports: str) -> None:
    """The process hears of it with its next word, the keeper with its next renewal: either alone
    stops the code and reports it."""
    tree = start_leased(site, LEASE)
    store = site.app.store
    job = sample.deaf_thread.submit()  # in a limit of 1
    (running,) = site.wait_for("running")
    (worker,) = store.workers()
    silent = [running["pid"]] if reports == "keeper" else [tree.guard.pid, tree.keeper()]
    site.freeze(silent)
    store.declare_dead(worker.id, "its lease ended")
    wait_until(lambda: over_runs(store) == [job.id])
    assert [t.detail[-3:] for t in store.doctor() if t.what == "over-runs"] == [": 1"]
    wait_until(lambda: dead(running["pid"]))
    said = f"job {job.id} " + ("(deaf_thread) still runs" if reports == "process" else "ran on")
    wait_until(lambda: said in tree.output())
    if reports == "process":
        site.thaw(silent)
    other = site.start()
    wait_until(lambda: "is ready" in other.output())
    site.go()
    assert job.result(timeout=20) == "went on"
    assert [a.outcome for a in store.attempts(job.id)] == ["lost", "succeeded"]
    assert over_runs(store) == [job.id], "once for the attempt"
    tree.stop()
    assert other.stop() == 0


@pytest.mark.parametrize("taken", [True, False])
def test_frozen_past_its_lease_and_killed_by_the_guard(site: Site, taken: bool) -> None:
    """The guard thaws first: it kills what runs, and leaves it to the keeper to report that. Where
    nobody has taken the slots meanwhile, no limit was passed."""
    tree = start_leased(site, SHORT)
    store = site.app.store
    job = sample.nest.submit()
    site.wait_for("nested")
    (worker,) = store.workers()
    (pid,) = tree.processes()
    freeze_past_the_lease(site, [tree.guard.pid, tree.keeper(), pid])
    if taken:
        store.declare_dead(worker.id, "its lease ended")
    site.thaw([tree.guard.pid])
    wait_until(lambda: dead(pid) and not sample.alive())
    assert over_runs(store) == [], "nobody has reported it yet"
    site.thaw([tree.keeper()])
    assert tree.wait() != 0
    assert [a.outcome for a in store.attempts(job.id)] == ["lost"]
    assert over_runs(store) == ([job.id] if taken else [])


def test_frozen_past_its_lease_and_its_guard_killed(site: Site) -> None:
    tree = start_leased(site, SHORT)
    store = site.app.store
    job = sample.deaf_thread.submit()
    (running,) = site.wait_for("running")
    (worker,) = store.workers()
    keeper = tree.keeper()
    freeze_past_the_lease(site, [tree.guard.pid, keeper, running["pid"]])
    store.declare_dead(worker.id, "its lease ended")
    tree.signal(signal.SIGKILL)
    tree.wait()
    site.thaw([keeper])
    wait_until(lambda: dead(keeper))
    assert dead(running["pid"])
    assert over_runs(store) == [job.id]


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_frozen_past_its_lease_beside_another_worker(site: Site) -> None:
    """Nobody says that it is dead but the lease: the whole machine stood still."""
    store = site.app.store
    tree = site.start("--name", "frozen", **env(SHORT))
    job = sample.deaf_thread.submit()
    (first,) = site.wait_for("running")
    pids = [tree.guard.pid, tree.keeper(), first["pid"]]
    site.freeze(pids)
    other = site.start("--name", "other")
    site.wait_for("running", count=2)
    site.thaw(pids)
    wait_until(lambda: over_runs(store) == [job.id])
    wait_until(lambda: dead(first["pid"]))
    site.go()
    assert job.result(timeout=10) == "went on"
    assert [a.worker for a in store.attempts(job.id)] == ["frozen", "other"]
    assert [t.what for t in store.doctor()] == ["over-runs"]
    tree.stop()  # it has ended if the guard was the first to see the time
    assert other.stop() == 0
    assert over_runs(store) == [job.id], "once for the attempt"


@contextmanager
def embedded(app: App) -> Iterator[threading.Thread]:
    """A worker in this process, until it ends or is stopped."""
    worker = Worker(app, "embedded", shutdown_timeout=0.2, grace=0.2)
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


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_a_thread_that_goes_on_after_its_worker_was_stopped_keeps_its_slot(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(*env(SHORT).popitem())
    site.app.__dict__.pop("config", None)
    store = site.app.store
    with embedded(site.app):
        job = sample.deaf_thread.submit()
        site.wait_for("running")
    (left,) = store.workers()
    assert left.lease_ends is not None
    until = left.lease_ends + SHORT

    def renewed() -> bool:
        (own,) = store.workers()
        return own.lease_ends is not None and own.lease_ends > until

    wait_until(renewed)
    assert site.job(job.id).state == "running"
    site.go()
    store.declare_dead(left.id, "its process has ended")
    wait_until(lambda: f"the lease of worker {left.id} has ended" in caplog.text)


class Away:
    """A store that does not answer some round trips."""

    def __init__(self, store: Store, refuses: Callable[[Exchange], bool]) -> None:
        self._store = store
        self._refuses = refuses

    def exchange(self, exchange: Exchange) -> Exchanged:
        if self._refuses(exchange):
            raise StoreUnavailable("the store does not answer")
        return self._store.exchange(exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("ends", [True, False])
def test_code_that_goes_on_after_the_loss(tmp_path: Path, ends: bool) -> None:
    """It ends before its worker knows of the loss, or is stopped then."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    app._store = Away(app.store, lambda exchange: away.is_set() and not exchange.finishes)  # type: ignore[assignment]
    away = threading.Event()
    stopped: list[bool] = []

    @app.task
    def lost(ctx: Context) -> int:
        if ends:
            away.set()
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

    def refuses(exchange: Exchange) -> bool:
        if not away.is_set() or not exchange.finishes:
            return False
        away.clear()
        (own,) = store.workers()
        store.declare_dead(own.id, "its lease ended")
        return True

    @app.task
    def early() -> None:
        away.set()

    app._store = Away(store, refuses)  # type: ignore[assignment]
    job = early.submit()
    with embedded(app) as thread:
        wait_until(lambda: not thread.is_alive(), why="it ends by itself")
    assert [a.outcome for a in store.attempts(job.id)] == ["lost"]
    assert over_runs(store) == []
    store.close()
