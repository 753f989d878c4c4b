"""On every store: each tick once, together with its job; merged, skipped, missed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from headgate.jobs import JobFilter, NewJob
from headgate.schedules import template
from headgate.stores.protocol import Tick, Ticking
from tests.conformance.conftest import need
from tests.schedules.desk import START, Desk, planned, run_all, spec


def test_each_tick_becomes_one_job_that_knows_it(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    told = []
    for _ in range(3):
        desk.wait(60)
        told += run_all(desk.rig)
    assert desk.outcomes() == [(60, "run"), (120, "run"), (180, "run")]
    assert [(t["schedule"], t["tick"]) for t in told] == [
        ("tidy", START + 60 * n) for n in (1, 2, 3)
    ]
    assert desk.jobs() == 3
    found = desk.store.schedule("tidy")
    assert found is not None
    assert (found.next_at, found.last_at, found.last_run_at) == (
        START + 240,
        START + 180,
        START + 180,
    )
    assert found.last_job == desk.ticks()[-1].job


def test_all_of_the_declaration_reaches_the_job(desk: Desk) -> None:
    desk.rig.declare(api=1)
    job = NewJob("task", args='{"n":7}', queue="slow", priority=-3, needs=need("api"), max_lost=9)
    desk.declare(spec(job=replace(job, options='{"retries":4}')))
    desk.tick()
    desk.wait(60)
    record = desk.store.job(desk.ticks()[0].job or "")
    assert record is not None
    assert (record.queue, record.priority, record.args) == ("slow", -3, '{"n":7}')
    assert record.needs == need("api")
    assert json.loads(record.options)["retries"] == 4


def test_what_was_ticked_by_another_is_not_ticked_again(desk: Desk) -> None:
    """Two who saw the same: the second changes nothing, however late it comes."""
    desk.declare(spec())
    desk.tick()
    desk.rig.clock.advance(60)
    ours, late = planned(desk), planned(desk)
    assert [tick.outcome for tick in desk.store.tick([ours])] == ["run"]
    assert desk.store.tick([late]) == []
    desk.wait(60)
    before = desk.store.schedule("tidy")
    assert desk.store.tick([late]) == []
    assert desk.store.schedule("tidy") == before  # nor does it set the clock back
    assert desk.outcomes() == [(60, "run"), (120, "merged")]
    assert desk.jobs() == 1


def test_who_saw_the_job_of_before_does_not_submit_it(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.rig.clock.advance(60)
    late = planned(desk)
    desk.declare(spec(job=NewJob("task", args='{"n":2}')))
    assert desk.store.tick([late]) == []
    assert desk.jobs() == 0
    assert [tick.outcome for tick in desk.store.tick([planned(desk)])] == ["run"]


def test_a_clock_that_was_set_back_ticks_nothing_twice(desk: Desk) -> None:
    desk.declare(spec(pile_up=True))
    desk.tick()
    desk.wait(60)
    found = desk.store.schedule("tidy")
    assert found is not None
    again = template.to_job(found.spec.job, "tidy", START + 60, None)
    ticking = Ticking(
        "tidy", found.digest, found.next_at, found.next_at, (Tick(START + 60, again),)
    )
    assert desk.store.tick([ticking]) == []
    assert desk.jobs() == 1


def test_a_tick_that_finds_a_waiting_run_is_merged_into_it(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    for _ in range(3):
        desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "merged"), (180, "merged")]
    assert len({tick.job for tick in desk.ticks()}) == 1
    assert desk.jobs() == 1


def test_a_running_run_does_not_take_a_tick(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    hand.claim()
    desk.wait(60)  # the first runs: this one waits for it, where a limit says so
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "run"), (180, "merged")]
    hand.end_all()


def test_a_run_that_waits_for_its_retry_takes_it(desk: Desk) -> None:
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    (claimed,) = hand.claim()
    hand.end(claimed, "retry", delay=1000)
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "merged")]


def test_a_run_that_waits_for_its_retry_takes_none_that_is_in_line(desk: Desk) -> None:
    """That one can start now, and is not put off until the retry is due."""
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    (claimed,) = hand.claim()
    desk.wait(60)
    hand.end(claimed, "retry", delay=1000)
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "run"), (180, "merged")]
    first, second, third = desk.ticks()
    assert second.job == third.job != first.job
    record = desk.store.job(second.job or "")
    assert record is not None
    assert record.state == "ready"
    # When the retry is due both are in line, and the older one stands for all.
    desk.wait(1000)
    assert {tick.job for tick in desk.ticks() if tick.job} == {claimed.job}
    assert desk.store.count(JobFilter(states=frozenset(["ready", "scheduled"]))) == 1


@pytest.mark.parametrize("how", ["interrupted", "lost", "returned"])
def test_a_run_that_comes_back_takes_over_the_one_that_waits(desk: Desk, how: str) -> None:
    desk.declare(spec())
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    (begun,) = hand.claim()
    desk.wait(60)
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "run"), (180, "merged")]
    waiting = desk.ticks()[1].job or ""
    if how == "lost":
        hand.leave()
    else:
        hand.end(begun, how)
    assert desk.outcomes() == [(60, "run"), (120, "merged"), (180, "merged")]
    assert {tick.job for tick in desk.ticks()} == {begun.job}
    record = desk.store.job(waiting)
    assert record is not None
    assert (record.state, record.reason) == ("cancelled", f"merged into {begun.job}")
    schedule = desk.store.schedule("tidy")
    assert schedule is not None
    assert schedule.last_job == begun.job
    desk.wait(60)
    assert desk.outcomes()[-1] == (240, "merged")
    assert [claimed.job for claimed in desk.rig.hand("next").claim()] == [begun.job]


def test_runs_that_pile_up_stay_when_one_comes_back(desk: Desk) -> None:
    desk.declare(spec(pile_up=True))
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    (begun,) = hand.claim()
    desk.wait(60)
    hand.end(begun, "interrupted")
    assert len(hand.claim()) == 2


def test_pile_up_keeps_all(desk: Desk) -> None:
    desk.declare(spec(pile_up=True))
    desk.tick()
    for _ in range(3):
        desk.wait(60)
    assert [outcome for _, outcome in desk.outcomes()] == ["run"] * 3
    assert desk.jobs() == 3


def test_skip_if_running(desk: Desk) -> None:
    desk.declare(spec(skip_if_running=True))
    desk.tick()
    desk.wait(60)
    hand = desk.rig.hand()
    hand.claim()
    desk.wait(60)
    hand.end_all()
    desk.wait(60)
    assert desk.outcomes() == [(60, "run"), (120, "skipped"), (180, "run")]
    assert desk.ticks()[1].job == desk.ticks()[0].job


@pytest.mark.parametrize(
    ("missed", "window", "expected", "jobs"),
    [
        ("skip", 86400, [(60, "missed")], 0),
        ("one", 86400, [(60, "missed"), (3480, "run")], 1),
        ("one", 60, [(60, "missed")], 0),
        ("all", 600, [(60, "missed"), *((3000 + 60 * n, "run") for n in range(9))], 9),
    ],
)
def test_what_nobody_was_there_to_tick(
    desk: Desk, missed: str, window: float, expected: list[tuple[float, str]], jobs: int
) -> None:
    desk.declare(spec(missed=missed, missed_window=window, pile_up=True, end=START + 3540.0 - 30))
    desk.tick()
    desk.wait(3600)  # its last tick is 120 s late by then
    assert desk.outcomes() == expected
    assert desk.jobs() == jobs
    first = desk.ticks()[0]
    assert first.count == 58 - jobs
    assert first.through == START + 60 * (58 - jobs)
    (event,) = desk.store.events("schedule_missed")
    assert event.data["count"] == 58 - jobs


def test_a_little_late_is_not_missed(desk: Desk) -> None:
    desk.declare(spec(when="* * * * * */10", pile_up=True))
    desk.tick()
    desk.wait(60)
    assert desk.outcomes() == [(10 * n, "run") for n in range(1, 7)]


def test_years_later(desk: Desk) -> None:
    """Every second for three years: not one by one."""
    desk.declare(spec(when="* * * * * *", missed="one", missed_window=30))
    desk.tick()
    desk.wait(3 * 365 * 86400.0)
    assert [outcome for _, outcome in desk.outcomes()] == ["missed", "run", *["merged"] * 60]
    assert desk.ticks()[0].count == 1000  # counted so far


def test_jitter_puts_the_run_off_and_not_the_tick(desk: Desk) -> None:
    desk.declare(spec(jitter=30.0))
    desk.tick()
    desk.wait(60)
    assert desk.outcomes() == [(60, "run")]
    record = desk.store.job(desk.ticks()[0].job or "")
    assert record is not None
    assert record.state == "scheduled"
    assert record.run_at is not None
    assert START + 60 < record.run_at < START + 90


def test_a_schedule_that_ends(desk: Desk) -> None:
    desk.declare(spec(end=START + 120))
    desk.tick()
    desk.wait(60)
    run_all(desk.rig)
    desk.wait(60)
    desk.wait(600)
    assert desk.outcomes() == [(60, "run"), (120, "run")]
    found = desk.store.schedule("tidy")
    assert found is not None
    assert found.planned
    assert found.next_at is None


# --- the clocks are changed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2027-03-28", 23),
        ("Europe/Berlin", "2027-10-31", 25),
        ("America/New_York", "2027-03-14", 23),
        ("America/New_York", "2027-11-07", 25),
    ],
)
def test_a_day_on_which_the_clocks_are_changed(desk: Desk, zone: str, day: str, hours: int) -> None:
    """Ticked as it passes, half an hour at a time: the nightly one runs once, that of every half
    hour as often as there are half hours."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()
    desk.rig.clock.advance(midnight - 1 - START)
    desk.declare(
        spec("nightly", "30 1,2 * * *", timezone=zone, pile_up=True),
        spec("often", "*/30 * * * *", timezone=zone, pile_up=True),
    )
    desk.tick()
    desk.wait(1)
    for _ in range(hours * 2 - 1):
        desk.wait(1800)
    assert [outcome for _, outcome in desk.outcomes("often")] == ["run"] * (hours * 2)
    nightly = [datetime.fromtimestamp(t.at, ZoneInfo(zone)) for t in desk.ticks("nightly")]
    expected = [(1, 30), (3, 0) if hours == 23 else (2, 30)]
    assert [(moment.hour, moment.minute) for moment in nightly] == expected
    assert len({moment.timestamp() for moment in nightly}) == 2
    assert desk.jobs() == hours * 2 + 2
