"""A valid run is clean; one fault of any kind put into it is found."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schedules import LIMITS, Run, runs, value_of

from headgate.checker import Job, Line, check

several = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ended_well(run: Run) -> list[Line]:
    return [line for line in run.lines if line.ev == "end" and line.ok]


def start_of(run: Run, end: Line) -> Line:
    return next(li for li in run.lines if li.ev == "start" and li.token == end.token)


@several
@given(runs())
def test_a_valid_run_is_clean(run: Run) -> None:
    report = check(run.lines, **run.told())
    assert report.ok, report.text()
    assert report.explained == len(run.kills)
    assert report.slack_mattered == 0
    for name, usage in report.usage.items():
        if LIMITS[name] is not None:
            assert usage.peak <= (LIMITS[name] or 0)


@several
@given(runs())
def test_a_greedy_engine_uses_every_limit_fully(run: Run) -> None:
    # Retried jobs stand outside the measure, so only runs without them are fully used.
    assume(not run.kills and all(line.ok is not False for line in run.lines))
    report = check(run.lines, **run.told())
    for usage in report.usage.values():
        assert usage.ratio is None or usage.ratio > 0.999, report.text()


@several
@given(runs(), st.data())
def test_one_unit_too_many_is_found(run: Run, data: st.DataObject) -> None:
    within = [
        (end, group)
        for end in ended_well(run)
        for group in start_of(run, end).groups
        if value_of(group) is not None and end.t > start_of(run, end).t
    ]
    assume(within)
    end, group = data.draw(st.sampled_from(within))
    begin = start_of(run, end)
    middle = (begin.t + end.t) / 2
    assume(begin.t < middle < end.t)
    for n in range(value_of(group) or 0):
        extra = msgspec.structs.replace(
            begin, job=f"extra-{n}", token=10_000 + n, t=middle, groups={group: 1}
        )
        run.lines += [extra, msgspec.structs.replace(extra, ev="end", t=end.t + 1, ok=True)]
        run.jobs.append(Job(extra.job))
    report = check(run.lines, **run.told())
    assert not report.ok
    assert any(over.group == group and over.t == middle for over in report.over), report.text()


@several
@given(runs(), st.data())
def test_a_lost_job_is_found(run: Run, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(run.jobs))
    run.lines = [line for line in run.lines if line.job != gone.job]
    report = check(run.lines, **run.told())
    assert [lost.job for lost in report.lost] == [gone.job]


@several
@given(runs(), st.data())
def test_a_job_running_twice_at_once_is_found(run: Run, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(ended_well(run)))
    begin = start_of(run, end)
    assume(begin.t < (begin.t + end.t) / 2 < end.t)
    second = msgspec.structs.replace(begin, token=10_000, t=(begin.t + end.t) / 2, groups={}, pid=1)
    run.lines += [second, msgspec.structs.replace(second, ev="end", t=end.t + 1, ok=True)]
    report = check(run.lines, **run.told())
    assert [doubled.job for doubled in report.doubled] == [end.job], report.text()


@several
@given(runs(), st.data())
def test_a_job_run_again_after_it_ended_well_is_found(run: Run, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(ended_well(run)))
    again = msgspec.structs.replace(start_of(run, end), token=10_000, t=end.t + 1, groups={}, pid=1)
    run.lines += [again, msgspec.structs.replace(again, ev="end", t=end.t + 2, ok=True)]
    report = check(run.lines, **run.told())
    assert [doubled.job for doubled in report.doubled] == [end.job], report.text()


@several
@given(runs(), st.data())
def test_a_token_that_does_not_grow_is_found(run: Run, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(ended_well(run)))
    first = start_of(run, end)
    bad = msgspec.structs.replace(first, token=10_000, t=-2.0, groups={})
    run.lines += [bad, msgspec.structs.replace(bad, ev="end", t=-1.0, ok=False)]
    report = check(run.lines, **run.told())
    assert (end.job, 10_000) in {(fault.job, fault.earlier) for fault in report.tokens}
    assert not report.ok


@several
@given(runs(), st.data())
def test_an_end_that_nothing_explains_is_found(run: Run, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(ended_well(run)))
    run.lines.remove(end)
    report = check(run.lines, **run.told())
    assert any(f"token {end.token}" in text for text in report.broken), report.text()
    assert end.job in {lost.job for lost in report.lost}


@several
@given(runs())
def test_a_job_nobody_submitted_is_found(run: Run) -> None:
    ghost = run.jobs.pop()
    report = check(run.lines, **run.told())
    assert any(ghost.job in text for text in report.broken)
