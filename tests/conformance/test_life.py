"""The life of a job: submit, fence, retry, lose, cancel, expire, prune. I4 and I6."""

from __future__ import annotations

import pytest

from headgate.errors import IdempotencyConflict, JobNotFound, StoreError
from headgate.jobs import Failure, Finish, JobFilter, NewJob, Progress, Retention, Routing
from headgate.stores.protocol import Exchange, Publication, TaskSpec

from .conftest import Rig, need


def test_a_job_from_submit_to_success(rig: Rig) -> None:
    (id,) = rig.submit(args='{"n":1}', needs=need("api"), turn="acme", carried=(("api", 3),))
    assert rig.state(id) == "ready"
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert (claimed.job, claimed.args, claimed.attempt) == (id, '{"n":1}', 1)
    record = rig.store.job(id)
    assert record is not None
    assert (record.state, record.worker, record.groups) == ("running", "w", ("api",))
    rig.clock.advance(2)
    assert hand.end(claimed, result='"done"')
    record = rig.store.job(id)
    assert record is not None
    assert (record.state, record.result, record.attempt) == ("succeeded", '"done"', 1)
    (attempt,) = rig.store.attempts(id)
    assert (attempt.outcome, attempt.worker, attempt.groups) == ("succeeded", "w", ("api",))
    assert attempt.ended_at == attempt.started_at + 2


def test_tokens_grow_over_all_jobs(rig: Rig) -> None:
    rig.submit(5)
    hand = rig.hand()
    tokens = [c.token for c in hand.claim(room=3)]
    hand.end_all()
    tokens += [c.token for c in hand.claim()]
    assert tokens == sorted(set(tokens))


def test_a_stale_finish_changes_nothing_and_is_told(rig: Rig) -> None:
    rig.declare(api=1)
    (id, _) = rig.submit(2, needs=need("api"))
    old, new = rig.hand("old"), rig.hand("new")
    (first,) = old.claim()
    rig.store.declare_dead(old.id, "the keeper said so")
    (again,) = new.claim(room=1)
    assert again.job == id
    assert again.token > first.token
    answer = rig.store.exchange(Exchange(old.id, [Finish(first.token, "succeeded")]))
    assert answer.stale == {first.token}
    assert answer.dead
    assert rig.held("api") == 1, "the late release did not free the new attempt's slot"
    assert rig.state(id) == "running"
    assert new.end(again)
    assert not new.end(again), "a finish sent twice is stale the second time"
    old.running.clear()


def test_another_workers_token_is_no_use(rig: Rig) -> None:
    rig.submit()
    a, b = rig.hand("a"), rig.hand("b")
    (claimed,) = a.claim()
    assert not b.end(claimed)
    assert a.end(claimed)


def test_a_dead_worker_claims_nothing(rig: Rig) -> None:
    rig.submit()
    hand = rig.hand()
    rig.store.declare_dead(hand.id, "test")
    answer = hand.exchange()
    assert answer.dead
    assert answer.claimed == ()


