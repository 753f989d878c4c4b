"""Caps: how much may be submitted. Exact, whatever becomes of those that count."""

from __future__ import annotations

import os
from typing import Any

from headgate.jobs import Finish, NewJob, Retention, Submitted
from headgate.stores.protocol import Exchange
from tests.conformance.capping import accepted, cap, one, put
from tests.conformance.conftest import Rig

# --- total -----------------------------------------------------------------------------------


def test_one_too_many_is_refused_by_name_and_number(rig: Rig) -> None:
    first = one(rig, cap(2))
    one(rig, cap(2))
    third = one(rig, cap(2))
    assert third.refused is not None
    assert not third.existing
    assert (third.refused.group, third.refused.rule) == ("tenant/acme", "total")
    assert (third.refused.count, third.refused.cap) == (2, 2)
    assert third.refused.existing == first.id
    assert rig.store.job(third.id) is None
    # Another key has places of its own.
    assert one(rig, cap(2, group="tenant/other")).refused is None


def test_in_bulk_each_has_its_own_answer_and_the_others_are_stored(rig: Rig) -> None:
    jobs = [NewJob("task", caps=(cap(3),)) for _ in range(5)]
    jobs += [NewJob("task"), NewJob("task", caps=(cap(1, group="b"),))]
    jobs += [NewJob("task") for _ in range(20)]
    results = rig.store.submit(jobs)
    assert [result.refused is not None for result in results[:7]] == [False] * 3 + [True] * 2 + [
        False
    ] * 2
    assert [result.id for result in results] == [job.id for job in jobs]
    assert len(rig.hand().claim()) == 3 + 2 + 20


def test_running_counts_and_the_end_gives_the_place_back(rig: Rig) -> None:
    worker = rig.hand()
    for outcome in ("succeeded", "failed", "cancelled"):
        one(rig, cap(1))
        (claimed,) = worker.claim()
        assert one(rig, cap(1)).refused is not None
        worker.end(claimed, outcome)
        assert one(rig, cap(1)).refused is None
        (claimed,) = worker.claim()
        worker.end(claimed, keep=False)


def test_a_retry_is_never_refused_and_counts(rig: Rig) -> None:
    worker = rig.hand()
    for outcome in ("retry", "snoozed", "interrupted", "returned"):
        mine = one(rig, cap(1))
        (claimed,) = worker.claim()
        worker.end(claimed, outcome, delay=5.0)
        assert rig.state(mine.id) in ("scheduled", "ready")
        assert one(rig, cap(1)).refused is not None
        rig.clock.advance(10)
        (claimed,) = worker.claim()
        assert claimed.job == mine.id
        worker.end(claimed)


def test_cancelled_expired_lost_and_pruned_jobs_leave_no_place_behind(rig: Rig) -> None:
    cancelled = one(rig, cap(1))
    rig.store.cancel(cancelled.id)
    one(rig, cap(1), expires=5.0)
    rig.clock.advance(10)
    rig.store.sweep()
    dying = rig.hand("dying")
    lost = one(rig, cap(1), max_lost=0)
    assert lost.refused is None
    dying.claim()
    rig.store.declare_dead(dying.id, "killed by the test")
    dying.running.clear()
    rig.hands.remove(dying)
    assert rig.state(lost.id) == "failed"
    for fd in dying.fds:
        os.close(fd)
    assert one(rig, cap(1)).refused is None
    (claimed,) = rig.hand().claim()
    rig.hands[-1].end(claimed)
    rig.clock.advance(1000)
    assert rig.store.prune(Retention(succeeded=1, failed=1, cancelled=1)) == 4
    assert accepted(put(rig, cap(1), count=2)) == 1


def test_a_lost_attempt_comes_back_and_counts(rig: Rig) -> None:
    dying = rig.hand("dying")
    mine = one(rig, cap(1, waiting=1))
    dying.claim()
    other = one(rig, cap(2, waiting=1))
    assert other.refused is None
    dying.die()
    rig.hands.remove(dying)
    worker = rig.hand()
    worker.exchange(room=0)
    rig.store.sweep()
    assert rig.state(mine.id) == "ready"
    refused = one(rig, cap(5, waiting=2)).refused
    assert refused is not None
    assert (refused.rule, refused.count) == ("waiting", 2)
    rig.store.unregister(dying.id)


