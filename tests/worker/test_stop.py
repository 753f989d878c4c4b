"""Stopping: gracefully, at once, and in bounded time whatever the jobs do."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing
from pathlib import Path

import pytest

from headgate.stores import open_store
from headgate.stores.protocol import Store
from headgate.worker.ticker import Ticker
from tests.waiting import PATIENCE, wait_until, wait_until_async
from tests.worker import sample
from tests.worker.site import Site


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_graceful_stop_waits_for_what_runs(site: Site, number: int) -> None:
    tree = site.start()
    site.ready()
    running = sample.wait_async.submit()
    site.wait_for("running")
    waiting = sample.touch_gate.submit(1)
    tree.signal(number)
    wait_until(lambda: "stopping" in tree.output())
    late = sample.add.submit(1)
    site.go()
    assert tree.wait() == 0
    assert site.job(running.id).state == "succeeded"
    assert waiting.status() == "ready"
    assert late.status() == "ready"
    assert site.job(late.id).attempt == 0
    assert len(site.events("worker-stop")) == 1


def test_what_does_not_end_in_time_goes_back(site: Site) -> None:
    """Async and isolated code is stopped after the time-out: kept as an attempt, at no cost."""
    tree = site.start("--shutdown-timeout", "0.5")
    site.ready()
    jobs = [sample.wait_async.submit(), sample.sleepy.submit(600.0), sample.whoami.submit()]
    site.wait_for("running")
    jobs[2].result(timeout=PATIENCE)
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0
    for job in jobs[:2]:
        assert job.status() == "ready"
        (attempt,) = site.app.store.attempts(job.id)
        assert (attempt.outcome, attempt.reason) == ("interrupted", "shutdown")


def test_isolated_code_is_stopped_with_sigterm_first(site: Site) -> None:
    tree = site.start("--shutdown-timeout", "0.2")
    site.ready()
    job = sample.wait_isolated.submit()
    site.wait_for("running")
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0
    assert site.events("stopped", kind="isolated")
    assert site.job(job.id).state == "ready"


def test_a_thread_that_does_not_end_is_lost_with_its_process(site: Site) -> None:
    tree = site.start("--shutdown-timeout", "0.2")
    site.ready()
    job = sample.deaf_thread.submit()
    site.wait_for("running")
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0
    assert site.job(job.id).state == "ready"
    assert [a.outcome for a in site.app.store.attempts(job.id)] == ["lost"]


def test_a_second_signal_stops_at_once(site: Site) -> None:
    tree = site.start("--shutdown-timeout", "600")
    site.ready()
    jobs = [sample.nest.submit(), sample.sleepy.submit(600.0), sample.blocks_thread.submit()]
    site.wait_for("nested")
    site.wait_for("running")
    tree.signal(signal.SIGINT)
    wait_until(lambda: "stopping" in tree.output())
    tree.signal(signal.SIGINT)
    tree.wait()
    assert all(not site.job(job.id).done for job in jobs)
    assert sample.alive() == []


def test_a_stop_under_pressure_is_bounded(site: Site) -> None:
    tree = site.start("--shutdown-timeout", "1", "--concurrency", "20", "--processes", "2")
    site.ready(2)
    site.app.submit_many([sample.sleepy.call(0.005) for _ in range(3000)])
    site.app.submit_many([sample.wait_isolated.call() for _ in range(3)])
    site.app.submit_many([sample.sleepy.call(600.0) for _ in range(5)])
    wait_until(lambda: site.app.store.count(_succeeded()) > 100)
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0
    assert site.app.store.attempts is not None
    lost = site.app.store.events("attempt_lost")
    assert lost == []


def test_stop_while_starting(site: Site) -> None:
    tree = site.start()
    wait_until(lambda: tree._below(tree.guard.pid, "headgate.worker.keeper"))
    tree.signal(signal.SIGTERM)
    assert tree.wait() == 0


def _succeeded():
    from headgate.jobs import JobFilter

    return JobFilter(states=frozenset(("succeeded",)))


@pytest.mark.parametrize("steps", range(6))
def test_a_ticker_that_is_told_to_end_as_its_bell_rings_ends(tmp_path: Path, steps: int) -> None:
    """The worker ends when its ticker has. `steps`: of the event loop, from one to the other."""

    async def run(store: Store) -> None:
        ticker = Ticker(store)
        ticking = asyncio.create_task(ticker.run())
        waiters = ticker._woken._waiters  # type: ignore[attr-defined]
        await wait_until_async(lambda: waiters, why="it rests between two rounds")
        ticker._hear()
        for _ in range(steps):
            await asyncio.sleep(0)
        ticking.cancel()
        ended, _ = await asyncio.wait([ticking], timeout=10)
        assert ended, "it was told to end, and rests again"

    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        asyncio.run(run(store))
