"""The ledger stays small, and nothing is lost on the way from entries to runs to checkpoints."""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from headgate.clock import Clock
from headgate.errors import StoreUnavailable
from headgate.jobs import Retention
from headgate.stores.bucket import alone, keeping, replacing
from headgate.stores.bucket.alone import Alone
from tests.bucket.machines import LEDGER, Machine, need, opened, same
from tests.bucket.memory import MemoryObjects
from tests.waiting import wait_until

dice = random.Random(4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and checkpoints as soon as there is anything to gather."""
    monkeypatch.setattr(keeping, "SEAL_ENTRIES", 4)
    monkeypatch.setattr(keeping, "CHECKPOINT_BYTES", 4000)
    monkeypatch.setattr(keeping, "PIECE", 16)
    monkeypatch.setattr(replacing, "INLINE", 2000)


def text(size: int) -> str:
    return json.dumps([["x" * size], {}])


def live(machine: Machine, rounds: int) -> None:
    """A worker's life: submit, claim, finish, fail, slots, changes of limits."""
    worker = machine.worker(lease=1e6)
    for n in range(rounds):
        machine.add(dice.randrange(1, 12), args=text(dice.randrange(400)))
        machine.add(2, needs=need("narrow"))
        claimed = machine.claim(worker, dice.randrange(1, 12))
        machine.finish(worker, claimed)
        if n % 5 == 0:
            machine.prune(Retention(0.0, 0.0, 0.0))
    machine.unregister(worker)


@pytest.mark.usefixtures("small")
def test_three_machines_hold_the_same(tmp_path: Path) -> None:
    """One writes, one writes too, a third comes when all is over."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.limit("narrow", 2)
        both = [threading.Thread(target=live, args=(machine, 25)) for machine in (a, b)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        ledger = a.ledger()
        assert ledger.checkpoint is not None
        assert ledger.checkpoint.seq > 40
        with opened(tmp_path, objects, "c") as (c,):
            same(a, b, c)


@pytest.mark.usefixtures("small")
def test_one_machine_never_stops_gathering(tmp_path: Path) -> None:
    """A run that a checkpoint has overtaken is not waited for."""
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        for _ in range(60):
            a.add(3)
            a.kept()
            assert len(a.ledger().recent) <= 8
            assert len(a.ledger().runs) <= 12


@pytest.mark.usefixtures("small")
def test_who_was_overtaken_gathers_again(tmp_path: Path) -> None:
    with opened(tmp_path, MemoryObjects(), "a", "b") as (a, b):
        for _ in range(20):
            for machine in (a, b):
                machine.add(1)
            a.kept()
            b.kept()
        for _ in range(20):
            a.add(1)
            a.kept()
            assert len(a.ledger().recent) <= 8
        for _ in range(20):
            b.add(1)
            b.kept()
            assert len(b.ledger().recent) <= 8


@pytest.mark.usefixtures("small")
def test_what_nobody_named_for_long_is_not_named_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine gathers and then says nothing for hours: others may have deleted the objects."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        while a._commits.keeper._run is None:
            a.add(1)
            a.kept()
        later = Clock().boot() + keeping.FORGOTTEN
        monkeypatch.setattr(Clock, "boot", lambda _: later)
        b.tables()
        assert b._commits.keeper.collect(older=-1.0) > 0
        a.add(1)
        with opened(tmp_path, objects, "c") as (c,):
            same(a, b, c)


@pytest.mark.usefixtures("small")
def test_nothing_that_is_named_is_deleted(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        for n in range(30):
            a.add(5, args=text(100 * n))  # the later ones are objects of their own
            b.tables()
            a.kept()
            if n % 3 == 0:
                b._commits.keeper.collect(older=-1.0)
                # What a has gathered and not named yet would be an hour old by now.
                a._commits.keeper._made_at = float("-inf")
        a.add(40, args=text(500))
        assert any(entry.object for entry in a.ledger().recent)
        a.kept()
        deleted = a._commits.keeper.collect(older=-1.0)
        assert deleted + len(objects.held) > 3
        with opened(tmp_path, objects, "c") as (c,):
            same(a, b, c)
        assert a._commits.keeper.collect() == 0, "what is young is left alone"


@pytest.mark.usefixtures("small")
def test_a_forgotten_part_of_the_same_content_is_not_named_again(tmp_path: Path) -> None:
    """Somebody may have found it forgotten, and be about to delete it."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        for _ in range(12):
            a.add(4, args=text(300))
            a.kept()
        assert a.ledger().checkpoint is not None
        keeper = a._commits.keeper
        head = a._replica.head()
        assert head is not None
        with a._replica.db.read() as tx:
            forgotten = keeper._dump(tx.connection, head)  # nobody ever names it
            again = keeper._dump(tx.connection, head)
        named = set(keeper._manifest(a.ledger().checkpoint).parts)
        first, second = (set(keeper._manifest(one).parts) for one in (forgotten, again))
        assert first & second <= named


def test_a_missing_object_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "INLINE", 100)
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        a.add(3)
        for key in list(objects.held):
            if key != LEDGER:
                del objects.held[key]
        with pytest.raises(StoreUnavailable, match=r"all/runs/.* is missing"):
            Machine(tmp_path, objects, "c")


def _meet(all_there: Barrier) -> None:
    global _all_there
    _all_there = all_there
    alone.TURN = 3600.0  # however slow this machine is


def _take(path: Path) -> bool:
    _all_there.wait()
    return Alone(path).take()


def test_of_a_machines_processes_one_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(4, _meet, (spawn.Barrier(4),)) as processes:
        assert sum(processes.map(_take, [tmp_path / "keeper.lock"] * 8, chunksize=1)) == 1
    ours, theirs = Alone(tmp_path / "turn"), Alone(tmp_path / "turn")
    assert ours.take()
    assert ours.take()
    assert not theirs.take()
    ours.over()
    assert theirs.take()
    # Whoever has it and does nothing more keeps the others for a moment only.
    monkeypatch.setattr(alone, "TURN", 0.2)
    theirs.keep()
    assert not ours.take()
    wait_until(ours.take)
    # Where there is no such file to be had, everybody is alone.
    assert Alone(tmp_path / "gone" / "turn").take()


@pytest.mark.usefixtures("small")
def test_two_processes_write_no_run_twice(tmp_path: Path) -> None:
    """Two stores on one copy, as two processes of a machine have it."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "same", "same") as both:
        for _ in range(40):
            for machine in both:
                machine.add(1)
            for machine in both:
                machine.kept()
        runs = [Path(key).name.split("-")[0] for key in objects.held if "/runs/" in key]
    assert len(runs) > 5
    assert len(runs) == len(set(runs)), "no two begin with the same entry"
