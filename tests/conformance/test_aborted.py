"""Who wants to know of a job that was given up is told by a job, stored with that end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headgate.jobs import CapUse, JobFilter, JobRecord, NewJob, Routing
from headgate.stores.protocol import Publication, TaskSpec
from tests.conformance.conftest import Hand, Rig, need

TELLER = "task.told"


@pytest.fixture(autouse=True)
def catalogue(rig: Rig) -> None:
    tasks = (TaskSpec("task", queue="own", on_aborted=TELLER, max_lost=5), TaskSpec("other"))
    rig.store.publish(Publication("test", tasks=tasks))


def told(rig: Rig) -> list[JobRecord]:
    return rig.store.find(JobFilter(task=TELLER))


def cancel_waiting(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}')
    rig.store.cancel(id, "me", 'a "word"')
    return id, 'a "word"'


def cancel_running(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}')
    (claimed,) = hand.claim()
    rig.store.cancel(id, "me", "stop")
    hand.end(claimed, "cancelled", reason="stop")
    return id, "stop"


def cancel_before_its_retry(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}')
    (claimed,) = hand.claim()
    rig.store.cancel(id, "me", "stop")
    hand.end(claimed, "retry", delay=5)
    return id, "stop"


def expire_in_line(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}', expires=5)
    rig.clock.advance(6)
    hand.claim(tasks=["task"])
    return id, "expired"


def expire_by_a_sweep(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}', expires=5)
    rig.clock.advance(6)
    rig.store.sweep()
    return id, "expired"


def lose(rig: Rig, hand: Hand) -> tuple[str, str]:
    (id,) = rig.submit(args='{"n":1.50}', max_lost=0)
    doomed = rig.hand("doomed")
    assert len(doomed.claim()) == 1
    doomed.die()
    hand.claim()
    return id, "lost"


def supersede(rig: Rig, hand: Hand) -> tuple[str, str]:
    cap = CapUse("newest", max_total=1, when_full="replace")
    (id,) = rig.submit(args='{"n":1.50}', caps=(cap,))
    rig.submit(task="other", caps=(cap,))
    hand.claim(tasks=["other"])
    return id, "superseded"


@pytest.mark.parametrize(
    "give_up",
    [
        cancel_waiting,
        cancel_running,
        cancel_before_its_retry,
        expire_in_line,
        expire_by_a_sweep,
        lose,
        supersede,
    ],
)
def test_an_end_that_was_not_its_own_is_told_once(
    rig: Rig, give_up: Callable[[Rig, Hand], tuple[str, str]]
) -> None:
    hand = rig.hand()
    id, reason = give_up(rig, hand)
    record = rig.store.job(id)
    assert record is not None
    assert record.reason == reason
    (teller,) = told(rig)
    said: dict[str, Any] = {"job": id, "state": record.state, "reason": reason, "args": {"n": 1.5}}
    assert json.loads(teller.args) == said
    assert teller.args.endswith('"args":{"n":1.50}}')  # as they are stored, to the letter
    assert (teller.parent, teller.queue, teller.state) == (id, record.queue, "ready")
    # Nobody wants to know of the end of that one.
    rig.store.cancel(teller.id, "me", "no")
    assert len(told(rig)) == 1


def test_its_own_end_is_told_nobody(rig: Rig) -> None:
    hand = rig.hand()
    rig.submit(3)
    for claimed, outcome in zip(hand.claim(), ("succeeded", "failed", "retry"), strict=True):
        hand.end(claimed, outcome)
    rig.store.route([Routing(rig.submit(routed=False)[0], error="no such key")])
    (other,) = rig.submit(task="other")
    rig.store.cancel(other, "me", "nobody asked")
    assert told(rig) == []


def test_an_attempt_that_is_lost_is_not_the_end_of_its_job(rig: Rig) -> None:
    hand = rig.hand()
    (id,) = rig.submit(max_lost=1)
    doomed = rig.hand("doomed")
    doomed.claim()
    doomed.die()
    assert [claimed.job for claimed in hand.claim()] == [id]
    assert told(rig) == []


def test_a_job_that_nobody_had_stamped_is_told_of_in_the_tasks_own_queue(rig: Rig) -> None:
    job = NewJob("task", routed=False)
    rig.store.submit([job])
    rig.store.cancel(job.id, "me", "enough")
    assert [(teller.parent, teller.queue) for teller in told(rig)] == [(job.id, "own")]


def test_a_value_that_a_stamp_carries_counts(rig: Rig) -> None:
    hand = rig.hand()
    ids = rig.submit(2, routed=False)
    wanted = need("class", "key")
    rig.store.route([Routing(id, needs=wanted, carried=(("class/key", 1),)) for id in ids])
    assert rig.store.values(["class/key"])["class/key"].value == 1
    assert len(hand.claim()) == 1
