"""Lock, then look: with a competing transaction held open at the worst moment, nobody is granted
more than there is, nobody is told what is no longer true, and nobody waits for ever."""

from __future__ import annotations

import pytest

from headgate.errors import HeadgateError, StaleAttempt, StoreBusy
from headgate.jobs import Finish, JobFilter, NewJob, Retention, Routing
from headgate.stores.postgres import leases
from headgate.stores.postgres import store as postgres_store
from headgate.stores.protocol import (
    Exchange,
    LimitChange,
    SlotRecord,
    SlotRequest,
    Store,
)
from tests.conformance.conftest import Rig, need
from tests.postgres.rival import Rival, Waiter, until_blocked
from tests.waiting import wait_until


def take(store: Store, group: str = "gpu", lease: float = 30.0) -> SlotRecord | None:
    return store.take_slot(SlotRequest(group, "me", "here", lease=lease))


HOLD = (
    "INSERT INTO headgate.slots (grp, epoch, slot, token, holder, worker_name, units, since, ends)"
    " SELECT %s, max(epoch), 0, nextval('headgate.tokens'), 'rival', 'rival', 1, 0, 1e12"
    " FROM headgate.epochs"
)
SHARE = "SELECT pg_advisory_xact_lock_shared(headgate.salt(), headgate.lock_key(%s))"
ALONE = "SELECT pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(%s))"


# --- grants ---------------------------------------------------------------------------------------


def test_what_is_held_is_summed_after_the_wait(rig: Rig, rival: Rival, watch: Rival) -> None:
    """A sum read in the statement that waited would be older than the other's commit."""
    rig.declare(gpu=1)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None
    assert rig.held("gpu") == 1


def test_a_grant_that_is_undone_leaves_the_room(rig: Rig, rival: Rival, watch: Rival) -> None:
    rig.declare(gpu=1)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.rollback()
    assert taking.result() is not None


def test_groups_retaken_are_summed_after_the_wait(rig: Rig, rival: Rival, watch: Rival) -> None:
    rig.declare(gpu=1, api=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.release_groups(claimed.token)
    rival.lock("gpu")
    rival.run("UPDATE headgate.slots SET token = 1000000, holder = 'rival', ends = 1e12"
              " WHERE grp = 'gpu'")  # fmt: skip
    taking = Waiter(lambda: rig.store.retake_groups(claimed.token))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is False
    assert rig.store.drop_slot("gpu", 0, None)
    assert rig.store.retake_groups(claimed.token)


def test_an_attempt_lost_while_it_waits_for_its_groups_is_told(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.release_groups(claimed.token)
    rival.lock("gpu")
    taking = Waiter(lambda: rig.store.retake_groups(claimed.token))
    until_blocked(watch)
    rig.store.declare_dead(hand.id, "killed")
    hand.running.clear()
    rival.commit()
    with pytest.raises(StaleAttempt):
        taking.result()
    assert rig.held("gpu") == 0


def test_a_slot_counted_as_ended_is_not_extended(rig: Rig, rival: Rival, watch: Rival) -> None:
    """Both look at the last moment of its lease: who has the group decides."""
    rig.declare(gpu=1)
    slot = take(rig.store, lease=5)
    assert slot is not None
    rival.lock("gpu")
    rival.run("UPDATE headgate.slots SET token = NULL, ends = NULL WHERE grp = 'gpu'")
    extending = Waiter(lambda: rig.store.extend_slot("gpu", slot.slot, slot.token, 30))
    until_blocked(watch)
    rival.commit()
    assert extending.result() is None
    assert take(rig.store) is not None


def test_one_group_at_work_holds_up_no_other(rig: Rig, rival: Rival) -> None:
    rig.declare(gpu=1, api=1)
    rival.lock("gpu")
    assert Waiter(lambda: take(rig.store, "api")).result() is not None


def test_two_who_number_slots_of_an_unlimited_group_do_it_one_after_the_other(
    rig: Rig, rival: Rival
) -> None:
    rig.declare(api=None)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    rival.lock("api")
    got = hand.exchange()
    assert got.claimed == (), "somebody is at it: again at once, not by the same numbers"
    assert got.wake_in is not None
    assert got.wake_in < 0.2
    rival.commit()
    assert [c.groups for c in hand.claim()] == [(("api", 0),), (("api", 1),)]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "undone"])
