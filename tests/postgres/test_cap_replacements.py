"""Caps that replace or stop a job inside the caller's own transaction: it happens at the commit,
once, and holds up nobody before."""

from __future__ import annotations

import pytest
from psycopg import IsolationLevel

from headgate.errors import SubmitConflict
from headgate.jobs import NewJob
from tests.conformance.conftest import Rig
from tests.postgres.caller import Caller, at_every_level, cap, until_decided
from tests.postgres.rival import Rival, Waiter, until_blocked


@pytest.fixture
def clock() -> None:
    """The store goes by the clock that callers' connections go by as well."""


@at_every_level
def test_a_replacement_happens_at_the_commit_and_holds_up_nobody(
    rig: Rig, level: IsolationLevel
) -> None:
    replace = cap(1, when_full="replace")
    (old,) = rig.store.submit([NewJob("task", caps=(replace,))])
    worker = rig.hand()
    with Caller(rig, level) as caller:
        new = caller.one(replace)
        assert rig.state(old.id) == "ready"
        caller.rollback()
        assert rig.store.job(new.id) is None
        assert rig.state(old.id) == "ready"
        new = caller.one(replace)
        worker.exchange(room=0)
        caller.commit()
    worker.exchange(room=0)
    assert (rig.state(old.id), rig.state(new.id)) == ("cancelled", "ready")
    assert [claimed.job for claimed in worker.claim()] == [new.id]


def test_who_comes_after_the_commit_does_not_start_what_it_replaced(rig: Rig) -> None:
    replace = cap(1, when_full="replace")
    (old,) = rig.store.submit([NewJob("task", caps=(replace,))])
    worker = rig.hand()
    with Caller(rig) as caller:
        (_, new) = caller.submit(replace, count=2)
        caller.commit()
    assert [claimed.job for claimed in worker.claim()] == [new.id]
    assert rig.state(old.id) == "cancelled"


def test_what_starts_before_the_commit_is_waited_for(rig: Rig) -> None:
    replace = cap(1, when_full="replace")
    (old,) = rig.store.submit([NewJob("task", caps=(replace,))])
    worker = rig.hand()
    with Caller(rig) as caller:
        new = caller.one(replace)
        (claimed,) = worker.claim()
        assert claimed.job == old.id
        caller.commit()
    assert worker.claim() == []
    record = rig.store.job(new.id)
    assert record is not None
    assert record.reason == "waiting for a cap"
    worker.end(claimed)
    assert [claimed.job for claimed in worker.claim()] == [new.id]


@at_every_level
def test_a_running_job_is_asked_to_stop_at_the_commit(rig: Rig, level: IsolationLevel) -> None:
    latest = cap(1, when_full="cancel_running")
    rig.store.submit([NewJob("task", caps=(latest,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with Caller(rig, level) as caller:
        new = caller.one(latest)
        assert worker.exchange().cancels == ()
        caller.commit()
        newest = caller.one(latest)
        caller.commit()
    told = worker.exchange()
    assert [token for token, _ in told.cancels] == [claimed.token]
    worker.end(claimed, "cancelled")
    assert [claimed.job for claimed in worker.claim()] == [newest.id]
    assert rig.state(new.id) == "cancelled"


@at_every_level
def test_a_running_job_has_one_successor_whatever_the_other_can_see(
    rig: Rig, level: IsolationLevel
) -> None:
    latest = cap(1, when_full="cancel_running")
    rig.store.submit([NewJob("task", caps=(latest,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with Caller(rig, level) as first, Caller(rig, level) as second:
        first.begin()
        second.begin()
        first.one(latest)
        first.commit()
        newest = until_decided(second, lambda: second.one(latest))
    worker.end(claimed, "cancelled")
    assert [claimed.job for claimed in worker.claim()] == [newest.id]


def test_of_two_who_ask_the_same_job_to_stop_one_waits(rig: Rig, watch: Rival) -> None:
    latest = cap(1, when_full="cancel_running")
    rig.store.submit([NewJob("task", caps=(latest,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with Caller(rig) as first, Caller(rig) as second:
        first.one(latest)
        waiter = Waiter(lambda: second.one(latest))
        until_blocked(watch)
        first.commit()
        newest = waiter.result()
        second.commit()
    worker.exchange(room=0)
    refused = rig.store.submit([NewJob("task", caps=(cap(1),))])[0].refused
    assert refused is not None
    assert refused.count == 2  # the one that runs, and one successor
    worker.end(claimed, "cancelled")
    assert [claimed.job for claimed in worker.claim()] == [newest.id]


def test_who_sees_the_end_of_the_running_job_and_not_its_successor_cannot_decide(
    rig: Rig, watch: Rival
) -> None:
    latest = cap(1, when_full="cancel_running")
    rig.store.submit([NewJob("task", caps=(latest,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with (
        Caller(rig, IsolationLevel.REPEATABLE_READ) as first,
        Caller(rig, IsolationLevel.REPEATABLE_READ) as second,
    ):
        successor = first.one(latest)
        worker.end(claimed)
        second.begin()
        waiter = Waiter(lambda: second.one(cap(1)))
        until_blocked(watch)
        first.commit()
        with pytest.raises(SubmitConflict):
            waiter.result()
        second.rollback()
        refused = second.one(cap(1)).refused
        assert refused is not None
        assert refused.existing == successor.id
    worker.exchange(room=0)
    assert [claimed.job for claimed in worker.claim()] == [successor.id]


def test_it_ended_before_the_word_to_stop_was_committed(rig: Rig) -> None:
    latest = cap(1, when_full="cancel_running")
    rig.store.submit([NewJob("task", caps=(latest,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with Caller(rig) as caller:
        new = caller.one(latest)
        worker.end(claimed)
        caller.commit()
    worker.exchange(room=0)
    assert [claimed.job for claimed in worker.claim()] == [new.id]
    record = rig.store.job(claimed.job)
    assert record is not None
    assert not record.cancel_requested
