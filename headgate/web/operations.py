"""The operations of the API: each with its address, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request

from headgate.cli import data
from headgate.errors import DeclarationError, HeadgateError, JobNotFound, ScheduleNotFound
from headgate.jobs import STATES, JobRecord
from headgate.limits import check_group, check_name
from headgate.schedules.template import task_of, to_job
from headgate.stores.protocol import EventRecord, LimitLoad, OutputRecord, ScheduleRecord
from headgate.web import asked, models
from headgate.web.pages.fairness import SEEN, shares, weights_of
from headgate.web.pages.schedules import state_of
from headgate.web.redact import without_passwords
from headgate.web.site import NotThere, Site, by, site_of
from headgate.web.survey import SORTS
from headgate.why import ask

T = TypeVar("T", bound=msgspec.Struct)

MOST = 200
SLOTS = 1000


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the query."""

    name: str
    about: str
    kind: Literal["string", "integer"] = "string"
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    method: Literal["get", "post"]
    path: str
    name: str
    about: str
    answer: type[msgspec.Struct]
    run: Callable[[Request, Any], msgspec.Struct]
    fields: tuple[Field, ...] = ()
    body: type[msgspec.Struct] | None = None


def _as(kind: type[T], value: Any) -> T:
    return msgspec.convert(value, kind)


# --- groups -------------------------------------------------------------------------------------


def _groups(request: Request, _: None) -> models.Loads:
    return models.Loads([_load(load) for load in site_of(request).sampler.latest().loads])


def _load(load: LimitLoad) -> models.Load:
    return models.Load(
        _as(models.Limit, data.limit(load.limit)),
        load.held,
        load.held_bounded,
        load.keys,
        load.waiting,
        load.waiting_bounded,
        data.moment(load.oldest),
    )


def _keys(request: Request, _: None) -> models.Keys:
    cells = asked.query(request)
    name = check_name(asked.required(cells, "limit"), "limit")
    sort = _choice(cells, "sort", SORTS, "waiting")
    offset = min(100_000, max(0, asked.whole(cells, "offset", 0)))
    survey = site_of(request).surveys.of(name)
    page = survey.page(sort, asked.text(cells, "q"), offset, _limit(cells))
    found = [
        models.Key(k.key, k.held, k.holders, k.waiting, k.bounded, data.moment(k.oldest))
        for k in page.keys
    ]
    return models.Keys(found, page.found, page.complete)


def _group(request: Request, _: None) -> models.Group:
    name = check_group(asked.required(asked.query(request), "group"))
    record, slots = site_of(request).store.group(name)
    shown = [_as(models.Slot, data.slot(slot)) for slot in slots[:SLOTS]]
    return models.Group(_as(models.Limit, data.limit(record)), shown, len(slots) > SLOTS)


def _change(request: Request, body: models.ChangeLimit) -> models.Limit:
    site, who = site_of(request), by(request)
    group = check_group(body.group)
    desk, reason, lasts = site.app.concurrency, _plain(body.reason), body.lasts
    if body.action == "set":
        after = desk.set(group, body.value, reason=reason, lasts=lasts, by=who)
    elif body.action == "reset":
        after = desk.reset(group, reason=reason, by=who)
    elif body.action == "pause":
        after = desk.pause(group, reason=reason, lasts=lasts, by=who)
    elif body.action == "resume":
        after = desk.resume(group, reason=reason, by=who)
    else:
        weight = body.value if body.action == "weight" else None
        if body.action == "weight" and weight is None:
            raise DeclarationError("value: a weight is a whole number from 1")
        after = desk.weight(group, weight, reason=reason, lasts=lasts, by=who)
    return _as(models.Limit, data.limit(after))


def _release(request: Request, body: models.ReleaseSlot) -> models.Released:
    site, group = site_of(request), check_group(body.group)
    freed = site.store.drop_slot(group, body.slot_id, body.token, by=by(request))
    if not freed:
        raise NotThere(f"that holder does not hold slot {body.slot_id} of {group}")
    return models.Released(True)


# --- jobs -----------------------------------------------------------------------------------------


def _jobs(request: Request, _: None) -> models.Jobs:
    site, cells = site_of(request), asked.query(request)
    page = site.store.browse(asked.job_filter(cells), _limit(cells), cells.get("after") or None)
    return models.Jobs([_job_model(site, job) for job in page.jobs], page.after)


def _job_model(site: Site, job: JobRecord) -> models.Job:
    told = data.job(job)
    for name, text in (("args", job.args), ("options", job.options), ("result", job.result)):
        told[name] = site.redactor.shown(job.task, text)
    return _as(models.Job, _without_passwords(told))


