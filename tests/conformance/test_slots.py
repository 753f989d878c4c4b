"""Slots taken by hand: the same groups as jobs, under leases of their own."""

from __future__ import annotations

import pytest

from headgate.errors import DeclarationError, TooWide, UnknownLimit
from headgate.jobs import Finish
from headgate.stores.protocol import Exchange, SlotRecord, SlotRequest
from tests.waiting import PATIENCE

from .conftest import Rig, need


def take(
    rig: Rig, group: str = "gpu", limit: int | None = 2, **fields: object
) -> SlotRecord | None:
    options: dict = {"holder": "me", "worker": "laptop", "lease": 30.0, "carries_limit": True}
    return rig.store.take_slot(SlotRequest(group=group, limit=limit, **{**options, **fields}))


def test_take_release_and_take_again(rig: Rig) -> None:
    a, b = take(rig), take(rig)
    assert a is not None
    assert b is not None
    assert (a.slot, b.slot) == (0, 1)
    assert take(rig) is None
    assert rig.store.drop_slot("gpu", a.slot, a.token)
    assert not rig.store.drop_slot("gpu", a.slot, a.token)
    c = take(rig)
    assert c is not None
    assert c.slot == a.slot
    assert c.token > b.token
    assert not rig.store.drop_slot("gpu", a.slot, a.token), "the old token releases nobody"
    assert rig.held("gpu") == 2


def test_an_expired_lease_does_not_count_and_cannot_be_extended(rig: Rig) -> None:
    a = take(rig, limit=1)
    assert a is not None
    rig.clock.advance(29)
    assert rig.store.extend_slot("gpu", a.slot, a.token, 30) == pytest.approx(
        rig.clock.now() + 1 + 30
    )
    rig.clock.advance(30)
    assert take(rig, limit=1) is None
    rig.clock.advance(2)
    assert rig.held("gpu") == 0, "no sweeper has to run first"
    assert rig.store.extend_slot("gpu", a.slot, a.token, 30) is None
    b = take(rig, limit=1)
    assert b is not None
    assert not rig.store.drop_slot("gpu", a.slot, a.token)


def test_jobs_and_slots_share_groups(rig: Rig) -> None:
    rig.declare(gpu=2)
    rig.submit(3, needs=need("gpu"))
    assert take(rig) is not None
    hand = rig.hand()
    assert len(hand.claim()) == 1
    assert take(rig) is None
    rig.clock.advance(31)
    assert len(hand.claim()) == 1
    answer = hand.exchange()
    assert answer.wake_in is None


def test_a_worker_wakes_when_a_slot_ends(rig: Rig) -> None:
    rig.declare(gpu=1)
    take(rig, lease=12.0)
    rig.submit(needs=need("gpu"))
    assert rig.hand().exchange().wake_in == pytest.approx(12.0)


def test_the_declared_value_wins_over_the_carried(rig: Rig) -> None:
    rig.declare(gpu=1)
    assert take(rig, limit=5) is not None
    assert take(rig, limit=5) is None


def test_units_and_refusals(rig: Rig) -> None:
    rig.declare(gpu=5)
    assert take(rig, units=3) is not None
    assert take(rig, units=3) is None
    with pytest.raises(TooWide, match="6 units"):
        take(rig, units=6)
    with pytest.raises(UnknownLimit, match="no limit is declared"):
        take(rig, group="nothing", carries_limit=False)
    with pytest.raises(DeclarationError):
        take(rig, group="")


def test_cleanup_counts_what_it_removes(rig: Rig) -> None:
    take(rig)
    take(rig)
    rig.clock.advance(31)
    assert rig.store.expire_slots("gpu") == 2
    assert rig.store.expire_slots("gpu") == 0


