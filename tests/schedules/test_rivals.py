"""On PostgreSQL, where many write at once: ticks against claims, declarations and other tickers
that are in the middle of their transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker
from headgate.turns import ClaimState
from tests.conformance.conftest import HandClock, Rig
from tests.postgres.rival import Rival, Waiter, until_blocked
from tests.schedules.desk import Desk, spec
from tests.stores import store_url
from tests.waiting import PATIENCE


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Desk, str]]:
    url = store_url("postgres", tmp_path, quick=True)
    clock = HandClock()
    store = open_store(url, clock=clock)
    desk = Desk(Rig(store, clock))
    yield desk, url
    store.close()


def test_who_ticks_waits_for_nobody(place: tuple[Desk, str]) -> None:
    """Another ticker holds one of them: that one is left to it, the others are ticked at once."""
    desk, url = place
    desk.declare(spec("a"), spec("b"))
    desk.tick()
    desk.rig.clock.advance(60)
    with Rival(url) as rival:
        rival.run("SELECT 1 FROM headgate.schedules WHERE name = 'a' FOR UPDATE")
        desk.tick()
        assert desk.outcomes("a") == []
        assert desk.outcomes("b") == [(60, "run")]
        rival.rollback()  # it was killed
    desk.tick()
    assert desk.outcomes("a") == [(60, "run")]


def test_a_run_that_is_being_claimed_takes_no_tick(place: tuple[Desk, str]) -> None:
    """The claim began before the tick, whenever it commits: a run of its own is due."""
    desk, url = place
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    with Rival(url) as rival:
        rival.run("SELECT 1 FROM headgate.ready FOR UPDATE")  # as a claim does
        desk.wait(60)
        rival.rollback()
    assert desk.outcomes() == [(60, "run"), (120, "run")]
    desk.wait(60)
    assert desk.outcomes()[-1] == (180, "merged")


def test_a_retry_that_is_being_claimed_takes_no_tick(place: tuple[Desk, str]) -> None:
    desk, url = place
    desk.declare(spec(jitter=1000.0))
    desk.tick()
    desk.wait(60)
    with Rival(url) as rival:
        rival.run("SELECT 1 FROM headgate.scheduled FOR UPDATE")  # as who puts it into line does
        desk.wait(60)
        rival.rollback()
    assert desk.outcomes() == [(60, "run"), (120, "run")]


def test_what_a_tick_holds_is_claimed_after_it(place: tuple[Desk, str]) -> None:
    desk, url = place
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    store = desk.store
    store.register(NewWorker("w", "w", pid=os.getpid(), tasks=("task",), lease=1e6))
    claim = Exchange("w", claim=Claim(5, frozenset({"task"}), ClaimState()))
    with Rival(url) as rival:
        rival.run(
            "SELECT 1 FROM headgate.jobs j JOIN headgate.ready q ON q.job = j.n FOR UPDATE OF q"
        )  # as a tick does
        assert store.exchange(claim).claimed == ()
        rival.commit()
    assert len(store.exchange(claim).claimed) == 1


def test_a_tick_rings_for_what_it_held(place: tuple[Desk, str]) -> None:
    desk, _ = place
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    bell = desk.store.bell("work")
    try:
        bell.drain()
        desk.wait(60)
        assert desk.outcomes()[-1] == (120, "merged")
        assert bell.wait(PATIENCE)
    finally:
        bell.close()


def test_those_who_declare_the_same_do_so_one_after_the_other(place: tuple[Desk, str]) -> None:
    desk, url = place
    desk.declare(spec("a"))
    other = Desk(Rig(open_store(url, clock=desk.rig.clock), desk.rig.clock))
    with Rival(url) as rival, Rival(url) as watch:
        rival.lock("\x1fschedules")
        first = Waiter(lambda: desk.declare(spec("a"), spec("b"), declarer="one"))
        second = Waiter(lambda: other.declare(spec("a"), spec("b"), declarer="two"))
        until_blocked(watch, 2)
        rival.rollback()
        first.result()
        second.result()
    found = {one.spec.name: one.declarers for one in desk.store.schedules()}
    assert found == {"a": ("app", "one", "two"), "b": ("one", "two")}
    other.store.close()
