"""Rates: at most so many starts in a period, by the store's own clock."""

from __future__ import annotations

import random

import pytest

from headgate.errors import IsARate
from headgate.limits import Need, Needs
from headgate.rates import STEPS, Pace
from headgate.stores.protocol import Chain, Exchange, Publication, SlotRequest
from headgate.why import explain

from .conftest import Hand, Rig, need, one_of


def declare(
    rig: Rig,
    value: int | None,
    per: float,
    burst: int | None = None,
    *,
    name: str = "api",
    **limits: int | None,
) -> None:
    code = {name: value, **{n.replace("_", "-"): v for n, v in limits.items()}}
    rates = {name: Pace(per, burst)}
    rig.store.publish(Publication("test", code=code, code_rates=rates))


def starts(hand: Hand, room: int = 100) -> int:
    """How many start now; they end at once."""
    found = len(hand.claim(room))
    hand.end_all()
    return found


def wake_in(hand: Hand) -> float | None:
    return hand.exchange().wake_in


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


# --- changing it ------------------------------------------------------------------------------


def test_lowered_and_raised_while_it_counts(rig: Rig) -> None:
    declare(rig, 4, per=60)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    assert starts(hand) == 4
    rig.set_limit("api", 6)
    assert starts(hand) == 2
    rig.set_limit("api", 2)
    rig.clock.advance(59)
    assert starts(hand) == 0
    rig.clock.advance(1)
    assert starts(hand) == 2, "all six have left the period"
    rig.set_limit("api", 0)
    rig.clock.advance(60)
    assert starts(hand) == 0
    rig.set_limit("api", None)
    assert starts(hand, room=5) == 5
    rig.set_limit("api", 1)
    assert starts(hand) == 1, "where there is no limit nothing is counted"


def test_paused(rig: Rig) -> None:
    declare(rig, 4, per=60)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    rig.pause("api")
    assert starts(hand) == 0
    assert wake_in(hand) is None
    rig.pause("api", paused=False)
    assert starts(hand) == 4


def test_one_key_may_have_more(rig: Rig) -> None:
    declare(rig, 1, per=60, name="tenant")
    rig.set_limit("tenant/a", 3)
    rig.tenant("a", 9)
    rig.tenant("b", 9)
    assert sorted(claimed.turn for claimed in rig.hand().claim()) == ["a", "a", "a", "b"]


# --- ends, losses, mending ----------------------------------------------------------------------


def test_a_start_that_was_given_back_is_spent(rig: Rig) -> None:
    declare(rig, 2, per=60)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    for claimed in hand.claim():
        hand.end(claimed, "returned")
    assert starts(hand) == 0
    rig.clock.advance(60)
    assert starts(hand) == 2