def _without_passwords(told: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, str] | None = told["error"]
    if error is not None:
        told["error"] = {name: without_passwords(text) for name, text in error.items()}
    return told


def _find(request: Request) -> JobRecord:
    id = request.path_params["id"]
    found = site_of(request).store.job(id) if id.isascii() and len(id) == 36 else None
    if found is None:
        raise JobNotFound(f"no job {id[:80]!r}")
    return found


def _job(request: Request, _: None) -> models.WholeJob:
    site, job = site_of(request), _find(request)
    attempts = [
        _as(models.Attempt, _without_passwords(data.attempt(attempt)))
        for attempt in site.store.attempts(job.id)[-MOST:]
    ]
    return models.WholeJob(_job_model(site, job), attempts)


def _why(request: Request, _: None) -> models.Why:
    told = data.why(ask(site_of(request).store, _find(request).id))
    return _as(models.Why, {**told, "text": without_passwords(told["text"])})


def _output(request: Request, _: None) -> models.Outputs:
    job, cells = _find(request), asked.query(request)
    token, _bar, seq = (asked.text(cells, "after") or "0_-1").partition("_")
    place = asked.whole({"after": token}, "after"), asked.whole({"after": seq}, "after")
    found = site_of(request).store.output(job.id, place, _limit(cells))
    after = f"{found[-1].token}_{found[-1].seq}" if found else None
    return models.Outputs([_piece(record) for record in found], after)


def _piece(record: OutputRecord) -> models.Piece:
    return models.Piece(
        record.attempt,
        record.stream,
        data.moment(record.at) or "",
        record.start,
        record.data.decode(errors="replace"),
    )


def _cancel(request: Request, body: models.CancelJob) -> models.Job:
    site, job = site_of(request), _find(request)
    after = site.store.cancel(job.id, by=by(request), reason=_plain(body.reason))
    return _job_model(site, after)


def _retry(request: Request, body: models.RetryJob) -> models.Job:
    site, job = site_of(request), _find(request)
    return _job_model(site, site.store.retry(job.id, by=by(request)))


def _move(request: Request, body: models.MoveJob) -> models.Job:
    site, job = site_of(request), _find(request)
    after = site.store.relocate(job.id, queue=body.queue, priority=body.priority, by=by(request))
    return _job_model(site, after)


# --- the rest ---------------------------------------------------------------------------------


def _queues(request: Request, _: None) -> models.Queues:
    found = site_of(request).sampler.latest().queues
    return models.Queues([_as(models.Queue, data.queue(queue)) for queue in found])


def _pause_queue(request: Request, body: models.PauseQueue) -> models.Queues:
    site, name = site_of(request), check_name(body.queue, "queue")
    site.store.pause_queue(name, body.paused, by=by(request), reason=_plain(body.reason))
    site.forget()
    return _queues(request, None)


def _workers(request: Request, _: None) -> models.Workers:
    found = site_of(request).sampler.latest().workers
    return models.Workers([_as(models.Worker, data.worker(worker)) for worker in found])


def _schedules(request: Request, _: None) -> models.Schedules:
    site = site_of(request)
    now = site.store.now()
    return models.Schedules([_schedule(one, now) for one in site.store.schedules()])


def _schedule(one: ScheduleRecord, now: float) -> models.Schedule:
    told = data.schedule(one, task=task_of(one.spec.job), state=state_of(one, now))
    return _as(models.Schedule, told)


def _known(site: Site, name: str) -> ScheduleRecord:
    found = site.store.schedule(_plain(name))
    if found is None:
        raise ScheduleNotFound(f"no schedule {name[:80]!r}")
    return found


def _pause_schedule(request: Request, body: models.PauseSchedule) -> models.Schedule:
    site = site_of(request)
    name = _known(site, body.name).spec.name
    site.store.pause_schedule(name, body.paused, by=by(request), reason=_plain(body.reason))
    return _schedule(_known(site, name), site.store.now())


def _run_schedule(request: Request, body: models.RunSchedule) -> models.Tick:
    site = site_of(request)
    found = _known(site, body.name)
    job = to_job(found.spec.job, found.spec.name, site.store.now(), None)
    return _as(models.Tick, data.tick(site.store.run_now(found.spec.name, job, by=by(request))))


def _events(request: Request, _: None) -> models.Events:
    cells = asked.query(request)
    before = asked.whole(cells, "before") if cells.get("before") else None
    limit = _limit(cells)
    found = site_of(request).store.past_events(
        asked.text(cells, "kind"), asked.text(cells, "subject"), before, limit
    )
    more = found[-1].seq if len(found) == limit else None
    return models.Events([_event(event) for event in found], more)


def _event(event: EventRecord) -> models.Event:
    at = data.moment(event.at) or ""
    return models.Event(event.seq, at, event.kind, event.subject, event.who, dict(event.data))