def test_a_claim_neither_waits_for_a_grant_under_way_nor_counts_on_its_end(
    rig: Rig, rival: Rival, kept: bool
) -> None:
    rig.declare(gpu=1)
    rig.submit(2, needs=need("gpu"))
    hand = rig.hand()
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    got = Waiter(lambda: hand.exchange(room=2)).result()
    assert got.claimed == ()
    assert got.wake_in is not None
    assert got.wake_in < 0.2, "somebody is at work there: again soon"
    if kept:
        rival.commit()
    else:
        rival.rollback()
    assert len(hand.claim(room=2)) == (0 if kept else 1)
    assert rig.held("gpu") == 1


def test_a_job_that_somebody_takes_just_now_is_passed_over(rig: Rig, rival: Rival) -> None:
    rig.declare(gpu=2)
    first, second, third = rig.submit(3, needs=need("gpu"))
    rival.run("SELECT 1 FROM headgate.ready WHERE job = (SELECT n FROM headgate.jobs WHERE id = %s)"
              " FOR UPDATE", first)  # fmt: skip
    hand = rig.hand()
    got = Waiter(lambda: hand.exchange(room=2)).result()
    assert [c.job for c in got.claimed] == [second, third]
    assert rig.held("gpu") == 2
    rival.rollback()
    assert hand.exchange(room=1).claimed == ()
    hand.end_all()
    assert [c.job for c in hand.claim(room=2)] == [first]


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "not after all"])
def test_who_claims_beside_an_end_under_way_is_not_granted_its_slot(
    rig: Rig, rival: Rival, watch: Rival, ended: bool
) -> None:
    """Somebody has the attempt: its own worker waits to end it, and nobody else gets its place."""
    rig.declare(gpu=1)
    rig.submit(2, needs=need("gpu"))
    hand, other = rig.hand(), rig.hand("other")
    (claimed,) = hand.claim(room=1)
    rival.run("DELETE FROM headgate.running WHERE token = %s", claimed.token)
    rival.run("UPDATE headgate.slots SET token = NULL, worker = NULL, job = NULL WHERE token = %s",
              claimed.token)  # fmt: skip
    rival.run(
        "INSERT INTO headgate.finished (job, state, reason, attempt, at)"
        " SELECT n, 'succeeded', '', 1, 0 FROM headgate.jobs WHERE id = %s",
        claimed.job,
    )
    ending = Waiter(lambda: hand.end(claimed))
    until_blocked(watch)
    assert Waiter(lambda: other.exchange(room=1)).result().claimed == ()
    if ended:
        rival.commit()
    else:
        rival.rollback()
    assert ending.result() is not ended, "what it says is stale if somebody else has ended it"
    assert len(other.claim(room=1)) == 1
    assert rig.held("gpu") == 1


# --- limits ---------------------------------------------------------------------------------------


def test_after_a_change_nothing_is_granted_by_the_old_value(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=5)
    assert take(rig.store) is not None
    rival.run(ALONE, leases.LIMITS)
    rival.run("INSERT INTO headgate.overrides VALUES ('gpu', 'limit', 1, 'rival', '', 0)")
    rival.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None


def test_a_word_that_has_ended_is_taken_back_before_the_next_grant(rig: Rig, rival: Rival) -> None:
    """Somebody is in the middle of a grant, so nobody can say yet that the word has ended: until
    then nothing is granted, neither by the word nor by what counts after it."""
    rig.declare(gpu=1)
    rig.store.change_limit(LimitChange("gpu", 3, set_value=True, lasts=60))
    rig.submit(5, needs=need("gpu"))
    hand = rig.hand()
    rig.clock.advance(60)
    rival.run(SHARE, leases.LIMITS)
    got = hand.exchange()
    assert (got.claimed, got.more) == ((), True)
    assert len(rig.store.events("limit_changed")) == 1
    rival.commit()
    assert len(hand.claim()) == 1
    assert len(rig.store.events("limit_changed")) == 2


def test_a_change_waits_for_grants_under_way_and_lets_others_go_on(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=5, api=100)
    rival.run(SHARE, leases.LIMITS)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    change = Waiter(lambda: rig.set_limit("gpu", 0))
    until_blocked(watch)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()

    def all_run() -> bool:
        hand.exchange(room=20 - len(hand.running))
        return len(hand.running) >= 20

    wait_until(all_run, why="a claim that does not end stops nobody")
    assert len(hand.running) == 20
    assert take(rig.store, "api") is not None
    assert change.waits
    rival.commit()
    change.result()
    assert rig.store.group("gpu")[0].value == 0
    rig.store.drop_slot("gpu", 0, None)


