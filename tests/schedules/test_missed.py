"""On every store: ticks that were missed, each kept where all are asked for; how late is missed."""

from __future__ import annotations

import pytest

from headgate.jobs import JobFilter
from headgate.schedules.template import to_job
from tests.conformance.conftest import Rig
from tests.schedules.desk import START, Desk, spec

READY = JobFilter(states=frozenset(["ready"]))


@pytest.fixture
def desk(rig: Rig) -> Desk:
    return Desk(rig)


def test_each_missed_tick_is_kept_as_a_run_where_all_are_asked_for(desk: Desk) -> None:
    desk.declare(spec(missed="all", missed_window=3600))
    desk.tick()
    desk.wait(630)
    assert desk.outcomes() == [(60 * n, "run") for n in range(1, 11)]
    assert desk.store.count(READY) == 10
    # One that is on time has its own run, and what comes while it waits is merged into that one:
    # those that were made up for stay as they are.
    desk.wait(30)
    assert desk.outcomes()[10:] == [(660, "run")]
    desk.wait(60)
    tick = desk.store.run_now("tidy", to_job(spec().job, "tidy", START + 721, None), "me")
    assert desk.outcomes()[11:] == [(720, "merged"), (721, "merged")]
    assert tick.job == desk.ticks()[10].job
    assert desk.store.count(READY) == 11


def test_one_that_was_made_up_for_comes_back_beside_the_others(desk: Desk) -> None:
    desk.declare(spec(missed="all", missed_window=3600))
    desk.tick()
    desk.wait(190)
    hand = desk.rig.hand()
    assert len(hand.claim(1)) == 1
    hand.leave()
    desk.rig.hands.remove(hand)
    assert desk.store.count(READY) == 3


def test_all_that_was_missed_gives_way_to_skip_if_running(desk: Desk) -> None:
    desk.declare(spec(missed="all", missed_window=3600, skip_if_running=True))
    desk.tick()
    desk.wait(190)
    assert [what for _, what in desk.outcomes()] == ["run", "merged", "merged"]


@pytest.mark.parametrize(
    ("late", "waited", "outcome"),
    [(0, 1.5, "run"), (0, 3, "missed"), (10, 9, "run"), (10, 11, "missed"), (300, 299, "run")],
)
def test_how_late_is_still_on_time(desk: Desk, late: float, waited: float, outcome: str) -> None:
    desk.declare(spec(when="0 * * * *", late=late))
    desk.tick()
    found = desk.store.schedule("tidy")
    assert found is not None
    assert found.next_at is not None
    desk.wait(found.next_at - START + waited)
    assert [what for _, what in desk.outcomes()] == [outcome]
