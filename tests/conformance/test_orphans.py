"""Limits and jobs that nobody declares any more, and what looks wrong."""

from __future__ import annotations

from headgate.concurrency import Concurrency
from headgate.stores.protocol import Publication, SlotRequest, TaskSpec
from headgate.stores.relational.orphans import FORGET_AFTER, GONE_AFTER

from .conftest import Hand, Rig, need


def desk(rig: Rig) -> Concurrency:
    return Concurrency(lambda: rig.store, lambda: "ann")


def value(rig: Rig, group: str) -> tuple[int | None, str]:
    record = rig.store.values([group])[group]
    return record.value, record.source


def sweep(rig: Rig) -> None:
    rig.clock.advance(11)
    rig.store.sweep()


def orphaned(rig: Rig) -> set[str]:
    return {record.group for record in rig.store.limits() if record.orphaned}


def fleet(rig: Rig, name: str, limit: int, release: str = "") -> Hand:
    hand = rig.hand(name, tasks=["task"])
    spec = TaskSpec("task")
    rig.store.publish(Publication(name, release, tasks=(spec,), code={"api": limit}))
    return hand


def test_a_limit_that_nobody_declares_any_more(rig: Rig) -> None:
    hand = fleet(rig, "old", 2)
    rig.submit(3, needs=need("api"))
    (a, b) = hand.claim()
    sweep(rig)
    assert orphaned(rig) == set()
    other = rig.hand("other", tasks=["other"])
    hand.end(b)
    hand.leave()  # it ran one: that one is lost, and waits again
    sweep(rig)
    assert orphaned(rig) == set(), "a restart is no reason"
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert orphaned(rig) == {"api"}
    assert value(rig, "api") == (2, "code"), "it counts all the same"
    assert [t.what for t in rig.store.oddities() if "orphan" in t.what] == [
        "orphaned-limit", "orphaned-task"
    ]  # fmt: skip
    rig.clock.advance(FORGET_AFTER)
    sweep(rig)
    assert value(rig, "api") == (2, "code"), "jobs wait for it"
    assert rig.store.task("task") is not None
    assert a.task == "task"
    back = fleet(rig, "new", 3)
    sweep(rig)
    assert orphaned(rig) == set()
    assert value(rig, "api") == (3, "code")
    while back.claim():
        back.end_all()
    back.leave()
    sweep(rig)
    rig.clock.advance(FORGET_AFTER)
    sweep(rig)
    assert value(rig, "api") == (None, "none")
    assert rig.store.task("task") is None
    kinds = [event.kind for event in rig.store.events(limit=5)]
    assert {"limit_forgotten", "task_forgotten"} <= set(kinds)
    assert other.claim() == []


def test_runs_of_a_job_that_is_in_no_configuration_any_more_are_cancelled(rig: Rig) -> None:
    here = rig.hand("here", tasks=["old", "new", "of-code"])
    there = rig.hand("there", tasks=["old"])
    specs = (TaskSpec("old", source="file"), TaskSpec("new", source="file"), TaskSpec("of-code"))
    rig.store.publish(Publication("here", tasks=specs))
    (running,) = rig.submit(task="old")
    (claimed,) = there.claim()
    waiting = [*rig.submit(2, task="old"), *rig.submit(task="old", run_at=rig.store.now() + 9e5)]
    (other,) = rig.submit(task="of-code")
    # A reload: this worker knows less from now on, and there is another that knows it still.
    rig.store.publish(Publication("here", tasks=(specs[1],), worker=here.id))
    assert {w.name: set(w.tasks) for w in rig.store.workers()}["here"] == {"new"}
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert {rig.state(id) for id in waiting} == {"ready", "scheduled"}
    there.end(claimed)
    there.leave()
    sweep(rig)
    assert {rig.state(id) for id in waiting} == {"ready", "scheduled"}, "a restart is no reason"
    rig.clock.advance(GONE_AFTER + 11)
    assert rig.store.sweep().removed == (("old", 3),)
    for id in waiting:
        record = rig.store.job(id)
        assert record is not None
        assert (record.state, record.reason) == ("cancelled", "removed from the configuration")
    assert [rig.state(running), rig.state(other)] == ["succeeded", "ready"]
    (event,) = [e for e in rig.store.events(limit=20) if e.kind == "runs_removed"]
    assert event.subject == "old"
    sweep(rig)
    assert rig.store.sweep().removed == ()


