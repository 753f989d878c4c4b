"""What a full cap does by its rule: skip, replace, wait for the running one, once in a period."""

from __future__ import annotations

from headgate.jobs import Submitted
from tests.conformance.capping import accepted, cap, one, put
from tests.conformance.conftest import Rig

# --- skip ---------------------------------------------------------------------------------------


def test_skip_gives_the_one_that_is_there(rig: Rig) -> None:
    skip = cap(1, when_full="skip")
    mine = one(rig, skip)
    assert one(rig, skip) == Submitted(mine.id, existing=True)
    (claimed,) = rig.hand().claim()
    assert one(rig, skip) == Submitted(mine.id, existing=True)
    rig.hands[0].end(claimed)
    assert not one(rig, skip).existing


# --- replace ------------------------------------------------------------------------------------


def test_replace_supersedes_the_pending_one_and_takes_its_place_in_line(rig: Rig) -> None:
    replace = cap(1, when_full="replace")
    old = one(rig, replace)
    rig.clock.advance(1)
    behind = rig.submit()[0]
    rig.clock.advance(1)
    new = one(rig, replace)
    assert new.refused is None
    assert not new.existing
    record = rig.store.job(old.id)
    assert record is not None
    assert (record.state, record.reason) == ("cancelled", "superseded")
    assert rig.state(new.id) == "ready"
    claimed = rig.hand().claim()
    assert [one.job for one in claimed] == [new.id, behind]
    # All of them run: there is nothing to replace.
    refused = one(rig, replace).refused
    assert refused is not None
    assert refused.existing == new.id


def test_replace_keeps_the_time_of_the_new_one(rig: Rig) -> None:
    """So that it can be used to wait until things have settled."""
    replace = cap(1, when_full="replace")
    ids = [one(rig, replace, delay=10.0).id]
    rig.clock.advance(8)
    ids.append(one(rig, replace, delay=10.0).id)
    rig.clock.advance(8)
    worker = rig.hand()
    assert worker.claim() == []
    assert [rig.state(id) for id in ids] == ["cancelled", "scheduled"]
    rig.clock.advance(3)
    assert [claimed.job for claimed in worker.claim()] == [ids[1]]


def test_of_several_pending_ones_the_oldest_is_replaced(rig: Rig) -> None:
    replace = cap(2, when_full="replace")
    first, second = put(rig, replace, count=2)
    third = one(rig, replace)
    assert [rig.state(r.id) for r in (first, second, third)] == ["cancelled", "ready", "ready"]
    assert accepted(put(rig, replace, count=4)) == 4
    assert len(rig.hand().claim()) == 2


def test_replace_under_two_caps_replaces_one_job(rig: Rig) -> None:
    caps = (
        cap(1, group="a", when_full="replace", waiting=1),
        cap(1, group="b", when_full="replace"),
    )
    old = one(rig, *caps)
    new = one(rig, *caps)
    assert [rig.state(r.id) for r in (old, new)] == ["cancelled", "ready"]
    assert len(rig.hand().claim()) == 1


# --- cancel_running -----------------------------------------------------------------------------


def test_the_new_one_waits_until_the_running_one_has_really_ended(rig: Rig) -> None:
    latest = cap(1, when_full="cancel_running")
    worker = rig.hand()
    old = one(rig, latest)
    (claimed,) = worker.claim()
    new = one(rig, latest)
    assert new.refused is None
    record = rig.store.job(new.id)
    assert record is not None
    assert (record.state, record.reason) == ("ready", "waiting for a cap")
    told = worker.exchange()
    assert not told.claimed
    assert [token for token, _ in told.cancels] == [claimed.token]
    assert worker.claim() == []
    # A newer one supersedes the one that waits; one waits at most.
    newest = one(rig, latest)
    assert [rig.state(r.id) for r in (old, new, newest)] == ["running", "cancelled", "ready"]
    assert worker.claim() == []
    worker.end(claimed, "cancelled", reason="asked to")
    assert [one.job for one in worker.claim()] == [newest.id]
    refused = one(rig, cap(1)).refused
    assert refused is not None
    assert refused.count == 1


def test_the_successor_starts_however_the_running_one_ends(rig: Rig) -> None:
    latest = cap(1, when_full="cancel_running")
    worker = rig.hand()
    for outcome in ("succeeded", "failed", "retry", "snoozed", "interrupted", "returned"):
        old = one(rig, latest)
        (claimed,) = worker.claim()
        new = one(rig, latest)
        worker.end(claimed, outcome, delay=5.0)
        (claimed,) = worker.claim()
        assert claimed.job == new.id
        record = rig.store.job(old.id)
        assert record is not None
        assert record.done
        assert not record.cancel_requested
        worker.end(claimed)
    # Its worker dies.
    dying = rig.hand("dying")
    one(rig, latest)
    dying.claim()
    new = one(rig, latest)
    dying.die()
    rig.hands.remove(dying)
    rig.store.sweep()
    assert [claimed.job for claimed in worker.claim()] == [new.id]
    rig.store.unregister(dying.id)


def test_where_none_runs_the_pending_one_gives_way(rig: Rig) -> None:
    latest = cap(1, when_full="cancel_running")
    old, new = one(rig, latest), one(rig, latest)
    assert [rig.state(r.id) for r in (old, new)] == ["cancelled", "ready"]


def test_a_successor_can_be_cancelled_and_can_expire(rig: Rig) -> None:
    latest = cap(1, when_full="cancel_running")
    worker = rig.hand()
    one(rig, latest)
    (claimed,) = worker.claim()
    new = one(rig, latest)
    rig.store.cancel(new.id)
    assert rig.state(new.id) == "cancelled"
    newer = one(rig, latest, expires=5.0)
    rig.clock.advance(10)
    rig.store.sweep()
    record = rig.store.job(newer.id)
    assert record is not None
    assert (record.state, record.reason) == ("cancelled", "expired")
    worker.end(claimed, "cancelled")
    assert worker.claim() == []
    assert one(rig, latest).refused is None


# --- one per period -------------------------------------------------------------------------------


def test_one_per_period_whatever_becomes_of_it(rig: Rig) -> None:
    once = cap(unique_for=60.0)
    worker = rig.hand()
    mine = one(rig, once)
    began = rig.store.now()
    (claimed,) = worker.claim()
    worker.end(claimed)
    rig.clock.advance(59)
    refused = one(rig, once).refused
    assert refused is not None
    assert (refused.rule, refused.count, refused.cap) == ("period", 1, 1)
    assert refused.existing == mine.id
    assert refused.until is not None
    assert abs(refused.until - began - 60.0) < 0.001
    assert one(rig, cap(unique_for=60.0, when_full="skip")) == Submitted(mine.id, existing=True)
    rig.clock.advance(1)
    assert one(rig, once).refused is None
    assert one(rig, once).refused is not None


def test_within_the_period_the_pending_one_can_be_replaced(rig: Rig) -> None:
    once = cap(unique_for=60.0, when_full="replace")
    old, new = one(rig, once), one(rig, once)
    assert [rig.state(r.id) for r in (old, new)] == ["cancelled", "ready"]
    assert rig.hand().claim()
    assert one(rig, once).refused is not None