def test_a_change_that_never_gets_its_turn_says_so(
    rig: Rig, rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "LOCK_TIMEOUT", 0.5)
    rig.declare(gpu=5)
    rival.run(SHARE, leases.LIMITS)
    with pytest.raises(StoreBusy, match="nothing was changed"):
        rig.set_limit("gpu", 1)
    rival.rollback()
    assert rig.store.group("gpu")[0].value == 5


# --- cancel and finish ----------------------------------------------------------------------------


def test_a_job_that_ends_while_it_is_cancelled_has_ended(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    rival.run("DELETE FROM headgate.running WHERE token = %s", claimed.token)
    rival.run("INSERT INTO headgate.finished (job, state, reason, attempt, at)"
              " SELECT n, 'succeeded', '', 1, 0 FROM headgate.jobs WHERE id = %s", id)  # fmt: skip
    cancel = Waiter(lambda: rig.store.cancel(id))
    until_blocked(watch)
    rival.commit()
    hand.running.clear()
    assert cancel.result().state == "succeeded"
    assert watch.run("SELECT * FROM headgate.cancels") == []


@pytest.mark.parametrize("outcome", ["succeeded", "retry"])
def test_a_job_cancelled_while_it_ends_does_not_come_back(
    rig: Rig, rival: Rival, watch: Rival, outcome: str
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    rival.run("SELECT 1 FROM headgate.running WHERE token = %s FOR UPDATE", claimed.token)
    rival.run("INSERT INTO headgate.cancels SELECT n, 0, 'me', 'no more' FROM headgate.jobs"
              " WHERE id = %s", id)  # fmt: skip
    ending = Waiter(lambda: hand.end(claimed, outcome))
    until_blocked(watch)
    rival.commit()
    assert ending.result()
    assert rig.state(id) == ("succeeded" if outcome == "succeeded" else "cancelled")
    assert watch.run("SELECT * FROM headgate.cancels") == [], "no word is left behind"


def test_a_job_claimed_while_it_is_cancelled_is_asked_to_stop(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    rival.run("DELETE FROM headgate.ready")
    rival.run(
        "INSERT INTO headgate.running (token, job, worker, attempt, started_at, ready_at, slots)"
        " SELECT 7, n, %s, 1, 0, 0, '[]' FROM headgate.jobs WHERE id = %s", hand.id, id,
    )  # fmt: skip
    cancel = Waiter(lambda: rig.store.cancel(id, reason="no more"))
    until_blocked(watch)
    rival.commit()
    record = cancel.result()
    assert (record.state, record.cancel_requested) == ("running", True)
    rig.store.exchange(Exchange(hand.id, [Finish(7, "cancelled", "no more")]))
    assert rig.state(id) == "cancelled"


# --- rows that are taken once ---------------------------------------------------------------------


def test_of_two_who_do_the_same_one_finds_it_done(rig: Rig) -> None:
    """Routing, retrying, pruning and promoting in four threads at once: each job once."""
    (unrouted,) = rig.submit(routed=False)
    routed = [Waiter(lambda: rig.store.route([Routing(unrouted)])) for _ in range(4)]
    assert sorted(waiter.result() for waiter in routed) == [0, 0, 0, 1]

    ids = rig.submit(10, delay=5)
    rig.clock.advance(6)
    for sweep in [Waiter(rig.store.sweep) for _ in range(4)]:
        sweep.result()
    hand = rig.hand()
    assert sorted(c.job for c in hand.claim()) == sorted([unrouted, *ids])
    hand.end_all()

    def retry() -> bool:
        try:
            rig.store.retry(ids[0])
        except HeadgateError:
            return False
        return True

    assert sorted(w.result() for w in [Waiter(retry) for _ in range(4)]) == [False] * 3 + [True]
    assert len(hand.claim()) == 1
    hand.end_all()
    assert [a.outcome for a in rig.store.attempts(ids[0])] == ["succeeded", "succeeded"]
    prunes = [Waiter(lambda: rig.store.prune(Retention(succeeded=0))) for _ in range(4)]
    assert sum(prune.result() for prune in prunes) == 11
    assert rig.store.count(JobFilter()) == 0


def test_a_submit_repeated_after_a_lost_answer_stores_nothing_twice(rig: Rig) -> None:
    one = [NewJob("task")]
    many = [NewJob("task") for _ in range(40)]
    for jobs in (one, many):
        assert not any(done.existing for done in rig.store.submit(jobs))
        assert all(done.existing for done in rig.store.submit(jobs))
    mixed = [*many[:20], *(NewJob("task") for _ in range(5))]
    assert [done.existing for done in rig.store.submit(mixed)] == [True] * 20 + [False] * 5
    assert rig.store.count(JobFilter()) == 46