def test_what_is_held_is_not_forgotten(rig: Rig) -> None:
    rig.declare(gpu=1)
    rig.hand("other")
    slot = rig.store.take_slot(SlotRequest("gpu", "me", "here", 10 * FORGET_AFTER))
    assert slot is not None
    sweep(rig)
    rig.clock.advance(FORGET_AFTER + GONE_AFTER)
    sweep(rig)
    assert value(rig, "gpu") == (1, "code")
    assert orphaned(rig) == {"gpu"}
    rig.store.drop_slot("gpu", slot.slot, slot.token)
    sweep(rig)
    assert value(rig, "gpu") == (None, "none")


def test_a_release_that_was_rolled_back_decides_no_more(rig: Rig) -> None:
    new = fleet(rig, "new", 10, release="2.0")
    old = fleet(rig, "old", 5, release="1.9")
    assert value(rig, "api") == (10, "code")
    new.leave()
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert value(rig, "api") == (5, "code")
    assert rig.store.values(["api"])["api"].disagree == ()
    assert old.claim() == []


def test_who_declared_nothing_leaves_nothing(rig: Rig) -> None:
    rig.store.publish(Publication("bare"))
    rig.hand("other")
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    with rig.store._read() as tx:  # type: ignore[attr-defined]
        assert tx.rows(tx.sql.orphans.declarers) == []


def test_a_worker_that_is_back_in_time_changes_nothing(rig: Rig) -> None:
    fleet(rig, "web", 10).leave()
    fleet(rig, "cron", 5)
    rig.store.publish(Publication("web", "1", code={"api": 10}))
    sweep(rig)
    rig.clock.advance(GONE_AFTER / 2)
    rig.hand("web", tasks=["task"])
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert value(rig, "api") == (10, "code")


# --- what looks wrong ---------------------------------------------------------------------------


def odd(rig: Rig) -> list[str]:
    return sorted(trouble.what for trouble in rig.store.oddities())


def test_what_looks_wrong(rig: Rig) -> None:
    fleet(rig, "a", 2)
    assert odd(rig) == []
    fleet(rig, "b", 3)
    assert odd(rig) == ["disagreement"]
    fleet(rig, "a", 3)
    rig.submit(1, needs=need("api"))
    rig.submit(1, task="nobody")
    assert odd(rig) == []
    rig.clock.advance(61)
    # Free, with a worker that has room: no claim came (these are hands, and did not ask).
    assert odd(rig) == ["free-with-waiters", "unserved"]
    rig.pause("api")
    assert odd(rig) == ["unserved"]
    rig.pause("api", False)
    hand = rig.hand("c", tasks=["task"])
    (claimed,) = hand.claim()
    rig.store.overdue(claimed.token, "timeout of 5 s")
    assert odd(rig) == ["overdue-attempt", "unserved"]
    assert claimed.job in rig.store.oddities()[0].detail


def test_who_is_gone_disagrees_with_nobody(rig: Rig) -> None:
    old = fleet(rig, "old", 2)
    fleet(rig, "new", 3)
    assert odd(rig) == ["disagreement"]
    old.leave()
    sweep(rig)
    assert odd(rig) == []


def test_a_worker_that_stops_or_stalls_serves_nobody(rig: Rig) -> None:
    rig.submit(1)
    hand = rig.hand()
    rig.clock.advance(61)
    assert odd(rig) == ["free-with-waiters"]
    rig.store.mark(hand.id, "stopping")
    assert odd(rig) == ["unserved"]
    rig.store.mark(hand.id, "stalled")
    assert odd(rig) == ["stalled-worker", "unserved"]
