"""kill -9 of any process of a worker: its slots are free soon, and nothing of it is alive then.

Each test runs an isolated task that holds the only slot of `gate`, with one child that
ignores SIGTERM and one in a session of its own. Whoever gets the slot next looks at /proc.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.kernel import kill, look
from tests.promised import promised
from tests.waiting import PATIENCE, wait_until
from tests.worker import sample
from tests.worker.site import Site, Tree

NESTS = {"isolated": sample.nest, "thread": sample.nest_thread}


def nested(site: Site, kind: str = "isolated") -> tuple[Tree, str]:
    """A worker whose only job has built its nest."""
    job = NESTS[kind].submit()
    tree = site.start("--concurrency", "4")
    site.wait_for("nested")
    assert len(sample.alive()) >= 3
    return tree, job.id


def check_granted_after_death(site: Site, job: str) -> None:
    again = site.wait_for("again")[0]
    assert again["alive"] == [], "something of the dead worker lived when its slot was granted"
    record = site.until_done(job)
    assert record.state == "succeeded"
    assert record.attempt == 2
    outcomes = [attempt.outcome for attempt in site.app.store.attempts(job)]
    assert sorted(outcomes) == ["lost", "succeeded"]


@pytest.mark.parametrize("kind", NESTS)
def test_worker_process(site: Site, kind: str) -> None:
    tree, job = nested(site, kind)
    probe = sample.probe.submit()
    (pid,) = tree.processes()
    os.kill(pid, signal.SIGKILL)
    check_granted_after_death(site, job)
    assert probe.result(timeout=PATIENCE) == []
    assert tree.processes() != [pid]
    assert tree.stop() == 0


def test_slots_of_a_killed_worker_process_are_free_within_two_seconds(site: Site) -> None:
    """Seen by another worker, which needs not be started first."""
    first = site.start("--name", "other")
    site.ready()
    job = sample.nest.submit()
    site.wait_for("nested")
    (worker,) = first.processes()
    second = site.start("--name", "second")
    site.ready(2)
    with promised(2.0) as promise:
        os.kill(worker, signal.SIGKILL)
        promise.kept = site.wait_for("again")[0]["t"]
    check_granted_after_death(site, job.id)
    assert second.stop() == 0


def test_other_worker_processes_keep_their_isolated_tasks(site: Site) -> None:
    tree = site.start("--processes", "2", "--concurrency", "1")
    site.ready(2)
    kept = sample.wait_isolated.submit("keep")
    site.wait_for("running", kind="isolated")
    deaf = sample.deaf_free.submit()
    running = site.wait_for("running", kind="deaf")[0]
    os.kill(running["pid"], signal.SIGKILL)
    wait_until(lambda: site.job(deaf.id).attempt == 2, why="the lost one runs again")
    site.go()
    site.go("keep")
    assert kept.result(timeout=PATIENCE) == "went on"
    assert site.job(kept.id).attempt == 1
    assert deaf.result(timeout=PATIENCE) == "went on"
    assert tree.stop() == 0


@pytest.mark.parametrize("kind", NESTS)
def test_keeper(site: Site, kind: str) -> None:
    tree, job = nested(site, kind)
    other = site.start("--name", "other")
    site.ready(2)
    os.kill(tree.keeper(), signal.SIGKILL)
    check_granted_after_death(site, job)
    assert tree.wait() != 0, "the guard ends non-zero, for a supervisor to restart it"
    assert other.stop() == 0


def test_keeper_under_a_frozen_guard(site: Site) -> None:
    """The worker dies with its keeper, the children of its threads do not. Only the files in
    the guard's hands keep the slot from being granted before it can kill them."""
    tree, job = nested(site, "thread")
    other = site.start("--name", "other")
    site.ready(2)
    site.freeze([tree.guard.pid])
    os.kill(tree.keeper(), signal.SIGKILL)
    wait_until(lambda: not any(who.startswith("worker") for who in sample.alive()))
    for _ in range(3):
        assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    assert len(sample.alive()) == 2
    assert not site.events("again")
    site.thaw([tree.guard.pid])
    check_granted_after_death(site, job)
    tree.wait()
    assert other.stop() == 0


@pytest.mark.parametrize("kind", NESTS)
def test_guard(site: Site, kind: str) -> None:
    tree, job = nested(site, kind)
    other = site.start("--name", "other")
    site.ready(2)
    keeper = tree.keeper()
    tree.signal(signal.SIGKILL)
    tree.wait()
    check_granted_after_death(site, job)
    wait_until(lambda: look(keeper) is None, why="the keeper ends too")
    assert other.stop() == 0


KILLS = range(1, 7) if os.environ.get("HEADGATE_PROOF") == "full" else [3]
"""After which of its kills the keeper dies. Its worker is the first of six processes; ended from
the top down, the two wardens would be the next."""


