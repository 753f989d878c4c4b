"""Jobs: search, one job, and what is done to one or to many."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from headgate.commands import output as outputs
from headgate.errors import DeclarationError, JobNotFound, StoreError
from headgate.jobs import STATES, AttemptRecord, JobRecord
from headgate.stores.protocol import OutputRecord
from headgate.web import asked, charts
from headgate.web.bulk import VERBS, Order, Verb
from headgate.web.charts import Stretch
from headgate.web.site import NotThere, Site, back_to, by, form_of, site_of
from headgate.why import age, ask

PAGE = 50
OUTPUT = 100_000
"""Bytes of a command's output that its job's page shows: the last ones."""
PIECES = 4
"""Looked at first, from the end: large ones are four times as much as is shown, and on a bucket
each of them is a request. Small ones are looked for in larger numbers."""
MOST_PIECES = 1024
ATTEMPTS = 50


def jobs(request: Request) -> Response:
    site = site_of(request)
    cells = asked.query(request)
    filter = asked.job_filter(cells)
    page = site.store.browse(filter, PAGE, cells.get("after") or None)
    chosen = {name: cells[name] for name in asked.FILTER if cells.get(name)}
    return site.page(
        request,
        "jobs.html",
        now=site.store.now(),
        jobs=page.jobs,
        after=page.after,
        paged="after" in cells,
        chosen=chosen,
        states=STATES,
        verbs=VERBS,
        tasks=sorted({spec.name for spec in site.store.tasks()})[:500],
    )


def job(request: Request) -> Response:
    site = site_of(request)
    id = request.path_params["id"]
    record = _find(site, id)
    attempts = site.store.attempts(id)
    explained = ask(site.store, id)
    now = site.store.now()
    text, cut, place = _output(site, id)
    return site.page(
        request,
        "job.html",
        now=now,
        job=record,
        args=site.redactor.shown(record.task, record.args),
        options=site.redactor.shown(record.task, record.options),
        result=site.redactor.shown(record.task, record.result),
        attempts=attempts[-ATTEMPTS:],
        names={worker.id: worker.name for worker in site.sampler.latest().workers},
        line=charts.timeline(_line(record, attempts[-ATTEMPTS:], now), "Waits and attempts"),
        why=explained,
        output=text,
        output_cut=cut,
        output_after=place,
        events=site.store.past_events(subject=id, limit=20),
    )


def _find(site: Site, id: str) -> JobRecord:
    found = site.store.job(id) if id.isascii() and len(id) == 36 else None
    if found is None:
        raise JobNotFound(f"no job {id[:80]!r}: finished jobs are pruned by retention")
    return found


def _line(job: JobRecord, attempts: list[AttemptRecord], now: float) -> list[Stretch]:
    """From submit to end: the waits between are parts of it too."""
    due = max(job.created_at, job.run_at or 0.0) if not attempts else job.created_at
    first = attempts[0].started_at if attempts else (job.finished_at or now)
    found: list[Stretch] = []
    if first > job.created_at:
        waited = age(first - job.created_at)
        css = "scheduled" if due > now else "ready"
        found.append(Stretch(job.created_at, first, css, f"waited {waited}"))
    for attempt in attempts:
        end = attempt.ended_at if attempt.ended_at is not None else now
        css = _CSS.get(attempt.outcome.split(" ")[0], "failed")
        label = f"attempt {attempt.attempt}: {attempt.outcome}, {age(end - attempt.started_at)}"
        found.append(Stretch(attempt.started_at, max(end, attempt.started_at), css, label))
    return found


_CSS = {
    "running": "running",
    "succeeded": "succeeded",
    "snoozed": "scheduled",
    "cancelled": "cancelled",
    "interrupted": "cancelled",
}


def _output(site: Site, id: str) -> tuple[str, bool, str]:
    """The end of what its commands wrote, and where to go on. Read from the end: there may be
    much more of it, and pages look again and again."""
    records: list[OutputRecord] = []
    size, look, whole = 0, PIECES, False
    while size <= OUTPUT and not whole and look <= MOST_PIECES:
        earlier = site.store.last_output(id, records[0].place if records else None, look)
        whole = len(earlier) < look
        records = earlier + records
        size += sum(len(record.data) for record in earlier)
        look *= 4
    place = records[-1].place if records else (0, -1)
    kept: list[bytes] = []
    for record, data in outputs.told(iter(records)):
        # Before the first of them nothing was left out but by us.
        kept.append(data if kept or whole else record.data)
    cut = not whole or size > OUTPUT
    text = b"".join(kept)[-OUTPUT:].decode(errors="replace")
    return text.replace("\r\n", "\n"), cut, f"{place[0]}_{place[1]}"


def cancel(request: Request) -> Response:
    site, id = site_of(request), request.path_params["id"]
    _find(site, id)
    site.store.cancel(id, by=by(request), reason=asked.text(form_of(request), "reason"))
    return back_to(request, f"/jobs/{id}", done="cancel")


def retry(request: Request) -> Response:
    site, id = site_of(request), request.path_params["id"]
    _find(site, id)
    site.store.retry(id, by=by(request))
    return back_to(request, f"/jobs/{id}", done="retry")


def move(request: Request) -> Response:
    """Another queue, another priority."""
    site, form, id = site_of(request), form_of(request), request.path_params["id"]
    _find(site, id)
    queue = asked.text(form, "queue") or None
    priority = asked.whole(form, "priority") if asked.text(form, "priority") else None
    site.store.relocate(id, queue=queue, priority=priority, by=by(request))
    return back_to(request, f"/jobs/{id}", done="move")


# --- many at once -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    order: Order
    cells: dict[str, str]


def _order(cells: dict[str, str], who: str) -> _Asked:
    given = asked.text(cells, "action")
    verb: Verb | None = next((known for known in VERBS if known == given), None)
    if verb is None:
        raise DeclarationError(f"{given[:40]!r} can be done to no jobs")
    filter = asked.job_filter(cells)
    if not any(cells.get(name) for name in asked.FILTER):
        raise DeclarationError("choose some jobs first: a filter that says nothing means them all")
    value = asked.text(cells, "value")
    order = Order(
        verb,
        filter,
        who,
        asked.text(cells, "reason"),
        priority=asked.whole(cells, "value") if verb == "priority" and value else None,
        queue=value if verb == "queue" and value else None,
    )
    kept = {name: cells[name] for name in (*asked.FILTER, "action", "value") if cells.get(name)}
    return _Asked(order, kept)


def preview(request: Request) -> Response:
    """How many would be changed; what is asked for beside the filter is filled in here."""
    site = site_of(request)
    wanted = _order(asked.query(request), "")
    order = wanted.order
    ready = not (order.verb == "priority" and order.priority is None) and not (
        order.verb == "queue" and order.queue is None
    )
    return site.page(
        request,
        "preview.html",
        now=site.store.now(),
        order=order,
        cells=wanted.cells,
        ready=ready,
        preview=site.bulks.preview(order) if ready else None,
    )


def start(request: Request) -> Response:
    site = site_of(request)
    bulk = site.bulks.start(_order(dict(form_of(request)), by(request)).order)
    return back_to(request, f"/jobs/bulk/{bulk.id}")


def progress(request: Request) -> Response:
    site = site_of(request)
    id = request.path_params["number"]
    bulk = site.bulks.get(id)
    if bulk is None:
        raise NotThere(f"no order {id}: they are forgotten when the dashboard ends")
    return site.page(request, "bulk.html", now=site.store.now(), bulk=bulk)


def stop(request: Request) -> Response:
    site = site_of(request)
    id = request.path_params["number"]
    bulk = site.bulks.get(id)
    if bulk is None:
        raise StoreError(f"no order {id} is under way")
    bulk.stop.set()
    return back_to(request, f"/jobs/bulk/{id}", done="stopped")