def test_retries_count_errors(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    for n in range(3):
        (claimed,) = hand.claim()
        assert (claimed.attempt, claimed.errors) == (n + 1, n)
        hand.end(claimed, "retry", delay=1.0, error=Failure("ValueError", f"no {n}"))
        assert rig.state(id) == "scheduled"
        assert rig.store.why(id).code == "retry"
        rig.clock.advance(1)
    (claimed,) = hand.claim()
    hand.end(claimed, "failed", error=Failure("ValueError", "at last", "Traceback …"))
    record = rig.store.job(id)
    assert record is not None
    assert record.error == Failure("ValueError", "at last", "Traceback …")
    assert [a.outcome for a in rig.store.attempts(id)] == ["error"] * 4


def test_a_waiting_retry_holds_no_slot(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    hand.end(claimed, "retry", delay=100.0)
    assert len(hand.claim()) == 1


def test_returned_jobs_are_unspent(rig: Rig) -> None:
    (id, _) = rig.submit(2)
    hand = rig.hand()
    (claimed,) = hand.claim(room=1)
    hand.end(claimed, "returned")
    assert rig.store.attempts(id) == []
    (again,) = hand.claim(room=1)
    assert (again.job, again.attempt) == (id, 1)
    assert again.token > claimed.token


def test_interrupted_attempts_are_kept_and_cost_nothing(rig: Rig) -> None:
    (id, _) = rig.submit(2)
    hand = rig.hand()
    (claimed,) = hand.claim(room=1)
    hand.end(claimed, "interrupted", reason="shutdown")
    (again,) = hand.claim(room=1)
    assert (again.job, again.attempt, again.errors, again.lost) == (id, 2, 0, 0)
    kept = [(a.attempt, a.outcome, a.reason) for a in rig.store.attempts(id)]
    assert kept == [(1, "interrupted", "shutdown"), (2, "running", "")]


def test_a_lost_attempt_goes_back_and_has_its_own_allowance(rig: Rig) -> None:
    rig.declare(api=1)
    (id,) = rig.submit(needs=need("api"), max_lost=2)
    watcher = rig.hand("watcher", tasks=["nothing"])
    for n in range(3):
        hand = rig.hand(f"w{n}")
        (claimed,) = hand.claim()
        assert (claimed.errors, claimed.lost) == (0, n)
        hand.die()
        hand.running.clear()
        # No sweeper has to run: the next exchange of anybody takes the slot back.
        watcher.exchange()
        assert rig.held("api") == 0
        hand.fds = []
    record = rig.store.job(id)
    assert record is not None
    assert (record.state, record.reason) == ("failed", "lost")
    assert [a.outcome for a in rig.store.attempts(id)] == ["lost"] * 3
    assert rig.store.events("worker_lost")


def test_an_extended_lease_outlives_its_worker(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(2, needs=need("api"))
    hand, other = rig.hand("a"), rig.hand("b")
    (claimed,) = hand.claim()
    assert rig.store.extend(claimed.token, 60)
    hand.die()
    hand.running.clear()
    assert other.claim() == [], "the slot counts while its own lease lasts"
    rig.clock.advance(61)
    assert len(other.claim()) == 1


def test_extending_a_stale_attempt_is_refused(rig: Rig) -> None:
    rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    hand.end(claimed)
    assert not rig.store.extend(claimed.token, 60)


def test_unregister_loses_what_still_runs(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    hand.claim()
    hand.running.clear()
    hand.leave()
    assert rig.state(id) == "ready"


# --- submit ---


def test_an_idempotency_key_meets_its_job(rig: Rig) -> None:
    first, second = rig.store.submit([NewJob("task", '{"n":1}', idempotency_key="k")] * 2)
    assert (first.existing, second.existing) == (False, True)
    assert first.id == second.id
    with pytest.raises(IdempotencyConflict, match="other arguments"):
        rig.store.submit([NewJob("task", '{"n":2}', idempotency_key="k")])
    hand = rig.hand()
    assert len(hand.claim()) == 1
    hand.end_all()
    (again,) = rig.store.submit([NewJob("task", '{"n":1}', idempotency_key="k")])
    assert again.existing, "the key is valid while the job is kept"


def test_a_submit_repeated_after_a_lost_answer_stores_once(rig: Rig) -> None:
    job = NewJob("task")
    rig.store.submit([job])
    (again,) = rig.store.submit([job])
    assert again.existing
    assert len(rig.hand().claim()) == 1


def test_a_batch_is_stored_whole_or_not_at_all(rig: Rig) -> None:
    rig.store.submit([NewJob("task", '{"n":1}', idempotency_key="k")])
    batch = [NewJob("task"), NewJob("task", '{"n":2}', idempotency_key="k")]
    with pytest.raises(IdempotencyConflict):
        rig.store.submit(batch)
    assert rig.state(batch[0].id) == "gone"


def test_an_empty_batch_is_fine(rig: Rig) -> None:
    assert rig.store.submit([]) == []


def test_followups_are_stored_with_the_finish_or_not_at_all(rig: Rig) -> None:
    rig.submit(2)
    hand = rig.hand()
    a, b = hand.claim()
    child = NewJob("task", parent=a.job)
    assert hand.end(a, followups=(child,))
    assert rig.state(child.id) == "ready"
    rig.store.declare_dead(hand.id, "test")
    stillborn = NewJob("task")
    assert not hand.end(b, followups=(stillborn,))
    assert rig.state(stillborn.id) == "gone"


def test_unrouted_jobs_wait_for_their_stamp(rig: Rig) -> None:
    rig.declare(api=1)
    job = NewJob("task", '{"n":1}', routed=False, options='{"queue":"slow"}')
    late = NewJob("task", routed=False, delay=60)
    rig.store.submit([job, late, NewJob("nobody's", routed=False)])
    assert rig.store.why(job.id).code == "unrouted"
    hand = rig.hand()
    answer = hand.exchange()
    assert answer.claimed == ()
    assert answer.unrouted
    (first, second) = rig.store.unrouted(frozenset(["task", "x"]))
    assert (first.job, first.args, first.options) == (job.id, '{"n":1}', '{"queue":"slow"}')
    stamps = [
        Routing(first.job, queue="slow", needs=need("api"), turn="t", task="other"),
        Routing(second.job, error="the key function raised"),
    ]
    assert rig.store.route(stamps) == 2
    assert rig.store.route(stamps) == 0, "who comes later changes nothing"
    (claimed,) = hand.claim()
    assert (claimed.queue, claimed.turn, claimed.task) == ("slow", "t", "other")
    record = rig.store.job(late.id)
    assert record is not None
    assert (record.state, record.reason) == ("failed", "unroutable")


def test_the_catalogue_tells_of_tasks(rig: Rig) -> None:
    spec = TaskSpec("charge", aliases=("bill",), queue="money", priority=-3, fair_by="tenant")
    rig.store.publish(Publication("w", release="2", tasks=(spec,)))
    rig.store.publish(Publication("v", release="1", tasks=(TaskSpec("charge", queue="old"),)))
    assert rig.store.task("charge") == rig.store.task("bill") == spec
    assert rig.store.task("nothing") is None
    assert rig.store.tasks() == [spec]


# --- from outside ---


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


def test_released_for_a_wait_and_taken_again(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (parent,) = hand.claim()
    assert rig.store.release_groups(parent.token)
    assert not rig.store.release_groups(parent.token), "twice changes nothing"
    (child,) = hand.claim()
    assert not rig.store.retake_groups(parent.token), "all or none, and it is taken"
    hand.end(child)
    assert rig.store.retake_groups(parent.token)
    assert rig.held("api") == 1


def test_huge_and_odd_bodies_come_back_as_they_were(rig: Rig) -> None:
    huge = '"' + "x" * 10_000_000 + '"'
    odd = '{"a":"\\u0000 \\ud83d\\ude00 ünï \\n"}'
    rig.store.submit([NewJob("task", huge), NewJob("task", odd)])
    assert [c.args for c in rig.hand().claim()] == [huge, odd]


def test_an_idempotency_key_knows_the_same_work_again(rig: Rig) -> None:
    """Arguments in another order, and a task that got its own name meanwhile, are the same."""
    (first,) = rig.store.submit(
        [NewJob("old", '{"a":1,"b":[2.50]}', idempotency_key="k", routed=False)]
    )

    def again(task: str, args: str) -> bool:
        (found,) = rig.store.submit([NewJob(task, args, idempotency_key="k")])
        assert found.id == first.id
        return found.existing

    assert again("old", '{"b":[2.50],"a":1}')
    rig.store.publish(Publication("w", tasks=(TaskSpec("task", aliases=("old",)),)))
    assert again("task", '{"a":1,"b":[2.50]}')
    rig.store.route([Routing(first.id, task="task")])
    assert again("old", '{"a":1,"b":[2.50]}')
    assert again("task", '{"a":1,"b":[2.50]}')
    with pytest.raises(IdempotencyConflict):
        again("other", '{"a":1,"b":[2.50]}')


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
