"""What is done to a job from outside: cancelled, run again, looked for, forgotten."""

from __future__ import annotations

import pytest

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import JobFilter, NewJob, Progress, Retention
from tests.conformance.conftest import Rig, need


def test_cancel_waiting_scheduled_running(rig: Rig) -> None:
    (waiting, running) = rig.submit(2, priority=1)
    (scheduled,) = rig.submit(delay=60)
    unrouted = rig.submit(routed=False)[0]
    for id in (waiting, scheduled, unrouted):
        record = rig.store.cancel(id, "operator", "not needed")
        assert (record.state, record.reason) == ("cancelled", "not needed")
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert claimed.job == running
    assert rig.store.cancel(running, "operator", "stop").state == "running"
    assert rig.store.why(running).code == "cancelling"
    answer = hand.exchange()
    assert answer.cancels == ((claimed.token, "stop"),)
    hand.end(claimed, "retry", delay=1.0)
    assert rig.state(running) == "cancelled", "a cancelled job does not come back"
    assert rig.store.cancel(running).state == "cancelled", "cancelling twice is harmless"
    with pytest.raises(JobNotFound, match="no job"):
        rig.store.cancel("nothing")


def test_a_cancelled_and_lost_job_does_not_come_back(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    hand.claim()
    rig.store.cancel(id)
    rig.store.declare_dead(hand.id, "test")
    hand.running.clear()
    assert rig.state(id) == "cancelled"


def test_a_job_that_succeeds_though_cancelled_has_succeeded(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    rig.store.cancel(id)
    hand.end(claimed)
    assert rig.state(id) == "succeeded"


def test_retry_runs_a_finished_job_once_more(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    with pytest.raises(StoreError, match="only a finished job"):
        rig.store.retry(id)
    (claimed,) = hand.claim()
    hand.end(claimed, "failed")
    assert rig.store.retry(id, "operator").state == "ready"
    (again,) = hand.claim()
    assert (again.job, again.attempt, again.errors) == (id, 2, 0)


def test_expired_jobs_are_cancelled_not_started(rig: Rig) -> None:
    rig.declare(api=0)
    (soon,) = rig.submit(expires=10)
    (blocked,) = rig.submit(expires=10, needs=need("api"))
    (started,) = rig.submit(expires=10, priority=-1)
    hand = rig.hand()
    (claimed,) = hand.claim(room=1)
    assert claimed.job == started
    rig.clock.advance(11)
    assert hand.claim() == []
    record = rig.store.job(soon)
    assert record is not None
    assert (record.state, record.reason) == ("cancelled", "expired")
    assert rig.store.sweep().expired_jobs == 1
    assert rig.state(blocked) == "cancelled"
    hand.end(claimed, "retry", delay=0.0)
    assert len(hand.claim()) == 1, "a job that started in time is not expired by its retry"


def test_progress_is_fenced(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    hand.exchange(progress=[Progress(claimed.token, 0.5, "half")], room=0)
    record = rig.store.job(id)
    assert record is not None
    assert (record.progress, record.progress_text) == (0.5, "half")
    hand.end(claimed)
    assert hand.exchange(progress=[Progress(claimed.token, 0.9)], room=0).stale == {claimed.token}


def test_prune_forgets_what_is_old(rig: Rig) -> None:
    (id,) = rig.submit(idempotency_key="k")
    hand = rig.hand()
    hand.claim()
    hand.end_all()
    (kept,) = rig.submit()
    assert rig.store.prune(Retention()) == 0
    rig.clock.advance(8 * 86400)
    assert rig.store.prune(Retention()) == 1
    assert rig.state(id) == "gone"
    assert rig.store.attempts(id) == []
    assert rig.state(kept) == "ready", "what waits is never pruned"
    (again,) = rig.store.submit([NewJob("task", idempotency_key="k")])
    assert not again.existing


def test_find_by_state_task_queue_group_time(rig: Rig) -> None:
    rig.declare(tenant=1)
    a = rig.tenant("acme", 2)
    b = rig.submit(3, task="other", queue="slow")
    (c,) = rig.submit(delay=60)
    hand = rig.hand(tasks=["task"])
    (claimed,) = hand.claim()

    def found(**fields: object) -> set[str]:
        return {job.id for job in rig.store.find(JobFilter(**fields))}  # type: ignore[arg-type]

    assert found() == {*a, *b, c}
    assert found(states=frozenset(["running"])) == {claimed.job}
    assert found(states=frozenset(["scheduled"])) == {c}
    assert found(states=frozenset(["ready"])) == {a[1], *b}
    assert found(task="other") == found(queue="slow") == set(b)
    assert found(group="tenant/acme") == found(group="tenant") == set(a)
    assert found(group="tenant/acm") == set()
    assert found(since=rig.clock.now() + 1) == set()
    assert rig.store.count(JobFilter(task="other")) == 3
    page = rig.store.find(JobFilter(), limit=4)
    rest = rig.store.find(JobFilter(), limit=4, after=page[-1].id)
    assert [j.id for j in page + rest] == [c, *reversed(b), *reversed(a)]


def test_why_says_who_holds_what(rig: Rig) -> None:
    rig.declare(tenant=1)
    first, second, third = rig.tenant("acme", 3)
    hand = rig.hand()
    hand.claim()
    why = rig.store.why(third)
    assert why.code == "limit-full"
    assert [group.group for group in why.groups] == ["tenant/acme"]
    assert [(h.holder, h.worker) for h in why.holders] == [(first, "w")]
    assert why.ahead == 1
    assert rig.store.why(first).code == "running"
    hand.end_all()
    assert rig.store.why(first).code == "done"
    assert rig.store.why(second).code == "turn"


def test_remaining_counts_what_a_burst_must_wait_for(rig: Rig) -> None:
    rig.declare(api=1, shut=0)
    tasks = frozenset(["task"])
    assert rig.store.remaining(tasks, None) == 0
    rig.submit(2, needs=need("api"))
    rig.submit(needs=need("shut"))
    rig.submit(task="other")
    rig.submit(queue="paused")
    rig.store.pause_queue("paused", True)
    rig.submit(delay=1000)
    assert rig.store.remaining(tasks, None) > 0
    assert rig.store.remaining(tasks, ("elsewhere",)) == 0
    hand = rig.hand(tasks=["task"])
    (claimed,) = hand.claim()
    hand.end(claimed, "retry", delay=5.0)
    (claimed,) = hand.claim()
    hand.end(claimed)
    assert rig.store.remaining(tasks, None) > 0, "a retry is waited for"
    rig.clock.advance(5)
    hand.claim()
    hand.end_all()
    assert rig.store.remaining(tasks, None) == 0, "shut, paused, delayed, unknown are left"


def test_overdue_attempts_are_shown_and_keep_their_slots(rig: Rig) -> None:
    rig.declare(api=1)
    (id, _) = rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    rig.store.overdue(claimed.token, "timeout")
    record = rig.store.job(id)
    assert record is not None
    assert record.reason == "overdue: timeout"
    assert hand.claim() == []
    (slot,) = rig.store.group("api")[1]
    assert slot.overdue


def test_the_latest_of_a_task_is_found_among_many_ends(rig: Rig) -> None:
    hand = rig.hand()
    assert rig.store.latest("task", "succeeded") is None
    ids = rig.submit(5)
    for claimed in hand.claim():
        rig.clock.advance(1)
        hand.end(claimed)
    assert (found := rig.store.latest("task", "succeeded")) is not None
    assert found.id in ids
    assert found.finished_at == max(rig.store.job(id).finished_at for id in ids)
    rig.submit(3, task="other")
    for claimed in hand.claim():
        rig.clock.advance(1)
        hand.end(claimed)
    # Behind more ends of others than are looked at it is not found, and nobody searches for it.
    assert rig.store.latest("task", "succeeded", look=3) is None
    assert rig.store.latest("task", "succeeded", look=4) == found
    assert rig.store.latest("task", "failed") is None
