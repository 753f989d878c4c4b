"""On every store: what operators do to schedules, and what they are shown."""

from __future__ import annotations

import pytest

from headgate.errors import ScheduleNotFound
from headgate.jobs import CapUse, NewJob, Retention
from headgate.schedules import template
from tests.schedules.desk import START, Desk, planned, run_all, spec


def test_pause_and_resume(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.store.pause_schedule("tidy", True, by="operator", reason="moving house")
    desk.wait(600)
    found = desk.store.schedule("tidy")
    assert found is not None
    assert (found.paused, found.paused_by, found.reason) == (True, "operator", "moving house")
    assert desk.outcomes() == []
    desk.store.pause_schedule("tidy", False, by="operator")
    desk.tick()
    assert desk.outcomes() == []  # what was due meanwhile was not wanted
    desk.wait(60)
    assert desk.outcomes() == [(660, "run")]
    assert {e.kind for e in desk.store.events(subject="tidy")} >= {
        "schedule_paused",
        "schedule_resumed",
    }


def test_a_pause_between_look_and_tick_counts(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.rig.clock.advance(60)
    late = planned(desk)
    desk.store.pause_schedule("tidy", True)
    assert desk.store.tick([late]) == []
    assert desk.jobs() == 0


def test_run_now_is_beside_the_clock(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.rig.clock.advance(5)
    found = desk.store.schedule("tidy")
    assert found is not None

    def job() -> NewJob:
        return template.to_job(found.spec.job, "tidy", desk.store.now(), None)

    first = desk.store.run_now("tidy", job(), by="operator")
    assert (first.outcome, first.by, first.at) == ("run", "operator", START + 5)
    desk.rig.clock.advance(1)
    assert desk.store.run_now("tidy", job()).outcome == "merged"
    after = desk.store.schedule("tidy")
    assert after is not None
    assert after.next_at == found.next_at
    desk.wait(54)
    assert desk.outcomes()[-1] == (60, "merged")
    assert desk.jobs() == 1
    with pytest.raises(ScheduleNotFound, match="no schedule 'other'"):
        desk.store.run_now("other", job())
    with pytest.raises(ScheduleNotFound, match="no schedule 'other'"):
        desk.store.pause_schedule("other", True)


def test_what_nobody_ticks_looks_wrong(desk: Desk) -> None:
    desk.declare(spec("a"), spec("b", when="0 0 1 1 *"), spec("c"))
    desk.tick()
    desk.store.pause_schedule("c", True)
    desk.rig.clock.advance(150)
    late = [found.detail for found in desk.store.oddities() if found.what == "late-schedule"]
    assert len(late) == 1
    assert late[0].startswith("schedule a is due since 90 s")


def test_a_cap_may_refuse_a_tick(desk: Desk) -> None:
    job = NewJob("task", caps=(CapUse("task", max_total=1),))
    desk.declare(spec(job=job, pile_up=True))
    desk.tick()
    desk.wait(60)
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "refused")]
    assert desk.jobs() == 1
    run_all(desk.rig)
    desk.wait(60)
    assert desk.outcomes()[-1] == (180, "run")


def test_ticks_are_pruned_like_the_runs(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    run_all(desk.rig)
    desk.wait(60)
    desk.rig.clock.advance(950)
    desk.store.prune(Retention(succeeded=1000))
    assert desk.outcomes() == [(120, "run")]