def _fairness(request: Request, _: None) -> models.Fairness:
    site, task = site_of(request), asked.text(asked.query(request), "task")
    ends = site.store.ends(limit=SEEN)
    found = shares((end for end in ends if not task or end.task == task), weights_of(site))
    told = [
        models.Share(s.key, s.weight, s.starts, s.part, s.ran_part, s.expected, s.median, s.longest)
        for s in found
    ]
    return models.Fairness(told, len(ends))


def _limit(cells: dict[str, str]) -> int:
    return max(1, min(MOST, asked.whole(cells, "rows", 50)))


def _choice(cells: dict[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = asked.text(cells, name) or default
    if value not in choices:
        raise DeclarationError(f"{name}: {value[:40]!r} is none of {', '.join(choices)}")
    return value


def _plain(text: str) -> str:
    return asked.text({"text": text}, "text")


class Malformed(HeadgateError):
    """The body is not what the operation takes."""


ROWS = Field("rows", f"So many at most (up to {MOST}).", "integer")
AFTER = Field("after", "The `after` of the page before.")
CHOSEN = (
    Field("state", "In this state.", choices=STATES),
    Field("task", "Of this task."),
    Field("queue", "In this queue."),
    Field("group", "Needing this group, as tenant/acme."),
    Field("since", "Created after: 2h for so long ago, or a date and time."),
    Field("until", "Created before."),
    Field("text", "With this in its arguments, its error or its id."),
)

OPERATIONS: tuple[Operation, ...] = (
    Operation("get", "/api/groups", "groups", "Limits, with what is held and waits.",
              models.Loads, _groups),
    Operation("get", "/api/groups/keys", "keys", "The keys of a keyed limit.", models.Keys, _keys,
              (Field("limit", "Its name.", required=True), Field("sort", "By what.", choices=SORTS),
               Field("q", "Keys with this in them."),
               Field("offset", "Leave out so many.", "integer"), ROWS)),
    Operation("get", "/api/group", "group", "One group, with who holds it.", models.Group, _group,
              (Field("group", "As gpu or tenant/acme.", required=True),)),
    Operation("post", "/api/group", "changeLimit", "Say something about a group: set, pause, …",
              models.Limit, _change, body=models.ChangeLimit),
    Operation("post", "/api/group/release", "releaseSlot",
              "Take a slot from its holder, whose code is not stopped.", models.Released, _release,
              body=models.ReleaseSlot),
    Operation("get", "/api/jobs", "jobs", "Jobs, by a filter; a page looks at some thousand.",
              models.Jobs, _jobs, (*CHOSEN, AFTER, ROWS)),
    Operation("get", "/api/jobs/{id}", "job", "One job, with its attempts.", models.WholeJob, _job),
    Operation("get", "/api/jobs/{id}/why", "why", "Why a job is where it is.", models.Why, _why),
    Operation("get", "/api/jobs/{id}/output", "output", "What its commands wrote.", models.Outputs,
              _output, (AFTER, ROWS)),
    Operation("post", "/api/jobs/{id}/cancel", "cancelJob", "Cancel it; one that runs is told.",
              models.Job, _cancel, body=models.CancelJob),
    Operation("post", "/api/jobs/{id}/retry", "retryJob", "Run a finished job again.", models.Job,
              _retry, body=models.RetryJob),
    Operation("post", "/api/jobs/{id}/move", "moveJob", "Another queue or priority.", models.Job,
              _move, body=models.MoveJob),
    Operation("get", "/api/queues", "queues", "All queues.", models.Queues, _queues),
    Operation("post", "/api/queues/pause", "pauseQueue", "Pause or resume a queue.", models.Queues,
              _pause_queue, body=models.PauseQueue),
    Operation("get", "/api/workers", "workers", "All workers.", models.Workers, _workers),
    Operation("get", "/api/schedules", "schedules", "All schedules.", models.Schedules, _schedules),
    Operation("post", "/api/schedules/pause", "pauseSchedule", "Pause or resume one.",
              models.Schedule, _pause_schedule, body=models.PauseSchedule),
    Operation("post", "/api/schedules/run", "runSchedule", "Submit a run now.", models.Tick,
              _run_schedule, body=models.RunSchedule),
    Operation("get", "/api/events", "events", "What happened, the latest first.", models.Events,
              _events, (Field("kind", "Of this kind."), Field("subject", "About this."),
                        Field("before", "The `before` of the page before.", "integer"), ROWS)),
    Operation("get", "/api/fairness", "fairness", "What each fairness key got.", models.Fairness,
              _fairness, (Field("task", "Of this task."),)),
)  # fmt: skip
