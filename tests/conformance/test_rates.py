"""Rates: at most so many starts in a period, by the store's own clock."""

from __future__ import annotations

import random

import pytest

from headgate.limits import Need, Needs
from headgate.rates import Pace
from headgate.stores.protocol import Publication
from tests.conformance.conftest import Rig, need, one_of
from tests.conformance.pacing import declare, starts, wake_in

# --- the period -------------------------------------------------------------------------------


def test_no_more_than_its_value_start_in_a_period(rig: Rig) -> None:
    declare(rig, 3, per=60)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    assert starts(hand) == 3
    assert starts(hand) == 0, "what has ended has started all the same"
    rig.clock.advance(59.9)
    assert starts(hand) == 0
    rig.clock.advance(0.1)
    assert starts(hand) == 3


def test_what_still_runs_does_not_count_after_its_period(rig: Rig) -> None:
    declare(rig, 2, per=10)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    rig.clock.advance(10)
    assert len(hand.claim()) == 2, "a rate counts starts, not what runs"


def test_a_worker_leaves_no_starts_to_others(rig: Rig) -> None:
    """Nobody holds them, so there is nothing to offer."""
    declare(rig, 4, per=60)
    rig.submit(10, needs=need("api"))
    assert len(rig.hand().claim(left={"api": 2})) == 4


def test_the_period_slides(rig: Rig) -> None:
    declare(rig, 3, per=60)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    assert starts(hand, room=1) == 1
    rig.clock.advance(40)
    assert starts(hand) == 2
    rig.clock.advance(20)
    assert starts(hand) == 1, "only the first has left the last 60 seconds"
    rig.clock.advance(39.9)
    assert starts(hand) == 0
    rig.clock.advance(0.1)
    assert starts(hand) == 2


def test_the_same_over_all_workers(rig: Rig) -> None:
    declare(rig, 5, per=60)
    rig.submit(20, needs=need("api"))
    hands = [rig.hand(f"w{n}") for n in range(4)]
    assert sum(starts(hand, room=2) for hand in hands) == 5
    rig.clock.advance(60)
    assert sum(starts(hand, room=2) for hand in hands) == 5


def test_the_wall_clock_may_be_set(rig: Rig) -> None:
    declare(rig, 2, per=60)
    rig.submit(6, needs=need("api"))
    hand = rig.hand()
    assert starts(hand) == 2
    rig.clock.jump(3600)
    assert starts(hand) == 0, "no time has passed"
    rig.clock.jump(-7200)
    assert starts(hand) == 0
    rig.clock.advance(60)
    assert starts(hand) == 2


def test_by_chance_never_more_in_any_window(rig: Rig) -> None:
    """Any order of claims by any number of workers: every window of the period, and of the
    burst's part of it, holds no more than it may."""
    dice = random.Random(7)
    value, per, burst = 20, 10.0, 4
    declare(rig, value, per, burst)
    rig.submit(400, needs=need("api"))
    hands = [rig.hand(f"w{n}") for n in range(3)]
    found: list[float] = []
    for _ in range(250):
        rig.clock.advance(dice.choice((0.0, 0.001, 0.003, 0.1, 0.7, 2.0)))
        count = starts(dice.choice(hands), room=dice.randint(1, 6))
        found += [rig.clock.time] * count
    assert len(found) > 100
    for i, at in enumerate(found):
        assert sum(at <= other < at + per - 1e-6 for other in found[i:]) <= value
        window = per * burst / value
        assert sum(at <= other < at + window - 1e-6 for other in found[i:]) <= burst


# --- bursts -----------------------------------------------------------------------------------


def test_a_burst_of_one_spaces_the_starts(rig: Rig) -> None:
    declare(rig, 6, per=60, burst=1)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    for _ in range(4):
        assert starts(hand) == 1
        rig.clock.advance(9.9)
        assert starts(hand) == 0
        rig.clock.advance(0.11)


def test_a_burst_is_what_may_start_at_once(rig: Rig) -> None:
    declare(rig, 6, per=60, burst=2)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    assert starts(hand) == 2
    assert wake_in(hand) == pytest.approx(20, abs=0.1)
    rig.clock.advance(20.1)
    assert starts(hand) == 2
    rig.clock.advance(20.1)
    assert starts(hand) == 2
    rig.clock.advance(19.7)
    assert starts(hand) == 0, "six in the last 60 seconds"


def test_a_burst_of_as_many_as_the_value_is_none(rig: Rig) -> None:
    declare(rig, 3, per=60, burst=9)
    rig.submit(5, needs=need("api"))
    assert starts(rig.hand()) == 3


# --- units, keys, one-ofs, and limits beside it -------------------------------------------------


def test_units(rig: Rig) -> None:
    declare(rig, 10, per=60)
    rig.submit(5, needs=need("api", units=4))
    hand = rig.hand()
    assert starts(hand) == 2
    assert rig.held("api") == 8
    rig.submit(5, needs=need("api"), task="other")
    assert starts(hand) == 2
    rig.clock.advance(60)
    assert starts(hand, room=2) == 2


