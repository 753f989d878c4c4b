"""`headgate jobs`: list, show, cancel, retry, and why a job waits. `output` has its own file."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headgate.cli import values
from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.cli.output import output

if TYPE_CHECKING:
    from headgate.jobs import AttemptRecord, JobFilter, JobRecord
    from headgate.stores.protocol import Store, Why

STATES = ("scheduled", "ready", "running", "succeeded", "failed", "cancelled")
MOST = 1_000_000


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say which jobs; the command gets them as `chosen`."""
    for option in (
        click.option("--until", metavar="2h|ISO", callback=values.since, help="Created before."),
        click.option(
            "--since",
            metavar="2h|ISO",
            callback=values.since,
            help="Created after: so long ago, or a time.",
        ),
        click.option("--group", metavar="GROUP", help="Needing this group, as in tenant/acme."),
        click.option("--queue", metavar="QUEUE", help="In this queue."),
        click.option("--task", metavar="TASK", help="Of this task."),
        click.option("--state", type=click.Choice(STATES), multiple=True, help="In this state."),
    ):
        command = option(command)
    return command


def make_filter(
    ids: tuple[str, ...] = (),
    state: tuple[str, ...] = (),
    task: str | None = None,
    queue: str | None = None,
    group: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> JobFilter:
    from headgate.jobs import STATES as known
    from headgate.jobs import JobFilter
    from headgate.limits import check_group

    return JobFilter(
        states=frozenset(s for s in known if s in state),
        task=task,
        queue=queue,
        group=None if group is None else check_group(group),
        since=since,
        until=until,
        ids=ids,
    )


@click.group()
def jobs() -> None:
    """List, show, cancel and retry jobs; why they wait; what their commands wrote."""


jobs.add_command(output)


@jobs.command("ls", cls=Verb)
@filters
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="At most."
)
@click.option("--after", metavar="ID|PLACE", help="Go on where the page before said.")
@pass_frame
def list_jobs(frame: Frame, limit: int, after: str | None, **chosen: Any) -> None:
    """Jobs, newest first.

    One listing looks at 5,000 jobs, or --limit if that is more; where that was not all it says
    so, and --after goes on. Where more are in the states asked for, they come state by state.

    \b
    headgate jobs ls --state failed --since 2h
    headgate jobs ls --group tenant/acme --json
    """
    from headgate.cli import data, show

    store = frame.store()
    found, more = _listed(store, make_filter(**chosen), limit, after)
    if frame.as_json:
        frame.print_json({"jobs": [data.job(job) for job in found], "after": more})
        return
    if not found:
        show.note("no such jobs" if more is None else _so_far("no", chosen, limit, more))
        return
    now = store.now()
    rows = [
        (
            job.id,
            job.task,
            _state(job),
            job.queue,
            job.attempt,
            show.short(frame, _latest(job), now),
        )
        for job in found
    ]
    show.table(frame, ["id", "task", "state", "queue", "tries>", "time"], rows)
    if more is not None:
        full, count = len(found) == limit, f"{len(found):,}"
        show.note(f"more: --after {more}" if full else _so_far(count, chosen, limit, more))


