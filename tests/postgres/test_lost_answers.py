"""What a worker's round trip has done is told to it in the end, whatever else fails on the way:
no attempt is granted to somebody who never hears of it, and no end is told to be too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.errors import StoreInDoubt, StoreUnavailable
from headgate.jobs import Failure, Finish
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.store import PostgresStore
from headgate.stores.protocol import Claim, Exchange
from tests.conformance.conftest import Rig, need
from tests.postgres.lost import lost_answer
from tests.postgres.rival import Rival, Waiter, until_blocked


def broken_at(rival: Rival, watch: Rival, table: str, call: Callable[[], Any]) -> None:
    """The connection of this call is lost where it comes to that table."""
    waiter = _cut_at(rival, watch, table, call)
    with pytest.raises(StoreUnavailable):
        waiter.result()


def _cut_at(rival: Rival, watch: Rival, table: str, call: Callable[[], Any]) -> Waiter[Any]:
    rival.run(f"LOCK TABLE headgate.{table} IN ACCESS EXCLUSIVE MODE")
    waiter = Waiter(call)
    until_blocked(watch)
    watch.run(
        "SELECT pg_terminate_backend(pid) FROM pg_locks"
        " WHERE NOT granted AND relation = %s::regclass",
        f"{watch.schema}.{table}",
    )
    watch.rollback()
    rival.rollback()
    return waiter


def test_a_second_failure_loses_nothing_of_a_lost_answer(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(api=1)
    old, new = rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (first,) = hand.claim(room=1)
    done = [Finish(first.token, "succeeded", result="null")]
    claim = Claim(1, hand.tasks, hand.state)
    with lost_answer():
        rig.store.exchange(Exchange(hand.id, done, claim=claim))
    # Asked again, it learns what was granted, and then comes the next failure.
    broken_at(rival, watch, "cancels", lambda: hand.exchange(done, room=1))
    got = hand.exchange(done, room=1)
    assert (rig.state(old), rig.state(new)) == ("succeeded", "running")
    assert [claimed.job for claimed in got.claimed] == [new]
    assert got.stale == frozenset()


def test_a_failure_behind_the_grant_loses_nothing(rig: Rig, rival: Rival, watch: Rival) -> None:
    """Of what was granted some had expired: that is written down, which fails."""
    (late,) = rig.submit(expires=5.0)
    (good,) = rig.submit(turn="b")
    rig.clock.advance(10)
    hand = rig.hand()
    broken_at(rival, watch, "events", lambda: hand.exchange(room=5))
    got = hand.claim(room=5)
    assert [claimed.job for claimed in got] == [good]
    assert rig.state(late) == "cancelled"


def test_a_failure_behind_an_end_does_not_make_it_stale(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    (job,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    done = [Finish(claimed.token, "succeeded", result="null")]
    told = Exchange(hand.id, done)
    waiter = _cut_at(rival, watch, "ears", lambda: rig.store.exchange(told))
    # What could not be done was only to wake others.
    assert waiter.result().stale == frozenset()
    assert rig.state(job) == "succeeded"
    hand.running.clear()


def test_what_a_lost_answer_brought_takes_the_room_of_the_next(rig: Rig) -> None:
    rig.submit(6)
    hand = rig.hand()
    with lost_answer():
        hand.exchange(room=2)
    got = hand.exchange(room=2)
    assert len(got.claimed) == 2, "more than the worker has room for"
    assert got.more


def test_ends_of_every_kind_may_be_told_again(rig: Rig, rival: Rival, watch: Rival) -> None:
    """A retry is told in a transaction of its own: what fails behind it does not undo it."""
    (job,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    again = [Finish(claimed.token, "retry", error=Failure("ValueError", "no"), delay=5.0)]
    broken_at(rival, watch, "queues", lambda: hand.exchange(again))
    assert rig.state(job) == "scheduled"
    assert hand.exchange(again).stale == frozenset()


def test_who_has_no_room_for_what_a_lost_answer_brought_gives_it_back(rig: Rig) -> None:
    """Nobody starts what comes with an answer to something else than a claim."""
    rig.declare(api=2)
    ids = rig.submit(2, needs=need("api"))
    hand = rig.hand()
    with lost_answer():
        hand.exchange(room=2)
    assert [rig.state(id) for id in ids] == ["running", "running"]
    assert rig.store.exchange(Exchange(hand.id)).claimed == ()
    assert [rig.state(id) for id in ids] == ["ready", "ready"]
    assert rig.held("api") == 0
    assert [(c.job, c.attempt) for c in rig.hand().claim()] == [(id, 1) for id in ids]


@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind"])
def test_a_commit_that_fails_is_told_of_the_first_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """Where each statement is sent in a transaction of its own, as through a pooler."""
    assert isinstance(rig.store, PostgresStore)
    real, commits = Database._commit, iter((behind,))

    def commit(self: Database, *args: Any) -> None:
        if not next(commits, False):
            raise StoreInDoubt("the wire was cut")
        real(self, *args)

    monkeypatch.setattr(Database, "_commit", commit)
    if behind:
        assert rig.store._db.call_two("SELECT 1", (), ("SELECT 2", ())) == (1, None)
    else:
        with pytest.raises(StoreInDoubt):
            rig.store._db.call_two("SELECT 1", (), ("SELECT 2", ()))
    monkeypatch.setattr(Database, "_commit", real)
