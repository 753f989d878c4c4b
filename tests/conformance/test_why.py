"""Every job can say why it is where it is, on every store."""

from __future__ import annotations

import os

import pytest

from headgate.jobs import CapUse, Failure, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import LimitChange, NewWorker, SlotRequest
from headgate.stores.relational.reasons import nth_start
from headgate.why import ask, explain

from .conftest import Rig, need, one_of


def code(rig: Rig, id: str) -> str:
    return rig.store.why(id).code


def words(rig: Rig, id: str) -> str:
    return ask(rig.store, id).text


def test_who_holds_what_it_waits_for(rig: Rig) -> None:
    rig.declare(api=2)
    ids = rig.submit(5, needs=need("api"))
    hand = rig.hand("web-1")
    first, second = hand.claim()
    rig.clock.advance(3)
    why = rig.store.why(ids[4])
    assert (why.code, why.ahead, why.ahead_bounded) == ("limit-full", 2, False)
    (group,) = why.groups
    assert (group.group, group.value, group.held) == ("api", 2, 2)
    assert {slot.holder for slot in why.holders} == {first.job, second.job}
    for slot in why.holders:
        assert (slot.worker, slot.since) == ("web-1", pytest.approx(rig.store.now() - 3, abs=0.1))
        # Where workers have leases, each holder says until when its worker's lasts.
        assert (slot.lease_ends is not None) == rig.store.capabilities.leases
    text = words(rig, ids[4])
    assert "The job waits for api: 2 of 2 units are held by job " in text
    assert "2 jobs are ahead of it in its lane." in text


def test_who_made_it_so_small(rig: Rig) -> None:
    rig.declare(api=2)
    ids = rig.submit(2, needs=need("api"))
    rig.set_limit("api", 1, reason="careful")
    rig.hand().claim()
    told = "The limit of api was set to 1 by operator: careful."
    assert told in words(rig, ids[1])


def test_when_it_may_start_is_measured(rig: Rig) -> None:
    rig.declare(api=1)
    ids = rig.submit(6, needs=need("api"))
    hand = rig.hand()
    assert rig.store.why(ids[0]).estimated_start == rig.store.now()
    assert rig.store.why(ids[5]).estimated_start is None, "nothing was measured yet"
    for _ in range(3):
        (claimed,) = hand.claim()
        rig.clock.advance(10)
        hand.end(claimed)
    hand.claim()
    rig.clock.advance(4)
    why, now = rig.store.why(ids[5]), rig.store.now()
    assert (why.typical, why.measured, why.ahead) == (pytest.approx(10, abs=0.1), 3, 1)
    # 6 s until what runs ends, then 10 s for the one ahead.
    assert why.estimated_start == pytest.approx(now + 16, abs=0.5)
    assert "It may start in about 1" in words(rig, ids[5])
    assert "jobs of its task take 1" in words(rig, ids[5])
    rig.clock.advance(96)
    late = rig.store.why(ids[4])
    assert late.estimated_start == pytest.approx(rig.store.now() + 100, abs=1), (
        "what runs for ten times as long as others may run for as long again"
    )


def test_places_that_become_free() -> None:
    assert nth_start(0, [5, 3], 0, 0, 10) == 3
    assert nth_start(0, [5, 3], 0, 1, 10) == 5
    assert nth_start(0, [5, 3], 0, 2, 10) == 13
    assert nth_start(0, [5, 3, 4], 2, 0, 10) == 5, "what was lowered is not given again"
    assert nth_start(7, [5], 0, 0, 10) == 7


def test_a_slot_by_hand_that_ends_by_itself(rig: Rig) -> None:
    rig.declare(gpu=1)
    slot = rig.store.take_slot(SlotRequest("gpu", "training", "host-1", 60))
    assert slot is not None
    (id,) = rig.submit(needs=need("gpu"))
    rig.hand()
    why = rig.store.why(id)
    assert why.until == pytest.approx(rig.store.now() + 60, abs=0.5)
    text = words(rig, id)
    assert "slot holder training (worker host-1" in text
    assert "The first of these slots ends by itself in" in text
    rig.store.drop_slot("gpu", slot.slot, slot.token)


def test_paused_and_closed_by_whom_and_until_when(rig: Rig) -> None:
    rig.declare(api=2)
    (id,) = rig.submit(needs=need("api"))
    rig.hand()
    store = rig.store
    store.change_limit(LimitChange("api", paused=True, by="ann", reason="down", lasts=600))
    why = store.why(id)
    assert (why.code, why.until) == ("limit-paused", pytest.approx(store.now() + 600, abs=0.5))
    assert "api is paused by ann: down (that ends by itself in" in words(rig, id)
    store.change_limit(LimitChange("api", paused=False))
    store.change_limit(LimitChange("api", 0, set_value=True, by="on-call", reason="closed"))
    assert "The limit of api is 0 by on-call: closed, so nothing may start" in words(rig, id)
    store.change_limit(LimitChange("api", reset=True))
    store.pause_queue("default", True, "ann", "backup")
    assert words(rig, id).startswith("Queue default is paused (by ann: backup)")
    store.pause_queue("default", False)


