"""Schedules: what runs by the clock, when next, and what became of the last ticks."""

from __future__ import annotations

from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from headgate.errors import HeadgateError, ScheduleNotFound
from headgate.schedules.template import task_of, to_job
from headgate.stores.protocol import ScheduleRecord, ScheduleSpec
from headgate.web import asked
from headgate.web.site import Site, back_to, by, form_of, site_of

LATE = 60.0
NEXT = 5
TICKS = 50


def schedules(request: Request) -> Response:
    site = site_of(request)
    now = site.store.now()
    found = site.store.schedules()
    return site.page(
        request,
        "schedules.html",
        now=now,
        schedules=found,
        tasks={one.spec.name: task_of(one.spec.job) for one in found},
        states={one.spec.name: state_of(one, now) for one in found},
    )


def schedule(request: Request) -> Response:
    site = site_of(request)
    found = _find(site, asked.required(asked.query(request), "name"))
    now = site.store.now()
    times, trouble = _next(found.spec, now)
    return site.page(
        request,
        "schedule.html",
        now=now,
        schedule=found,
        task=task_of(found.spec.job),
        state=state_of(found, now),
        next=times,
        trouble=trouble,
        ticks=site.store.ticks(found.spec.name, TICKS),
    )


def pause(request: Request) -> Response:
    site, form = site_of(request), form_of(request)
    name = _find(site, asked.required(form, "name")).spec.name
    paused = asked.required(form, "action") == "pause"
    site.store.pause_schedule(name, paused, by=by(request), reason=asked.text(form, "reason"))
    return back_to(request, "/schedules/show", name=name, done="pause" if paused else "resume")


def run(request: Request) -> Response:
    site, form = site_of(request), form_of(request)
    found = _find(site, asked.required(form, "name"))
    name = found.spec.name
    job = to_job(found.spec.job, name, site.store.now(), None)
    tick = site.store.run_now(name, job, by=by(request))
    done = "run" if tick.outcome == "run" else None
    return back_to(request, "/schedules/show", name=name, done=done)


def state_of(found: ScheduleRecord, now: float) -> str:
    if found.paused:
        return "paused"
    if found.orphaned:
        return "orphaned"
    if found.planned and found.next_at is None:
        return "ended"
    due = found.next_at if found.planned else found.since
    return "late" if due is not None and due < now - LATE else "active"


def _find(site: Site, name: str) -> ScheduleRecord:
    found = site.store.schedule(name)
    if found is None:
        raise ScheduleNotFound(f"no schedule {name[:80]!r}: no worker has declared it")
    return found


def _next(spec: ScheduleSpec, now: float) -> tuple[list[tuple[float, str]], str]:
    """The next ticks, in the schedule's own zone."""
    from headgate.schedules.planning import table_of
    from headgate.schedules.timetable import find_zone

    try:
        table, zone = table_of(spec), find_zone(spec.timezone)
        found: list[tuple[float, str]] = []
        at: float | None = now
        for _ in range(NEXT):
            at = table.after(at)
            if at is None:
                break
            found.append((at, datetime.fromtimestamp(at, zone).strftime("%a %Y-%m-%d %H:%M:%S %Z")))
    except (HeadgateError, ImportError) as error:
        # The words of a schedule may need what is not installed beside this dashboard.
        return [], str(error)
    return found, ""
