"""SIGSTOP and SIGCONT: a frozen worker keeps its slots, so nothing is ever over its limit."""

from __future__ import annotations

import signal

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.worker import sample
from tests.worker.site import Site


@pytest.mark.parametrize("who", ["worker", "keeper", "guard", "all"])
def test_frozen_and_thawed(site: Site, who: str) -> None:
    tree = site.start("--name", "frozen")
    site.ready()
    held = sample.wait_isolated.submit()
    site.wait_for("running")
    frozen = {
        "worker": tree.processes,
        "keeper": lambda: [tree.keeper()],
        "guard": lambda: [tree.guard.pid],
        "all": lambda: [tree.guard.pid, tree.keeper(), *tree.processes()],
    }[who]()
    site.freeze(frozen)
    other = site.start("--name", "other")
    site.ready(2)
    waiting = sample.probe.submit()
    beside = sample.add.submit(1)
    assert beside.result(timeout=PATIENCE) == 2  # the other worker works, with the gate held
    store = site.app.store
    store.sweep()
    assert store.group("gate")[0].held == 1
    assert waiting.status() == "ready"
    site.go()
    site.thaw(frozen)
    assert held.result(timeout=PATIENCE) == "went on"
    assert site.job(held.id).attempt == 1
    waiting.result(timeout=PATIENCE)
    assert tree.stop() == 0
    assert other.stop() == 0


def test_stalled_is_shown_and_timeouts_are_enforced(site: Site) -> None:
    """A worker process that does not answer is shown as stalled; once an attempt in it is
    past its time-out, the process is killed."""
    (site.folder / "headgate.toml").write_text("[concurrency]\ndefault_lease_duration_secs = 1\n")
    config = str(site.folder / "headgate.toml")
    tree = site.start(HEADGATE_CONFIG=config)
    site.ready()
    job = sample.wait_async.using(timeout=4).submit()
    site.wait_for("running")
    (pid,) = tree.processes()
    site.freeze([pid])
    store = site.app.store
    wait_until(lambda: [w.state for w in store.workers()] == ["stalled"], why="shown as stalled")
    wait_until(lambda: pid not in tree._below(tree.guard.pid, "headgate.worker.process"))
    wait_until(lambda: "lost" in [a.outcome for a in store.attempts(job.id)])
    site.go()
    assert job.result(timeout=PATIENCE) == "went on"
    assert tree.stop() == 0


def test_stalled_and_alive_again(site: Site) -> None:
    (site.folder / "headgate.toml").write_text("[concurrency]\ndefault_lease_duration_secs = 1\n")
    tree = site.start(HEADGATE_CONFIG=str(site.folder / "headgate.toml"))
    # One that is not ready yet may take its time.
    wait_until(lambda: "is ready" in tree.output())
    assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    (pid,) = tree.processes()
    site.freeze([pid])
    store = site.app.store
    wait_until(lambda: [w.state for w in store.workers()] == ["stalled"])
    site.thaw([pid])
    wait_until(lambda: [w.state for w in store.workers()] == ["alive"])
    assert tree.processes() == [pid]
    assert tree.stop() == 0


def test_stall_timeout_kills_anyway(site: Site) -> None:
    tree = site.start("--stall-timeout", "1.5", "--concurrency", "1")
    site.ready()
    job = sample.blocks_loop.submit(600.0)
    pid = site.wait_for("running")[0]["pid"]
    store = site.app.store
    wait_until(lambda: "lost" in [a.outcome for a in store.attempts(job.id)])
    assert pid not in tree._below(tree.guard.pid, "headgate.worker.process")
    job.cancel()
    tree.signal(signal.SIGTERM)
    tree.signal(signal.SIGTERM)
    tree.wait()