def test_zero_takes_nothing_new_and_keeps_what_is_there(rig: Rig) -> None:
    mine = one(rig, cap(2))
    for policy in ("reject", "replace", "cancel_running"):
        refused = one(rig, cap(0, when_full=policy)).refused
        assert refused is not None
        assert (refused.count, refused.cap) == (1, 0)
    assert one(rig, cap(0, group="empty")).refused is not None
    assert one(rig, cap(0, group="empty", when_full="skip")).refused is not None
    assert rig.state(mine.id) == "ready"
    assert [claimed.job for claimed in rig.hand().claim()] == [mine.id]


def test_after_a_cap_is_lowered_who_stands_above_it_counts(rig: Rig) -> None:
    worker = rig.hand()
    assert accepted(put(rig, cap(5), count=5)) == 5
    claimed = worker.claim()
    assert one(rig, cap(3)).refused is not None
    for n, ended in enumerate(claimed[:2]):  # those in places below the cap
        worker.end(ended)
        refused = one(rig, cap(3)).refused
        assert refused is not None
        assert refused.count == 4 - n
    worker.end(claimed[2])
    assert one(rig, cap(3)).refused is None
    assert one(rig, cap(3)).refused is not None
    # Raised again.
    assert accepted(put(rig, cap(5), count=5)) == 2


def test_a_finished_job_that_is_run_again_counts(rig: Rig) -> None:
    worker = rig.hand()
    mine = one(rig, cap(1))
    (claimed,) = worker.claim()
    worker.end(claimed)
    other = one(rig, cap(1))
    rig.store.retry(mine.id)
    refused = one(rig, cap(2)).refused
    assert refused is not None
    assert refused.count == 2
    for claimed in worker.claim():
        worker.end(claimed)
    assert rig.state(other.id) == rig.state(mine.id) == "succeeded"
    assert accepted(put(rig, cap(2), count=3)) == 2


# --- waiting ---------------------------------------------------------------------------------


def test_waiting_counts_only_what_does_not_run(rig: Rig) -> None:
    worker = rig.hand()
    for _ in range(3):
        assert accepted(put(rig, cap(waiting=2), count=3)) == 2
        worker.claim()
    assert len(worker.running) == 6


def test_who_waits_again_counts_among_the_waiting(rig: Rig) -> None:
    worker = rig.hand()
    one(rig, cap(waiting=1))
    (claimed,) = worker.claim()
    assert accepted(put(rig, cap(waiting=1), count=2)) == 1
    worker.end(claimed, "retry", delay=100.0)
    refused = one(rig, cap(waiting=2)).refused
    assert refused is not None
    assert (refused.rule, refused.count, refused.cap) == ("waiting", 2, 2)
    # One of them starts: the other one moves down, and fills a cap of one.
    worker.claim()
    assert one(rig, cap(waiting=1)).refused is not None
    assert one(rig, cap(waiting=2)).refused is None


def test_delayed_jobs_wait_too(rig: Rig) -> None:
    assert accepted(put(rig, cap(waiting=2), count=3, delay=100.0)) == 2


# --- what is given back when another cap refuses ------------------------------------------------


def test_a_refusal_by_one_cap_takes_no_place_of_another(rig: Rig) -> None:
    a, b = cap(1, group="a"), cap(1, group="b")
    one(rig, b)
    refused = one(rig, a, b).refused
    assert refused is not None
    assert refused.group == "b"
    assert one(rig, a).refused is None


def test_a_replacement_is_undone_when_another_cap_refuses(rig: Rig) -> None:
    a, b = cap(1, group="a", when_full="replace"), cap(1, group="b")
    mine, _ = one(rig, a), one(rig, b)
    refused = one(rig, a, b).refused
    assert refused is not None
    assert refused.group == "b"
    assert rig.state(mine.id) == "ready"
    refused = one(rig, cap(1, group="a")).refused
    assert refused is not None
    assert refused.existing == mine.id


