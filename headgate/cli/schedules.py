"""`headgate schedules`: what runs by the clock, when next, and what became of the last ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.frame import Frame, Verb, me, pass_frame
from headgate.cli.pausing import add_pausing

if TYPE_CHECKING:
    from headgate.stores.protocol import ScheduleRecord, ScheduleSpec, Store

SHOWN = 10
LATE = 60.0
"""Seconds after which a tick that nobody has recorded says that nobody ticks."""


@click.group()
def schedules() -> None:
    """What runs by the clock: list, pause, resume, run now."""


@schedules.command("ls", cls=Verb)
@pass_frame
def list_schedules(frame: Frame) -> None:
    """All schedules, with their next tick and their last run.

    \b
    headgate schedules ls
    """
    from headgate.cli import show

    store = frame.store()
    found, now = store.schedules(), store.now()
    if frame.as_json:
        frame.print_json({"schedules": [_data(one, now) for one in found]})
        return
    if not found:
        show.note("no worker has declared a schedule yet")
        return
    rows = [
        (
            one.spec.name,
            one.spec.when,
            one.spec.timezone,
            _task(one.spec),
            show.short(frame, next_of(one), now) or "-",
            show.short(frame, one.last_run_at, now) or "-",
            _state(one, now),
        )
        for one in found
    ]
    show.table(frame, ["schedule", "when", "zone", "task", "next", "last run", "state"], rows)


@schedules.command("show", cls=Verb)
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=SHOWN, show_default=True,
    help="So many of its last ticks.",
)  # fmt: skip
@pass_frame
def show_schedule(frame: Frame, name: str, limit: int) -> None:
    """One schedule: what it says, how it stands, and its last ticks.

    \b
    headgate schedules show nightly --limit 20
    """
    from headgate.cli import data, show

    store = frame.store()
    found = _find(store, name)
    ticks = store.ticks(name, limit)
    if frame.as_json:
        told = [data.tick(tick) for tick in ticks]
        frame.print_json({**_data(found, store.now()), "ticks": told})
        return
    spec, now = found.spec, store.now()
    show.fields(
        frame,
        [
            ("schedule", spec.name),
            ("when", spec.when),
            ("zone", spec.timezone),
            ("task", _task(spec)),
            ("state", _state(found, now)),
            ("next", show.when(next_of(found), now)),
            ("last tick", show.when(found.last_at, now)),
            ("last run", show.when(found.last_run_at, now)),
            ("job", found.last_job),
            ("starts", data.moment(spec.start)),
            ("ends", data.moment(spec.end)),
            ("jitter", f"{spec.jitter:g} s" if spec.jitter else ""),
            ("missed", _missed(spec)),
            ("waiting", "every tick adds a run" if spec.pile_up else "one run at most"),
            ("overlap", "left out while one runs" if spec.skip_if_running else "by its limits"),
            ("declared by", f"{', '.join(found.declarers)} ({spec.source})"),
        ],
    )
    if ticks:
        click.echo()
        rows = [
            (show.short(frame, t.at, now), t.outcome, t.job, t.count if t.count > 1 else "", t.by)
            for t in ticks
        ]
        show.table(frame, ["tick", "became", "id", "ticks>", "by"], rows)


@schedules.command("next", cls=Verb)
@click.argument("name", required=False)
@click.option(
    "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="So many."
)
@click.option("--when", metavar="TEXT", help="Try a schedule that nobody has declared.")
@click.option("--zone", metavar="ZONE", default="UTC", show_default=True, help="Of --when.")
@pass_frame
def next_ticks(frame: Frame, name: str | None, count: int, when: str | None, zone: str) -> None:
    """The next ticks of NAME, in its time zone; of all schedules without one.

    \b
    headgate schedules next nightly
    headgate schedules next nightly --when "H 2 * * *" --zone Europe/Berlin
    """
    from headgate.schedules.planning import table_of

    if when is not None:
        import time

        from headgate.schedules.schedule import Schedule

        named = name or "example"
        Schedule(when, zone).checked(named)
        from headgate.stores.protocol import ScheduleSpec

        specs, now = [ScheduleSpec(named, when, zone)], time.time()
    else:
        store = frame.store()
        found = store.schedules() if name is None else [_find(store, name)]
        specs, now = [one.spec for one in found if not one.paused or name is not None], store.now()
    rows: list[tuple[float, str, str]] = []
    for spec in specs:
        table, at = table_of(spec), now
        for _ in range(count):
            following = table.after(at)
            if following is None:
                break
            rows.append((following, _local(following, spec), spec.name))
            at = following
    rows = sorted(rows)[: count if name is None and when is None else None]
    _print_next(frame, rows, now)


def _print_next(frame: Frame, rows: Sequence[tuple[float, str, str]], now: float) -> None:
    from headgate.cli import show
    from headgate.why import age

    if frame.as_json:
        frame.print_json({"next": [{"schedule": name, "at": text} for _, text, name in rows]})
        return
    if not rows:
        show.note("nothing is due any more")
        return
    show.table(
        frame,
        ["at", "in>", "schedule"],
        [(text, age(max(0.0, at - now)), name) for at, text, name in rows],
    )


@schedules.command("run-now", cls=Verb)
@click.argument("name")
@pass_frame
def run_now(frame: Frame, name: str) -> None:
    """Submit a run of NAME at once, beside those of the clock.

    \b
    headgate schedules run-now nightly
    """
    from headgate.cli import data
    from headgate.schedules.template import to_job

    store = frame.store()
    found = _find(store, name)
    tick = store.run_now(name, to_job(found.spec.job, name, store.now(), None), by=me())
    if frame.as_json:
        frame.print_json(data.tick(tick))
    elif tick.outcome == "run":
        click.echo(f"job {tick.job} is submitted")
    elif tick.outcome == "merged":
        click.echo(f"job {tick.job} waits already: it stands for this one too")
    else:
        why = "a run is not over" if tick.outcome == "skipped" else "a cap of its task is full"
        click.echo(f"nothing was submitted: {why}" + (f" (job {tick.job})" if tick.job else ""))
    if tick.outcome in ("skipped", "refused"):
        raise click.exceptions.Exit(5)


# --- what they share -----------------------------------------------------------------------------


def _find(store: Store, name: str) -> ScheduleRecord:
    from headgate.errors import ScheduleNotFound

    found = store.schedule(name)
    if found is None:
        if any(spec.name == name for spec in store.tasks()):
            raise ScheduleNotFound(
                f"{name!r} has no schedule: it runs when somebody submits it, as headgate submit"
                f" {name} does"
            )
        raise ScheduleNotFound(f"no schedule {name!r}; see headgate schedules ls")
    return found


def _set(frame: Frame, name: str, paused: bool, reason: str) -> None:
    store = frame.store()
    store.pause_schedule(name, paused, by=me(), reason=reason)
    if frame.as_json:
        frame.print_json(_data(_find(store, name), store.now()))
    else:
        click.echo(f"schedule {name} is {'paused' if paused else 'resumed'}")


add_pausing(
    schedules,
    "name",
    _set,
    pause="""Submit nothing for NAME until it is resumed; what runs or waits goes on.

    \b
    headgate schedules pause nightly --reason "the warehouse moves"
    """,
    resume="""Go on with NAME from now; what was due meanwhile is not made up for.

    \b
    headgate schedules resume nightly
    """,
)


def _task(spec: ScheduleSpec) -> str:
    from headgate.schedules.template import task_of

    return task_of(spec.job)


def _state(found: ScheduleRecord, now: float) -> str:
    if found.paused:
        by = f" by {found.paused_by}" if found.paused_by else ""
        return f"paused{by}" + (f": {found.reason}" if found.reason else "")
    if found.orphaned:
        return "orphaned: no worker declares it"
    if found.planned and found.next_at is None:
        return "ended"
    due = found.next_at if found.planned else found.since
    if due is not None and due < now - LATE:
        return "late: is a worker there?"
    return "active"


def next_of(found: ScheduleRecord) -> float | None:
    """What it will submit next: while it is paused, nothing."""
    return None if found.paused else found.next_at


def _missed(spec: ScheduleSpec) -> str:
    late = f"; up to {spec.late:g} s late is on time" if spec.late else ""
    if spec.missed == "skip":
        return f"left out{late}"
    what = "made up for once" if spec.missed == "one" else "all made up for"
    return f"{what}, if within {spec.missed_window:g} s{late}"


def _local(at: float, spec: ScheduleSpec) -> str:
    from datetime import datetime

    from headgate.schedules.zones import find_zone

    return datetime.fromtimestamp(at, find_zone(spec.timezone)).isoformat()


def _data(found: ScheduleRecord, now: float) -> dict[str, Any]:
    from headgate.cli import data

    state = _state(found, now).partition(":")[0].partition(" ")[0]
    return data.schedule(found, task=_task(found.spec), state=state)
