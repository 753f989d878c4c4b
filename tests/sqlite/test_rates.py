"""Starts under a rate outlive the boot of the machine that noted them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.rates import Pace
from headgate.stores import open_store
from headgate.stores.protocol import Publication
from tests.conformance.conftest import HandClock, Rig, need


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    clock = HandClock()
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)
    rig = Rig(store, clock)
    yield rig
    for hand in rig.hands:
        hand.end_all()
        hand.leave()
    store.close()


def reboot(folder: Path) -> None:
    """What was noted is of another boot now, whose clock had another zero."""
    with closing(sqlite3.connect(folder / "jobs.db")) as file, file:
        file.execute("UPDATE slots SET boot = 'before', ends = ends + 1e6 WHERE boot IS NOT NULL")


def test_starts_from_before_a_reboot_count(rig: Rig, tmp_path: Path) -> None:
    rates = {"api": Pace(3600.0)}
    rig.store.publish(Publication("test", code={"api": 3}, code_rates=rates))
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim(2)) == 2
    reboot(tmp_path)
    rig.clock.advance(1000)
    rig.store.sweep()
    assert rig.held("api") == 2
    assert len(hand.claim()) == 1
    reboot(tmp_path)
    rig.clock.advance(2500)
    assert rig.held("api") == 3, "a little longer than an hour, for they were noted together"
    rig.clock.advance(110)
    assert len(hand.claim()) == 2, "the first two have left"
    rig.clock.advance(3610)
    rig.store.sweep()
    assert rig.held("api") == 0


def test_a_wall_clock_that_was_wrong_shuts_no_rate_for_ever(rig: Rig, tmp_path: Path) -> None:
    rates = {"api": Pace(60.0)}
    rig.store.publish(Publication("test", code={"api": 1}, code_rates=rates))
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    rig.clock.jump(1e8)
    assert len(hand.claim()) == 1
    rig.clock.jump(-1e8)
    reboot(tmp_path)
    assert len(hand.claim()) == 1, "noted years from now: nothing that could still count"
