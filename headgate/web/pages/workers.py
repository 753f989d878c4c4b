"""Workers: who is there, how busy, and what each runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.jobs import JobFilter
from headgate.web import asked
from headgate.web.site import NotThere, site_of

RUNNING = 200


def workers(request: Request) -> Response:
    site = site_of(request)
    sample = site.sampler.latest()
    return site.page(request, "workers.html", now=sample.at, workers=sample.workers)


def worker(request: Request) -> Response:
    site = site_of(request)
    id = asked.required(asked.query(request), "id")
    sample = site.sampler.latest()
    found = next((worker for worker in sample.workers if worker.id == id), None)
    if found is None:
        raise NotThere(f"no worker {id[:80]!r} is there any more; the events tell when it went")
    running = site.store.browse(JobFilter(states=frozenset(("running",))), RUNNING)
    return site.page(
        request,
        "worker.html",
        now=sample.at,
        worker=found,
        jobs=[job for job in running.jobs if job.worker in (found.id, found.name)],
        more=running.after is not None,
        events=site.store.past_events(subject=found.name, limit=20),
    )