def test_each_key_has_a_rate_of_its_own_and_they_take_turns(rig: Rig) -> None:
    declare(rig, 2, per=60, name="tenant")
    rig.tenant("a", 100)
    rig.tenant("b", 5)
    rig.tenant("c", 5)
    hand = rig.hand()
    for _ in range(2):
        turns = [claimed.turn for claimed in hand.claim()]
        hand.end_all()
        assert sorted(turns) == ["a", "a", "b", "b", "c", "c"]
        rig.clock.advance(60)


def test_keys_share_a_rate_by_turns(rig: Rig) -> None:
    declare(rig, 3, per=60)
    for key, count in (("a", 100), ("b", 5), ("c", 5)):
        rig.submit(count, needs=need("api"), turn=key)
    hand = rig.hand()
    found: list[str] = []
    for _ in range(4):
        found += [claimed.turn for claimed in hand.claim()]
        hand.end_all()
        rig.clock.advance(60)
    assert {turn: found.count(turn) for turn in "abc"} == {"a": 4, "b": 4, "c": 4}


def test_one_of_several_rates(rig: Rig) -> None:
    rates = {"east": Pace(60.0), "west": Pace(10.0)}
    rig.store.publish(Publication("test", code={"east": 2, "west": 1}, code_rates=rates))
    rig.submit(10, needs=one_of("east", "west"))
    hand = rig.hand()
    picked = [claimed.picked for claimed in hand.claim()]
    hand.end_all()
    assert sorted(picked) == [("east",), ("east",), ("west",)]
    assert wake_in(hand) == pytest.approx(10, abs=0.1), "the one that opens first"
    rig.clock.advance(10.01)
    assert starts(hand) == 1


def test_a_rate_beside_a_limit(rig: Rig) -> None:
    """What runs holds the limit and not the rate; all or nothing."""
    declare(rig, 3, per=60, door=1)
    rig.submit(10, needs=Needs((Need("api"), Need("door"))))
    hand = rig.hand()
    (first,) = hand.claim()
    assert [group for group, _ in first.groups] == ["door"], "a start is not held"
    assert hand.claim() == []
    assert rig.held("api") == 1, "who found the door shut has started nothing"
    hand.end(first)
    assert starts(hand) == 1
    assert starts(hand) == 1
    assert starts(hand) == 0
    assert rig.held("door") == 0


def test_who_waits_for_a_rate_keeps_nothing_from_others(rig: Rig) -> None:
    declare(rig, 1, per=3600, door=1)
    rig.submit(3, needs=Needs((Need("api"), Need("door"))))
    rig.submit(20, needs=need("door"), task="other")
    hand = rig.hand()
    served = 0
    for _ in range(20):
        served += starts(hand)
        rig.clock.advance(1)
    assert served == 20, "one of the first, and one of the others each second"


def test_one_start_at_a_time_reserves_nothing(rig: Rig) -> None:
    """It comes by itself, in turn: who needs other groups beside it has no older claim to it."""
    declare(rig, 3, per=18, door=5)
    rig.submit(30, needs=Needs((Need("api"), Need("door"))))
    for task in ("other", "wide"):
        rig.submit(30, needs=need("api"), task=task)
    hand = rig.hand()
    for _ in range(3):  # from then on one start every six seconds, for three lanes
        assert starts(hand, room=1) == 1
        rig.clock.advance(6)
    for _ in range(40):
        starts(hand)
        assert rig.store.group("api")[0].reserved_by is None
        assert rig.store.group("door")[0].reserved_by is None
        rig.clock.advance(1)


def test_a_wide_job_gathers_starts_among_narrow_ones(rig: Rig) -> None:
    declare(rig, 4, per=8)
    (wide,) = rig.submit(needs=need("api", units=4), task="wide")
    hand = rig.hand()
    for _ in range(60):
        rig.submit(2, needs=need("api"))
        starts(hand, room=1)
        rig.clock.advance(1)
        if rig.state(wide) == "succeeded":
            return
    raise AssertionError("the narrow ones pass it by for ever")


# --- when to ask again ------------------------------------------------------------------------


def test_a_worker_asks_again_when_the_rate_opens(rig: Rig) -> None:
    declare(rig, 2, per=60)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    assert starts(hand, room=1) == 1
    rig.clock.advance(20)
    assert starts(hand, room=1) == 1
    assert wake_in(hand) == pytest.approx(40, abs=0.1)


def test_a_keyed_rate_too(rig: Rig) -> None:
    declare(rig, 1, per=60, name="tenant")
    rig.tenant("a", 3)
    hand = rig.hand()
    assert starts(hand) == 1
    rig.clock.advance(20)
    rig.tenant("b", 3)
    assert starts(hand) == 1
    assert wake_in(hand) == pytest.approx(40, abs=0.1)


def test_nobody_wakes_for_a_rate_that_nothing_waits_for(rig: Rig) -> None:
    declare(rig, 5, per=60)
    rig.submit(3, needs=need("api"))
    hand = rig.hand()
    assert starts(hand) == 3
    assert wake_in(hand) is None
