"""A worker with nothing to do: the one job there is is taken where it is found, unless something
comes before it."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from headgate.jobs import Finish
from headgate.limits import Need, Needs
from headgate.stores.postgres import dues
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.trip import RoundTrip
from headgate.stores.protocol import Claim, Exchange, QueueShare
from tests.conformance.conftest import Hand, Rig, need
from tests.postgres.lost import lost_answer
from tests.postgres.sent import Sent


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_loses_nothing_of_an_idle_worker(rig: Rig, applied: bool) -> None:
    hand = rig.hand()
    assert not hand.exchange(room=1).claimed
    ids = rig.submit()
    with lost_answer("value", applied=applied):
        rig.store.exchange(Exchange(hand.id, claim=Claim(1, hand.tasks, hand.state)))
    assert [rig.state(id) for id in ids] == ["running" if applied else "ready"]
    got = hand.exchange(room=1)
    assert [(c.job, c.attempt) for c in got.claimed] == [(ids[0], 1)]


def test_an_idle_worker_takes_the_one_job_there_is_in_one_round_trip(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = rig.hand()
    sent = Sent(monkeypatch)

    def trips() -> tuple[int, int]:
        """How many round trips, and how many jobs they brought."""
        sent.take()
        found = len(hand.exchange(room=2).claimed)
        counted = len(sent.take())
        hand.end_all()
        return counted, found

    assert trips()[1] == 0, "nothing is there; what was said of limits is known from here on"
    rig.submit()
    assert trips() == (1, 1)
    rig.submit(2)
    assert trips() == (2, 2), "how many is a choice"
    rig.submit()
    rig.store.pause_queue("default", True)
    assert trips()[1] == 0
    rig.store.pause_queue("default", False)
    assert trips()[1] == 1, "after what it had not heard of"
    rig.submit()
    assert trips() == (1, 1)
    rig.declare(api=0)
    rig.submit(needs=need("api"))
    assert trips()[1] == 0
    rig.submit()
    assert trips() == (2, 1), "there are two lanes"


def test_the_one_job_there_is_is_left_where_something_comes_before_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = rig.hand()
    other = rig.hand("other", tasks=("unheard-of",))
    sent = Sent(monkeypatch)

    def alone(who: Hand = hand, **more: Any) -> bool:
        """Was it taken without a second look?"""
        sent.take()
        found = who.exchange(room=2, **more).claimed
        counted = len(sent.take())
        who.end_all()
        return counted == 1 and len(found) == 1

    hand.exchange(room=2)
    other.exchange(room=2)
    rig.submit()
    assert not alone(other), "a task that it does not know"
    assert not alone(queues=(QueueShare("elsewhere", 2),)), "a queue that it does not serve"
    assert alone()
    rig.submit()
    (late,) = rig.submit(delay=0.05)
    rig.clock.advance(1.0)
    got = hand.exchange(room=2)
    assert late in [c.job for c in got.claimed], "what was due is let in before"
    hand.end_all()
    rig.submit(turn="acme")
    assert alone()
    rig.submit(needs=Needs(one_of=((Need("a"), Need("b")),)))
    assert not alone()


@pytest.mark.parametrize("moved", ["min", "max"])
def test_two_that_were_submitted_together_are_two_in_whichever_generation(
    rig: Rig, moved: str
) -> None:
    hand = rig.hand()
    hand.exchange(room=2)
    rig.submit(2)
    database: Database = rig.store._db  # type: ignore[attr-defined]
    for _ in range(2):  # it is made, then used
        database.call("SELECT headgate.switch_generation(5)")
    with database.write() as tx:
        tx.run(
            "UPDATE headgate.ready SET gen = headgate.current_generation()"
            f" WHERE job = (SELECT {moved}(job) FROM headgate.ready)"
        )
    assert len(hand.exchange(room=2).claimed) == 2


def test_who_takes_the_one_job_there_is_remembers_how_long_it_looked_for_what_is_due(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else dead rows that stand there would be passed over by each of them: see `dues`."""
    monkeypatch.setattr(dues, "SLOW", 1e-9)  # as if it took long
    monkeypatch.setattr(dues, "PART", 1e9)
    monkeypatch.setattr(dues, "LONGEST", 60.0)
    asked: list[float] = []
    real = RoundTrip._look_params

    def look_params(trip: RoundTrip, *args: Any) -> tuple[Any, ...]:
        params = real(trip, *args)
        asked.append(params[-1])
        return params

    monkeypatch.setattr(RoundTrip, "_look_params", look_params)
    hand = rig.hand()
    hand.exchange(room=1)
    asked.clear()
    for _ in range(3):
        rig.submit()
        rig.clock.advance(1.0)
        assert len(hand.exchange(room=1).claimed) == 1
        hand.end_all()
    began = rig.clock.now() - 3.0
    assert asked == [began, began + 1.0, began + 2.0], "each from the time of the one before"
    # One that began at the front, and was no quicker.
    monkeypatch.setattr(dues, "LONGEST", -1.0)
    rig.submit()
    hand.exchange(room=1)
    hand.end_all()
    monkeypatch.setattr(dues, "LONGEST", 60.0)
    rig.submit()
    hand.exchange(room=1)
    assert asked[-2:] == [0.0, rig.clock.now()]


def test_the_end_of_a_limited_job_wakes_no_worker_where_nothing_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[list[str]] = []
    real = RoundTrip._rings
    monkeypatch.setattr(RoundTrip, "_rings", lambda trip: rung.append(real(trip)) or rung[-1])
    rig.declare(api=5)
    hand = rig.hand()
    rig.submit(needs=need("api"))
    (claimed,) = hand.exchange(room=2).claimed
    hand.exchange([Finish(claimed.token, "succeeded", result="null")], room=2)
    assert rung[-1] == ["done", "room"]


def test_an_expired_job_that_was_the_only_one_leaves_something_to_ask_for(rig: Rig) -> None:
    hand = rig.hand()
    hand.exchange(room=2)
    (id,) = rig.submit(expires=0.1)
    rig.clock.advance(1.0)
    got = hand.exchange(room=2)
    assert (got.claimed, got.more) == ((), True)
    assert not hand.state.emptied
    assert rig.state(id) == "cancelled"
    rig.submit()
    assert len(hand.exchange(room=2).claimed) == 1
    assert hand.state.emptied


def test_a_priority_may_be_a_member_of_an_enumeration(rig: Rig) -> None:
    class Priority(enum.IntEnum):
        HIGH = -5

    (id,) = rig.submit(priority=Priority.HIGH)
    assert rig.store.job(id).priority == -5
