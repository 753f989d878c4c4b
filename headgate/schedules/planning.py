"""Which ticks of a schedule are due, and which were missed: pure, from what stands."""

from __future__ import annotations

from headgate.schedules import template
from headgate.schedules.timetable import Timetable
from headgate.stores.protocol import ScheduleRecord, ScheduleSpec, Tick, Ticking

PROMPT = 2.0
"""Seconds in which a tick is recorded where somebody is there to tick: no schedule is stricter."""
AT_ONCE = 100
"""Ticks of one schedule in one transaction."""
COUNTED = 1000
"""So many missed ticks are counted; there may be more."""


def table_of(spec: ScheduleSpec) -> Timetable:
    """The timetable of a schedule as the store tells it; `InvalidSchedule` if it cannot be read."""
    return Timetable(
        spec.when,
        spec.name,
        timezone=spec.timezone,
        start=spec.start,
        end=spec.end,
        jitter=spec.jitter,
    )


def plan(record: ScheduleRecord, table: Timetable, now: float) -> Ticking:
    """What is to be done with a schedule that is due at `now`."""
    spec = record.spec
    if not record.planned or record.next_at is None:
        return Ticking(spec.name, record.digest, None, table.after(record.since))
    ticks: list[Tick] = []
    at: float | None = record.next_at
    while at is not None and at <= now and len(ticks) < AT_ONCE:
        if now - at <= _patience(spec):
            # Asked for each that was missed: none of those may be merged into another.
            keep = spec.missed == "all" and now - at > PROMPT
            ticks.append(_due(spec, table, at, keep=keep))
            at = table.after(at)
        else:
            missed, at = _missed(spec, table, at, now)
            ticks += missed
    return Ticking(spec.name, record.digest, record.next_at, at, tuple(ticks))


def _patience(spec: ScheduleSpec) -> float:
    """How late a tick may be and still runs, whatever else is due."""
    late = max(PROMPT, spec.late)
    return max(late, spec.missed_window) if spec.missed == "all" else late


def _due(spec: ScheduleSpec, table: Timetable, at: float, *, keep: bool = False) -> Tick:
    run_at = at + table.spread(at) if spec.jitter else None
    return Tick(at, template.to_job(spec.job, spec.name, at, run_at), keep=keep)


def _missed(
    spec: ScheduleSpec, table: Timetable, first: float, now: float
) -> tuple[list[Tick], float | None]:
    """All that is too late from `first` on, and the next after it."""
    horizon = now - _patience(spec)
    # Just before the horizon: what is exactly so late is still on time.
    end = _latest(table, first, horizon)
    following = table.after(end)
    makes_up = (
        spec.missed == "one"
        and now - end <= spec.missed_window
        and (following is None or following > now)  # else that one stands for those before it
    )
    if not makes_up:
        return [_stretch(table, first, end)], following
    made = [_due(spec, table, end)]
    if end > first:
        before = _latest(table, first, end)
        made.insert(0, _stretch(table, first, before))
    return made, following


def _stretch(table: Timetable, first: float, end: float) -> Tick:
    count = 1
    for _ in table.between(first, end):
        count += 1
        if count == COUNTED:
            break
    return Tick(first, through=end, count=count)


def _latest(table: Timetable, first: float, before: float) -> float:
    """The last tick before that moment, from `first` on, which is one. In steps that grow: from
    years ago there may be millions."""
    back = 60.0
    while before - back > first:
        found = table.after(before - back)
        if found is not None and found < before:
            return _walk(table, found, before)
        back *= 20.0
    return _walk(table, first, before)


def _walk(table: Timetable, found: float, before: float) -> float:
    while (following := table.after(found)) is not None and following < before:
        found = following
    return found
