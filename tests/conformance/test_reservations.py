"""Wide jobs among narrow ones start in bounded time."""

from __future__ import annotations

import pytest

from headgate.jobs import Claimed
from headgate.limits import Need, Needs
from headgate.stores.protocol import SlotRecord, SlotRequest

from .conftest import Hand, Rig, need, one_of


def reserved(rig: Rig, group: str) -> bool:
    return rig.store.values([group])[group].reserved_by is not None


def churn(rig: Rig, hand: Hand, seconds: float, step: float = 0.5) -> list[str]:
    """Narrow jobs come and go, one ending at a time, never two at once."""
    started: list[str] = []
    passed = 0.0
    while passed < seconds:
        rig.clock.advance(step)
        passed += step
        narrow = [c for c in hand.running.values() if c.task == "task"]
        if narrow:
            hand.end(narrow[0])
        started += [c.task for c in hand.claim()]
        if "wide" in started:
            break
    return started


def test_a_wide_job_among_narrow_ones_starts(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=need("gpu", units=3))
    assert "wide" in churn(rig, hand, 20)


def test_without_a_reservation_it_would_starve(rig: Rig) -> None:
    """The same churn for less than the time after which a lane reserves: it does not start."""
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=need("gpu", units=3))
    assert "wide" not in churn(rig, hand, 4)


def test_a_job_of_two_groups_never_free_together_starts(rig: Rig) -> None:
    rig.declare(a=1, b=1)
    rig.submit(200, needs=need("a"))
    rig.submit(200, needs=need("b"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=Needs((Need("a"), Need("b"))))
    assert "wide" in churn(rig, hand, 20)


def test_a_wide_one_of_starts(rig: Rig) -> None:
    rig.declare(host_a=3, host_b=3)
    rig.submit(500, needs=one_of("host-a", "host-b"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=one_of("host-a", "host-b", units=3))
    assert "wide" in churn(rig, hand, 25)


def test_a_reservation_ends_when_nobody_can_run_the_lane(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    both, narrow = rig.hand("both"), rig.hand("narrow", tasks=["task"])
    both.claim()
    (id,) = rig.submit(task="wide", needs=need("gpu", units=3))
    churn(rig, both, 5.5)
    assert rig.store.values(["gpu"])["gpu"].reserved_by is not None
    waiting = rig.submit(needs=need("gpu"))[0]
    assert rig.store.why(waiting).code in ("reserved", "limit-full")
    # The only worker that knows the wide task is gone: the others do not wait for ever.
    both.end_all()
    rig.clock.advance(11)
    assert len(narrow.claim()) == 4
    assert rig.state(id) == "ready"


def test_cancelling_the_wide_job_frees_what_it_reserved(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    (id,) = rig.submit(task="wide", needs=need("gpu", units=3))
    churn(rig, hand, 5.5)
    rig.store.cancel(id)
    hand.claim()
    assert rig.held("gpu") == 4


def test_when_the_wide_job_expires_nothing_stays_reserved(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=need("gpu", units=4), expires=6)
    churn(rig, hand, 5.5)
    assert reserved(rig, "gpu")
    hand.end_all()
    rig.clock.advance(1)
    hand.claim()
    hand.claim()
    assert rig.held("gpu") == 4


def test_a_lane_that_merely_waits_for_itself_reserves_nothing(rig: Rig) -> None:
    rig.declare(api=5, tenant=1)
    rig.tenant("acme", 50, Need("api"))
    hand = rig.hand()
    for _ in range(30):
        rig.clock.advance(1)
        hand.claim()
    assert rig.store.values(["api"])["api"].reserved_by is None


@pytest.mark.parametrize("host_a", ["paused", "too narrow", "missing", "zero"])
def test_a_member_that_cannot_open_is_not_the_one_reserved(rig: Rig, host_a: str) -> None:
    rig.declare(host_b=3)
    if host_a != "missing":
        rig.set_limit("host-a", {"paused": 3, "too narrow": 2, "zero": 0}[host_a])
    if host_a == "paused":
        rig.pause("host-a")
    rig.submit(200, needs=need("host-b"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=one_of("host-a", "host-b", units=3))
    assert "wide" in churn(rig, hand, 20)


def test_two_wide_one_ofs_do_not_wait_for_the_same_member(rig: Rig) -> None:
    rig.declare(host_a=3, host_b=3)
    for host in ("host-a", "host-b"):
        rig.submit(200, needs=need(host))
    hand = rig.hand()
    hand.claim()
    for task in ("wide", "other"):
        rig.submit(task=task, needs=one_of("host-a", "host-b", units=3))
    churn(rig, hand, 5.5)
    assert reserved(rig, "host-a")
    assert reserved(rig, "host-b")


def test_nothing_is_reserved_for_a_lane_that_something_else_keeps_shut(rig: Rig) -> None:
    """Units gathered for a job that a paused limit holds back would only lie idle."""
    rig.declare(a=2, b=1)
    rig.submit(200, needs=need("a"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=Needs((Need("a", None, 2), Need("b"))))
    rig.pause("b")
    for _ in range(40):
        churn(rig, hand, 0.5)
        assert rig.held("a") == 2
    # Open, it reserves; paused after that, it gives its units up.
    rig.pause("b", False)
    for _ in range(12):
        churn(rig, hand, 0.5)
        if reserved(rig, "a"):
            break
    assert reserved(rig, "a")
    rig.pause("b")
    hand.claim()
    assert not reserved(rig, "a")
    rig.pause("b", False)
    assert "wide" in churn(rig, hand, 20)


def test_a_lane_served_through_another_member_keeps_no_reservation(rig: Rig) -> None:
    rig.declare(host_a=3, host_b=2)
    rig.submit(200, needs=need("host-a"))
    hand = rig.hand()
    hand.claim()
    rig.submit(2, task="wide", needs=one_of("host-a", "host-b", units=3))
    churn(rig, hand, 6)
    assert reserved(rig, "host-a")
    rig.set_limit("host-b", 3)
    assert [c.picked for c in hand.claim() if c.task == "wide"] == [("host-b",)]
    assert not reserved(rig, "host-a")


def test_slots_taken_by_hand_do_not_starve_a_wide_job(rig: Rig) -> None:
    rig.declare(gpu=4)
    hand = rig.hand()

    def take() -> SlotRecord | None:
        return rig.store.take_slot(SlotRequest("gpu", "me", "here", lease=1000))

    held = [take() for _ in range(4)]
    rig.submit(task="wide", needs=need("gpu", units=3))
    started: list[Claimed] = []
    for _ in range(40):
        rig.clock.advance(0.5)
        slot = held.pop(0)
        assert slot is not None
        rig.store.drop_slot("gpu", slot.slot, slot.token)
        started += hand.claim()
        if started:
            break
        held += [taken] if (taken := take()) is not None else []
    assert [c.task for c in started] == ["wide"]