# --- lost answers and keys --------------------------------------------------------------------


def test_the_same_submit_again_takes_no_second_place(rig: Rig) -> None:
    job = NewJob("task", caps=(cap(2),))
    assert rig.store.submit([job]) == [Submitted(job.id)]
    assert rig.store.submit([job]) == [Submitted(job.id, existing=True)]
    assert accepted(put(rig, cap(2), count=2)) == 1


def test_an_idempotency_key_meets_its_job_however_full_the_cap_is(rig: Rig) -> None:
    mine = one(rig, cap(1), idempotency_key="k")
    again = one(rig, cap(1), idempotency_key="k")
    assert again == Submitted(mine.id, existing=True)
    # A refused submission does not use its key up.
    assert one(rig, cap(1), idempotency_key="new").refused is not None
    rig.store.cancel(mine.id)
    new = one(rig, cap(1), idempotency_key="new")
    assert new.refused is None
    assert not new.existing


# --- follow-ups ---------------------------------------------------------------------------------


def test_a_follow_up_that_does_not_fit_leaves_the_attempt_running(rig: Rig) -> None:
    one(rig, cap(1, group="full"), delay=100.0)
    rig.submit()
    worker = rig.hand()
    (claimed,) = worker.claim()
    follow = (NewJob("task"), NewJob("task", caps=(cap(1, group="full"),)))
    got = rig.store.exchange(
        Exchange(worker.id, [Finish(claimed.token, "succeeded", followups=follow)])
    )
    assert not got.stale
    ((token, refused),) = got.refused
    assert token == claimed.token
    assert refused.group == "full"
    assert rig.state(claimed.job) == "running"
    assert [rig.store.job(job.id) for job in follow] == [None, None]
    assert worker.end(claimed, "failed")


def test_who_ends_makes_room_for_what_follows_from_it(rig: Rig) -> None:
    mine = one(rig, cap(1))
    worker = rig.hand()
    for _ in range(3):
        (claimed,) = worker.claim()
        follow = NewJob("task", caps=(cap(1),))
        assert worker.end(claimed, followups=(follow,))
        assert rig.state(follow.id) == "ready"
    assert rig.state(mine.id) == "succeeded"


# --- the record ---------------------------------------------------------------------------------


def test_what_caps_do_is_recorded_with_a_count(rig: Rig) -> None:
    put(rig, cap(1), count=10)
    (event,) = rig.store.events("cap_refused")
    assert event.subject == "tenant/acme"
    assert (event.data["count"], event.data["cap"], event.data["rule"]) == (9, 1, "total")
    for _ in range(3):
        one(rig, cap(1, when_full="replace"))
    (event,) = rig.store.events("cap_replaced")
    assert (event.subject, event.data["count"]) == ("tenant/acme", 3)
    rig.hand().claim()
    one(rig, cap(1, when_full="cancel_running"))
    rig.hands[0].end_all()
    (event,) = rig.store.events("cap_cancelled")
    assert (event.subject, event.data["count"]) == ("tenant/acme", 1)


def test_lost_places_are_written_down_again(rig: Rig) -> None:
    one(rig, cap(2, waiting=5))
    rig.hand().claim()
    one(rig, cap(2, waiting=5))
    store: Any = rig.store
    places = f"{'headgate.' if 'postgres' in store.url else ''}cap_places"
    store._do(lambda tx: tx.run(f"DELETE FROM {places}"))
    assert one(rig, cap(2, group="else")).refused is None
    (trouble,) = rig.store.doctor()
    assert trouble.what == "uncounted-jobs"
    assert trouble.detail.endswith(": 2")
    assert [t.repaired for t in rig.store.doctor(repair=True)] == [True]
    assert rig.store.doctor() == []
    refused = one(rig, cap(2)).refused
    assert refused is not None
    assert refused.count == 2
