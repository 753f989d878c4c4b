"""Slots taken by hand: the same groups as jobs, under leases of their own."""

from __future__ import annotations

import pytest

from headgate.errors import DeclarationError, TooWide, UnknownLimit
from headgate.stores.protocol import SlotRecord, SlotRequest

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
