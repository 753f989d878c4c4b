"""The life of a job: submit, fence, retry, lose. I4 and I6."""

from __future__ import annotations

import pytest

from headgate.errors import IdempotencyConflict
from headgate.jobs import Failure, Finish, NewJob, Routing
from headgate.stores.protocol import Exchange, Publication, TaskSpec
from tests.conformance.conftest import Rig, need


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


def test_huge_and_odd_bodies_come_back_as_they_were(rig: Rig) -> None:
    huge = '"' + "x" * 10_000_000 + '"'
    odd = '{"a":"\\u0000 \\ud83d\\ude00 ünï \\n"}'
    rig.store.submit([NewJob("task", huge), NewJob("task", odd)])
    assert [c.args for c in rig.hand().claim()] == [huge, odd]