def test_too_wide_and_reserved(rig: Rig) -> None:
    rig.declare(gpu=2)
    (wide,) = rig.submit(task="wide", needs=need("gpu", units=2))
    rig.set_limit("gpu", 1)
    rig.hand()
    assert code(rig, wide) == "too-wide"
    rig.set_limit("gpu", 2)
    hand = rig.hand()
    narrow = rig.submit(100, needs=need("gpu"))
    assert len(hand.claim(tasks={"task"})) == 2
    assert code(rig, wide) == "limit-full"
    while rig.store.values(["gpu"])["gpu"].reserved_by is None:
        rig.clock.advance(0.5)
        hand.end(next(iter(hand.running.values())))
        hand.claim()  # never two free at once, until it reserves what it finds
    why = rig.store.why(narrow[99])
    assert (why.code, why.detail) == ("reserved", wide)
    assert f"gpu is reserved for job {wide}" in words(rig, narrow[99])


def test_priority_ahead_and_turns(rig: Rig) -> None:
    hand = rig.hand(tasks=["task"])
    (low,) = rig.submit(priority=5, turn="me")
    rig.submit(3, priority=5, turn="you")
    why = rig.store.why(low)
    assert (why.code, why.turns, why.estimated_start) == ("turn", 2, rig.store.now())
    assert "(its turn is 'me', one of 2 that take turns)" in words(rig, low)
    rig.submit(103, priority=-1)
    assert code(rig, low) == "turn", "there is room for it"
    assert len(hand.claim(room=100)) == 100
    why = rig.store.why(low)
    assert (why.code, why.before) == ("priority", 3)
    text = words(rig, low)
    assert "3 jobs of queue default with a better priority than 5 go first" in text


def test_nobody_knows_it_or_serves_its_queue(rig: Rig) -> None:
    (id,) = rig.submit()
    assert code(rig, id) == "unknown-task"
    rig.hand("other", tasks=["other"])
    assert code(rig, id) == "unknown-task"
    assert "No running worker knows task 'task'" in words(rig, id)
    (unrouted,) = rig.store.submit([NewJob("nobody", routed=False)])
    assert code(rig, unrouted.id) == "unrouted"


def test_backoff_and_delay_until_when(rig: Rig) -> None:
    (retried,) = rig.submit()
    (later,) = rig.submit(delay=90)
    hand = rig.hand()
    (claimed,) = hand.claim()
    error = Failure("ValueError", "bad")
    hand.exchange([Finish(claimed.token, "retry", delay=30, error=error)], room=0)
    why = rig.store.why(retried)
    assert (why.code, why.until) == ("retry", pytest.approx(rig.store.now() + 30, abs=0.5))
    assert "next attempt after ValueError: bad; it is due in" in words(rig, retried)
    why = rig.store.why(later)
    assert (why.code, why.until) == ("scheduled", pytest.approx(rig.store.now() + 90, abs=0.5))


def test_waiting_for_a_cap(rig: Rig) -> None:
    cap = CapUse("user/7", max_total=1, when_full="cancel_running")
    (first,) = rig.submit(caps=(cap,))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert claimed.job == first
    (second,) = rig.submit(caps=(cap,))
    why = rig.store.why(second)
    assert (why.code, why.detail) == ("cap", f"job {first} of user/7 has to leave first")
    assert words(rig, second).startswith(f"The job waits for a cap: job {first} of user/7")
    assert code(rig, first) == "cancelling"
    hand.end(claimed, "cancelled")
    assert len(hand.claim()) == 1
    assert code(rig, second) == "running"


def test_running_and_done(rig: Rig) -> None:
    rig.declare(api=1)
    (id,) = rig.submit(needs=Needs((Need("api"),)))
    hand = rig.hand("web-1")
    (claimed,) = hand.claim()
    why = rig.store.why(id)
    assert (why.code, [slot.group for slot in why.holders]) == ("running", ["api"])
    assert "The job is running on worker web-1" in words(rig, id)
    hand.end(claimed)
    assert code(rig, id) == "done"
    assert explain(rig.store.why(id), now=rig.store.now()).startswith("The job succeeded")


def test_groups_that_no_machine_serves(rig: Rig) -> None:
    """A machine may be limited to some groups; of a one-of it picks no others."""
    rig.declare(a=1, b=1, c=1)
    machines = [
        rig.store.register(
            NewWorker(name, name, pid=os.getpid(), tasks=("task",), lease=1e6, serves=serves)
        )
        for name, serves in (("left", ("a",)), ("right", ("c", "d")))
    ]
    (nowhere,) = rig.submit(needs=one_of("b"))
    (here,) = rig.submit(needs=one_of("b", "a"))
    assert code(rig, nowhere) == "no-group"
    assert (
        "serves any of the concurrency groups it could run in: b (left serves a; right serves c, d)"
        in words(rig, nowhere)
    )
    assert code(rig, here) == "turn"
    # What is free and served by nobody is no room.
    rig.set_limit("a", 0)
    why = rig.store.why(here)
    assert (why.code, [group.group for group in why.groups]) == ("limit-zero", ["a"])
    rig.hand()  # serves all
    assert code(rig, nowhere) == "turn"
    assert code(rig, here) == "turn"
    for machine in machines:
        rig.store.unregister(machine.id)
        for fd in machine.fds:
            os.close(fd)