@pytest.mark.parametrize("kills", KILLS)
def test_keeper_amid_its_killing(site: Site, kills: int) -> None:
    """The guard is gone, the keeper ends what is left, and is killed after some of it: what it
    has not ended yet is ended by the wardens, which it would have ended last."""
    job = sample.nest.submit()
    tree = site.start_module("tests.crash.dying", str(kills))
    site.wait_for("nested")
    other = site.start("--name", "other")
    site.ready(2)
    keeper = look(tree.keeper())
    warden = look(site.events("process", role="warden")[0]["who"])
    assert keeper is not None
    assert warden is not None
    outer = look(warden.parent)
    assert outer is not None
    # Frozen, they cannot be quicker than the keeper: it alone says who ends in which order.
    site.freeze([warden.pid, outer.pid])
    tree.signal(signal.SIGKILL)
    tree.wait()
    wait_until(lambda: look(keeper.pid) is None, why="the keeper is killed in the middle")
    kill(warden, signal.SIGCONT)
    kill(outer, signal.SIGCONT)
    check_granted_after_death(site, job.id)
    assert other.stop() == 0


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_guard_keeper_and_worker_at_once(site: Site, stopped: bool) -> None:
    """Nobody is left to clean up but the warden, which holds the lock until it has."""
    tree, job = nested(site)
    other = site.start("--name", "other")
    site.ready(2)
    (worker,) = tree.processes()
    victims = [tree.guard.pid, tree.keeper(), worker]
    if stopped:
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
    for pid in victims:
        # The death of one before it may have ended it already.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    tree.wait()
    check_granted_after_death(site, job)
    assert other.stop() == 0


@pytest.mark.parametrize("who", ["warden", "outer warden"])
def test_warden_alone(site: Site, who: str) -> None:
    """Whichever of the two is left kills what the code had started, an orphan without any mark
    too, and the worker tells the attempt's end only after that."""
    job = sample.nest.submit(unmarked=True)
    tree = site.start("--concurrency", "4")
    site.wait_for("nested")
    assert any(name.startswith("no-environment") for name in sample.alive())
    warden = look(site.events("process", role="warden")[0]["who"])
    assert warden is not None
    probe = sample.probe.submit()
    os.kill(warden.pid if who == "warden" else warden.parent, signal.SIGKILL)
    try:
        assert site.until_done(job.id).reason == "crashed"
        assert probe.result(timeout=PATIENCE) == []
    finally:
        for left in site.events("process", role="no-environment"):
            process = look(left["who"])
            if process is not None and process.started == left["started"]:
                kill(process)  # nothing else would find it
    assert tree.stop() == 0


def test_death_while_many_jobs_run(site: Site) -> None:
    """Lost attempts run again; every job ends well, and the gate was never held twice."""
    tree = site.start("--processes", "2", "--concurrency", "10")
    site.ready(2)
    jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(150)])
    killed: dict[int, float] = {}
    for round_ in range(3):
        site.wait_for("gate-in", count=20 + 30 * round_)
        pid = tree.processes(2)[round_ % 2]
        killed[pid] = time.monotonic()
        os.kill(pid, signal.SIGKILL)
    for job in jobs:
        assert site.until_done(job.id).state == "succeeded"
    inside: dict[int, int] = {}
    for event in site.events():
        if event["event"] == "gate-in":
            # A killed process never came out; whoever enters next does so after its death.
            alive = [pid for pid in inside.values() if killed.get(pid, math.inf) > event["t"]]
            assert alive == []
            inside = {event["n"]: event["pid"]}
        elif event["event"] == "gate-out":
            inside.pop(event["n"], None)
    assert tree.stop() == 0


def clear(folder: Path) -> None:
    """Whoever is at work there may put something into it meanwhile."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    raise AssertionError(f"{folder} does not stay empty")


def test_a_cleared_run_folder_frees_no_slot(site: Site) -> None:
    """Whoever comes later cannot ask for the lock any more, and must not take that for death."""
    tree = site.start("--name", "old")
    holder = sample.wait_thread.submit()
    site.wait_for("running")
    clear(site.folder / "jobs.db.run")
    other = site.start("--name", "new")
    site.ready(2)
    assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    newcomer = sample.touch_gate.submit(1)
    assert {w.name: w.state for w in site.app.store.workers()} == {"old": "alive", "new": "alive"}
    site.app.store.sweep()
    assert (holder.status(), newcomer.status()) == ("running", "ready")
    os.kill(tree.processes()[0], signal.SIGKILL)
    assert newcomer.result(timeout=PATIENCE) == 1, "really dead, it is taken for dead all the same"
    site.go()
    assert site.until_done(holder.id).state == "succeeded"
    assert (tree.stop(), other.stop()) == (0, 0)
