"""A rate in force: it is changed, its workers die, it is looked at; its starts stay counted."""

from __future__ import annotations

import pytest

from headgate.errors import IsARate
from headgate.limits import Need, Needs
from headgate.rates import STEPS, Pace
from headgate.stores.protocol import Chain, Exchange, SlotRequest
from headgate.why import explain
from tests.conformance.conftest import Rig, need
from tests.conformance.pacing import declare, starts, wake_in

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