def test_an_operator_can_release_by_force_and_it_is_recorded(rig: Rig) -> None:
    rig.declare(gpu=1)
    rig.submit(2, needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.drop_slot("gpu", 0, None)
    assert rig.store.events("slot_released")[0].data["token"] == claimed.token
    assert len(hand.claim()) == 1
    assert hand.end(claimed), "the attempt itself goes on and may finish"
    assert rig.held("gpu") == 1, "its finish does not free the slot of the next"


def test_who_waits_by_hand_gets_its_turn_before_a_backlog_of_jobs(rig: Rig) -> None:
    """A worker takes the slot it frees again in the same transaction: nobody else ever sees it
    free. Who has waited for long enough gets it all the same."""
    rig.declare(api=1)
    rig.submit(100, needs=need("api"))
    hand = rig.hand()
    hand.claim(room=1)
    taken, waited = None, 0.0
    while taken is None and waited < 10:
        hand.exchange([Finish(token, "succeeded") for token in hand.running], room=1)
        taken = rig.store.take_slot(SlotRequest("api", "me", "here", lease=60, waited=waited))
        rig.clock.advance(0.5)
        waited += 0.5
    assert taken is not None
    assert 5 <= waited <= 7
    assert rig.held("api") == 1
    assert hand.claim() == []
    rig.store.drop_slot("api", taken.slot, taken.token)
    assert len(hand.claim()) == 1, "its reservation went with it"


def test_who_gives_up_waiting_keeps_nothing(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(100, needs=need("api"))
    hand = rig.hand()
    hand.claim(room=1)
    assert rig.store.take_slot(SlotRequest("api", "me", "here", lease=60, waited=6)) is None
    hand.end_all()
    assert hand.claim() == [], "kept for who waits"
    assert rig.store.values(["api"])["api"].reserved_by == "by hand me"
    rig.clock.advance(3.1)
    assert len(hand.claim()) == 1


def test_who_wants_its_groups_back_gets_its_turn_before_a_backlog_of_jobs(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(100, needs=need("api"))
    hand = rig.hand()
    (parent,) = hand.claim(room=1)
    rig.store.release_groups(parent.token)
    back, waited = False, 0.0
    while not back and waited < 10:
        others = [token for token in hand.running if token != parent.token]
        hand.exchange([Finish(token, "succeeded") for token in others], room=1)
        back = rig.store.retake_groups(parent.token, waited)
        rig.clock.advance(0.5)
        waited += 0.5
    assert back
    assert rig.held("api") == 1


def test_nothing_wakes_a_worker_that_has_no_room(rig: Rig) -> None:
    """It would ask for nothing, be told to come back at once, and go on like that."""
    rig.submit(delay=5)
    hand = rig.hand()
    rig.clock.advance(6)
    assert rig.store.exchange(Exchange(hand.id)).wake_in is None
    assert len(hand.claim()) == 1


def test_a_slot_that_has_ended_wakes_nobody_again(rig: Rig) -> None:
    rig.store.take_slot(SlotRequest("own", "me", "here", lease=5, limit=1, carries_limit=True))
    rig.submit(needs=need("own"))
    hand = rig.hand()
    assert hand.exchange().wake_in == pytest.approx(5)
    rig.clock.advance(6)
    assert hand.exchange(room=0).wake_in is None, "its row still stands, its time is over"
    assert len(hand.claim()) == 1


def test_room_that_no_job_wants_wakes_only_who_waits_by_hand(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(needs=need("api"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    work, room = rig.store.bell("work"), rig.store.bell("room")
    hand.exchange([Finish(claimed.token, "succeeded")])
    assert room.wait(PATIENCE)
    assert not work.wait(0), "no worker has use for it"
    work.close()
    room.close()


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_jump_of_the_wall_clock_ends_no_lease_and_prolongs_none(rig: Rig, seconds: float) -> None:
    rig.declare(gpu=1)
    rig.submit(needs=need("gpu"))
    slot = take(rig, lease=30.0)
    assert slot is not None
    rig.clock.jump(seconds)
    hand = rig.hand()
    assert hand.claim() == [], "the lease runs on"
    assert rig.held("gpu") == 1
    rig.clock.advance(31)
    (claimed,) = hand.claim()
    rig.clock.jump(seconds)
    assert rig.held("gpu") == 1, "a job's slot knows no time at all"
    assert hand.end(claimed)