def _listed(
    store: Store, filter: JobFilter, limit: int, after: str | None
) -> tuple[list[JobRecord], str | None]:
    """The jobs, and where to go on. Who asks for more than one page looks at is given more pages,
    but no more than that needs where every job fits."""
    from headgate.stores.protocol import LOOKED_AT

    found: list[JobRecord] = []
    for _ in range(1 + (limit - 1) // LOOKED_AT):
        page = store.listing(filter, limit - len(found), after)
        found += page.jobs
        after = page.after
        if after is None or len(found) == limit:
            break
    return found, after


def _so_far(count: str, chosen: dict[str, Any], limit: int, more: str) -> str:
    from headgate.stores.protocol import LOOKED_AT

    looked = (1 + (limit - 1) // LOOKED_AT) * LOOKED_AT
    hint = "" if chosen["state"] else " (what waits is found at once with --state ready)"
    such = "such job" if count == "1" else "such jobs"
    return f"{count} {such} among the {looked:,} looked at; there may be more: --after {more}{hint}"


@jobs.command("show", cls=Verb)
@click.argument("id")
@pass_frame
def show_job(frame: Frame, id: str) -> None:
    """All about one job, with every attempt.

    \b
    headgate jobs show 0190c2a4-…
    """
    from headgate.cli import data, show
    from headgate.codec import visible
    from headgate.errors import JobNotFound

    store = frame.store()
    job = store.job(id)
    if job is None:
        raise JobNotFound(f"no job {id!r} in {store.url}: check the id; finished jobs are pruned")
    attempts = store.attempts(id)
    if frame.as_json:
        frame.print_json({**data.job(job), "attempts": [data.attempt(a) for a in attempts]})
        return
    now = store.now()
    names = {worker.id: worker.name for worker in store.workers()}
    show.fields(frame, _about(job, now, names))
    if attempts:
        click.echo()
        columns = ["try>", "outcome", "worker", "groups", "started", "took>", "error"]
        show.table(frame, columns, [_attempt(frame, a, now, names) for a in attempts])
    error = job.error
    if error is not None and error.traceback:
        click.echo()
        click.echo(visible(error.traceback.rstrip()))


@jobs.command("why", cls=Verb)
@click.argument("id")
@pass_frame
def why_job(frame: Frame, id: str) -> None:
    """Say what a job waits for, who holds it, its place in line, and when it may start.

    \b
    headgate jobs why 0190c2a4-…
    """
    from dataclasses import replace

    from headgate.cli import data, show
    from headgate.why import ask

    def closed_here(why: Why) -> Why:
        queue = frame.config.queues.get(why.job.queue)
        if queue is None or not queue.closed or why.job.state != "ready":
            return why
        # The store cannot know: each worker has this from its configuration.
        return replace(why, code="queue-closed", detail=str(frame.config.path))

    explained = ask(frame.store(), id, closed_here)
    if frame.as_json:
        frame.print_json(data.why(explained))
    else:
        show.paragraph(frame, explained.text)


@jobs.command("cancel", cls=Verb)
@click.argument("ids", nargs=-1)
@filters
@click.option("--reason", default="", help="Why: it is kept with the job.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_frame
def cancel(frame: Frame, ids: tuple[str, ...], reason: str, yes: bool, **chosen: Any) -> None:
    """Cancel jobs by their IDS, or all that the flags choose.

    Waiting jobs end at once; running ones are told, and end when their code does. In bulk,
    jobs that are already finished are left alone.

    \b
    headgate jobs cancel 0190c2a4-…
    headgate jobs cancel --task resize --since 2h
    """
    from headgate.cli.bulk import Action, act
    from headgate.cli.frame import me

    who = me()
    action = Action(
        "cancel", "cancelled", ("scheduled", "ready", "running"),
        lambda store, id: store.cancel(id, by=who, reason=reason),
    )  # fmt: skip
    act(frame, action, ids, chosen, yes)


@jobs.command("retry", cls=Verb)
@click.argument("ids", nargs=-1)
@filters
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_frame
def retry(frame: Frame, ids: tuple[str, ...], yes: bool, **chosen: Any) -> None:
    """Run jobs again: by their IDS, or all that the flags choose (failed ones unless said).

    \b
    headgate jobs retry 0190c2a4-…
    headgate jobs retry --state failed --task charge --since 2026-07-01
    """
    from headgate.cli.bulk import Action, act
    from headgate.cli.frame import me

    who = me()
    action = Action("retry", "sent back", ("failed",), lambda store, id: store.retry(id, by=who))
    act(frame, action, ids, chosen, yes)


def _state(job: JobRecord) -> str:
    told = f"{job.state} ({job.reason})" if job.reason else job.state
    return f"{told}, cancelling" if job.cancel_requested and not job.done else told


def _latest(job: JobRecord) -> float:
    return job.finished_at or job.started_at or job.ready_at or job.run_at or job.created_at


def _about(job: JobRecord, now: float, names: dict[str, str]) -> list[tuple[str, object]]:
    from headgate.cli.show import when

    needs = [_need(n.group, n.units) for n in job.needs.all]
    needs += [
        "one of " + " or ".join(_need(n.group, n.units) for n in members)
        for members in job.needs.one_of
    ]
    progress = "" if job.progress is None else f"{job.progress:.0%} {job.progress_text}".strip()
    error = job.error
    return [
        ("job", job.id),
        ("task", job.task),
        ("state", _state(job)),
        ("queue", job.queue),
        ("priority", str(job.priority) if job.priority else ""),
        ("turn", job.turn),
        ("arguments", _short(job.args)),
        ("needs", ", ".join(needs)),
        ("holds", ", ".join(job.groups)),
        ("worker", names.get(job.worker, job.worker) if job.worker else ""),
        ("progress", progress),
        ("created", when(job.created_at, now)),
        ("due", when(job.run_at, now)),
        ("expires", when(job.expires_at, now)),
        ("started", when(job.started_at, now)),
        ("finished", when(job.finished_at, now)),
        ("result", _short(job.result) if job.result is not None else ""),
        ("error", f"{error.type}: {error.message}" if error else ""),
        ("idempotency", job.idempotency_key),
        ("parent", job.parent),
    ]


def _attempt(
    frame: Frame, a: AttemptRecord, now: float, names: dict[str, str]
) -> tuple[object, ...]:
    from headgate.cli.show import short
    from headgate.why import age

    return (
        a.attempt,
        f"{a.outcome} ({a.reason})" if a.reason else a.outcome,
        names.get(a.worker, a.worker),
        ", ".join(a.groups),
        short(frame, a.started_at, now),
        age((a.ended_at or now) - a.started_at),
        f"{a.error.type}: {a.error.message}".splitlines()[0][:120] if a.error else "",
    )


def _need(group: str, units: int) -> str:
    return group if units == 1 else f"{units} units of {group}"


def _short(text: str, most: int = 2000) -> str:
    shown = json.dumps(json.loads(text), ensure_ascii=False) if len(text) <= most else text[:most]
    return shown if len(text) <= most else f"{shown}… ({len(text):,} characters; --json has all)"
