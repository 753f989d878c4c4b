"""On every store: schedules that are declared again, changed, renamed or removed."""

from __future__ import annotations

from headgate.jobs import NewJob
from headgate.schedules.planning import table_of
from headgate.stores.protocol import Ticking
from tests.schedules.desk import START, Desk, spec


def test_the_same_again_changes_nothing(desk: Desk) -> None:
    desk.declare(spec(when="*/10 * * * *"))
    desk.tick()
    before = desk.store.schedule("tidy")
    desk.rig.clock.advance(30)
    desk.declare(spec(when="*/10 * * * *"))
    assert desk.store.schedule("tidy") == before


def test_another_time_is_planned_anew(desk: Desk) -> None:
    desk.declare(spec(when="*/10 * * * *"))
    desk.tick()
    desk.rig.clock.advance(30)
    seen = desk.store.schedule("tidy")
    desk.declare(spec(when="*/15 * * * *"))
    assert seen is not None
    # Who worked out the old one does not tick it any more.
    late = Ticking("tidy", seen.digest, seen.next_at, None)
    assert desk.store.tick([late]) == []
    desk.tick()
    found = desk.store.schedule("tidy")
    assert found is not None
    assert found.next_at == table_of(found.spec).after(START + 30)


def test_another_job_keeps_the_tick_that_is_due(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.rig.clock.advance(60)
    desk.declare(spec(job=NewJob("task", args='{"n":2}')))
    desk.tick()
    assert desk.outcomes() == [(60, "run")]
    record = desk.store.job(desk.ticks()[0].job or "")
    assert record is not None
    assert record.args == '{"n":2}'


def test_the_higher_release_wins(desk: Desk) -> None:
    desk.declare(spec(when="0 1 * * *"), declarer="new", release="1.10")
    desk.declare(spec(when="0 2 * * *"), declarer="old", release="1.9")
    found = desk.store.schedule("tidy")
    assert found is not None
    assert found.spec.when == "0 1 * * *"
    assert found.declarers == ("new", "old")


def test_what_its_only_declarer_leaves_out_is_gone(desk: Desk) -> None:
    desk.declare(spec("a"), spec("b"))
    desk.declare(spec("c"), declarer="other")
    desk.declare(spec("b"), spec("renamed"))
    assert [found.spec.name for found in desk.store.schedules()] == ["b", "c", "renamed"]
    assert [event.subject for event in desk.store.events("schedule_forgotten")] == ["a"]


def test_of_a_program_that_is_gone_it_is_forgotten_in_time(desk: Desk) -> None:
    hand = desk.rig.hand("app")
    desk.declare(spec(), declarer="app")
    desk.rig.clock.advance(400)
    desk.store.sweep()
    assert desk.store.schedule("tidy") is not None  # its declarer is there
    hand.leave()
    desk.rig.hands.remove(hand)
    sweep_for(desk, 200)
    found = desk.store.schedule("tidy")
    assert found is not None  # it may come back
    assert found.orphaned
    sweep_for(desk, 200)
    assert desk.store.schedule("tidy") is None


def test_who_knows_the_task_and_does_not_declare_it_speeds_that_up(desk: Desk) -> None:
    old = desk.rig.hand("old")
    desk.declare(spec("before"), declarer="old")
    new = desk.rig.hand("new")
    desk.declare(spec("after"), declarer="new")
    assert new.id != old.id
    old.leave()
    desk.rig.hands.remove(old)
    sweep_for(desk, 60)
    assert [found.spec.name for found in desk.store.schedules()] == ["after"]


def test_a_restart_keeps_it(desk: Desk) -> None:
    hand = desk.rig.hand("app")
    desk.declare(spec(), declarer="app")
    desk.tick()
    hand.die()
    desk.rig.hands.remove(hand)
    sweep_for(desk, 20)
    desk.rig.hand("app")
    desk.declare(spec(), declarer="app")
    sweep_for(desk, 600)
    found = desk.store.schedule("tidy")
    assert found is not None
    assert not found.orphaned
    assert found.since == START


def sweep_for(desk: Desk, seconds: float) -> None:
    for _ in range(int(seconds / 10)):
        desk.rig.clock.advance(10)
        desk.store.sweep()