def test_a_retry_is_a_start(rig: Rig) -> None:
    declare(rig, 1, per=60)
    (job,) = rig.submit(needs=need("api"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    hand.end(claimed, "retry", delay=1)
    rig.clock.advance(2)
    assert starts(hand) == 0
    rig.clock.advance(58)
    assert starts(hand) == 1
    assert [a.groups for a in rig.store.attempts(job)] == [("api",)] * 2


def test_a_worker_dies_and_its_starts_count_on(rig: Rig) -> None:
    declare(rig, 2, per=60)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    rig.hands.remove(hand)
    hand.die()
    other = rig.hand("other")
    assert starts(other) == 0
    rig.clock.advance(60)
    assert starts(other) == 2


@pytest.mark.parametrize("repair", [False, True])
def test_doctor_finds_nothing_and_mends_nothing(rig: Rig, repair: bool) -> None:
    declare(rig, 2, per=60, door=5)
    rig.submit(5, needs=Needs((Need("api"), Need("door"))))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    assert rig.store.doctor(repair=repair) == []
    rig.store.sweep()
    assert (rig.held("api"), rig.held("door")) == (2, 2)
    hand.end_all()
    assert rig.store.doctor(repair=repair) == []
    assert rig.held("api") == 2
    assert starts(hand) == 0


def test_the_slots_released_for_a_wait_come_back_without_a_start(rig: Rig) -> None:
    declare(rig, 1, per=60, door=1)
    rig.submit(2, needs=Needs((Need("api"), Need("door"))))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.release_groups(claimed.token)
    assert (rig.held("api"), rig.held("door")) == (1, 0)
    assert rig.store.retake_groups(claimed.token), "the rate is not asked again"
    assert (rig.held("api"), rig.held("door")) == (1, 1)
    assert rig.store.extend(claimed.token, 1000)
    hand.end_all()
    rig.clock.advance(60)
    assert rig.held("api") == 0, "an extended lease is not one of the start"


def test_sweeping_leaves_nothing_behind(rig: Rig) -> None:
    declare(rig, 2, per=60, name="tenant")
    for key in "abcdef":
        rig.tenant(key, 2)
    assert starts(rig.hand()) == 12
    rig.clock.advance(61)
    assert rig.store.sweep().expired_slots > 0
    assert [group for group in rig.store.groups() if "/" in group] == []


def test_many_starts_are_few_rows(rig: Rig) -> None:
    """Starts of the same moment are noted together, and one row does not go on for ever."""
    declare(rig, 10_000, per=100)
    rig.submit(120, needs=need("api"))
    hand = rig.hand()
    for _ in range(40):
        assert starts(hand, room=3) == 3
        rig.clock.advance(100 / STEPS / 10)
    rig.clock.advance(99.59)
    assert rig.held("api") in range(105, 121), "hardly the first have left"
    rig.clock.advance(0.5)
    assert rig.held("api") == 0


# --- slots by hand, and looking at it -----------------------------------------------------------


def test_a_rate_has_no_slots(rig: Rig) -> None:
    declare(rig, 2, per=60)
    for _ in range(2):  # with and without what is remembered of limits
        with pytest.raises(IsARate, match="counts starts"):
            rig.store.take_slot(SlotRequest("api", "me", "here", 30))
    rig.submit(needs=need("api"))
    assert starts(rig.hand()) == 1
    with pytest.raises(IsARate):
        rig.store.drop_slot("api", 0, None, by="operator")
    record, slots = rig.store.group("api")
    assert (record.held, record.holders, slots) == (1, 0, [])


def test_what_is_shown_of_it(rig: Rig) -> None:
    declare(rig, 2, per=60, burst=1)
    rig.submit(3, needs=need("api"))
    hand = rig.hand()
    record, _ = rig.store.group("api")
    assert (record.value, record.pace, record.opens_at) == (2, Pace(60, 1), None)
    assert starts(hand) == 1
    record, _ = rig.store.group("api")
    assert record.held == 1
    assert record.opens_at == pytest.approx(rig.store.now() + 30, abs=0.1)


def test_why(rig: Rig) -> None:
    declare(rig, 2, per=60)
    jobs = rig.submit(3, needs=need("api"))
    hand = rig.hand()
    hand.claim()
    rig.clock.advance(20)
    why = rig.store.why(jobs[-1])
    assert why.code == "rate-full"
    assert why.until == pytest.approx(rig.store.now() + 40, abs=0.1)
    assert why.holders == ()
    words = explain(why, now=rig.store.now())
    assert words.startswith(
        "The job waits for api: at most 2 starts per 60 s; the next may start in 40 s"
    )
    running = explain(rig.store.why(jobs[0]), now=rig.store.now())
    assert "holding" not in running


def test_too_wide_for_its_burst(rig: Rig) -> None:
    declare(rig, 10, per=60, burst=2)
    (job,) = rig.submit(needs=need("api", units=3))
    hand = rig.hand()
    assert starts(hand) == 0
    assert wake_in(hand) is None
    assert rig.store.why(job).code == "too-wide"


def test_a_rate_becomes_a_limit_and_back(rig: Rig) -> None:
    """A new release may say so. What counts then goes on to count until it ends."""
    declare(rig, 2, per=60)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    rig.declare(api=3)
    assert len(hand.claim()) == 1, "two starts of the last minute, one slot"
    rig.clock.advance(60)
    assert len(hand.claim()) == 2
    declare(rig, 4, per=60)
    assert len(hand.claim()) == 1, "three slots are held still"
    hand.end_all()
    assert starts(hand) == 3


def test_nothing_is_reserved_ahead_under_a_rate(rig: Rig) -> None:
    declare(rig, 3, per=60)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    got = hand.exchange(room=2, ahead={"task": 0.001}, ahead_room=50)
    assert [claimed.reserved for claimed in got.claimed] == [False, False]
    got = hand.exchange(room=0, ahead={"task": 0.001}, ahead_room=50)
    assert got.claimed == ()


def test_what_went_on_from_job_to_job_ends_when_its_limit_becomes_a_rate(rig: Rig) -> None:
    rig.declare(api=3)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    (first,) = hand.claim(1)
    options = {"ahead": {"task": 0.001}, "ahead_room": 50, "chains": {first.chain: Chain(1)}}
    got = hand.exchange(room=0, **options)
    assert got.claimed
    assert all(claimed.reserved for claimed in got.claimed)
    for claimed in got.claimed:
        hand.end(claimed, "returned")
    declare(rig, 3, per=60)
    assert hand.exchange(room=0, **options).claimed == ()


def test_why_where_a_limit_is_full_too(rig: Rig) -> None:
    declare(rig, 1, per=60, door=1)
    jobs = rig.submit(3, needs=Needs((Need("door"), Need("api"))))
    rig.hand().claim()
    why = rig.store.why(jobs[-1])
    assert why.code == "limit-full"
    words = explain(why, now=rig.store.now())
    assert "door: 1 of 1 units is held" in words
    assert "and for api: at most 1 starts per 60 s" in words


def test_a_worker_that_only_tells_is_answered(rig: Rig) -> None:
    declare(rig, 1, per=60)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    hand.claim()
    assert not rig.store.exchange(Exchange(hand.id)).dead
