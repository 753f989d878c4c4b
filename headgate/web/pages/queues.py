"""Queues: what waits where, and pausing it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.limits import check_name
from headgate.web import asked
from headgate.web.site import back_to, by, form_of, site_of


def queues(request: Request) -> Response:
    site = site_of(request)
    sample = site.sampler.latest()
    return site.page(
        request,
        "queues.html",
        now=sample.at,
        queues=sample.queues,
        config=site.app.config.queues,
        most=max((queue.waiting for queue in sample.queues), default=0),
    )


def pause(request: Request) -> Response:
    site, form = site_of(request), form_of(request)
    name = check_name(asked.required(form, "queue"), "queue")
    paused = asked.required(form, "action") == "pause"
    site.store.pause_queue(name, paused, by=by(request), reason=asked.text(form, "reason"))
    return back_to(request, "/queues", done="pause" if paused else "resume")
