"""Every address of the dashboard, in one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headgate.web.api import api_routes
from headgate.web.entering import login, logout
from headgate.web.pages import (
    events,
    fairness,
    groups,
    jobs,
    overview,
    queues,
    schedules,
    workers,
)
from headgate.web.scrape import metrics
from headgate.web.site import HERE, Page, guarded
from headgate.web.stream import stream


def _get(path: str, page: Page) -> Route:
    return Route(path, guarded(page), methods=["GET"])


def _post(path: str, page: Page) -> Route:
    return Route(path, guarded(page), methods=["POST"])


def routes() -> list[Route | Mount]:
    either: Callable[..., Any] = guarded(login)
    return [
        _get("/", overview.overview),
        _get("/groups", groups.groups),
        _get("/groups/keys", groups.keys),
        _get("/groups/show", groups.group),
        _post("/groups/change", groups.change),
        _post("/groups/release", groups.release),
        _get("/jobs", jobs.jobs),
        _get("/jobs/bulk", jobs.preview),
        _post("/jobs/bulk", jobs.start),
        _get("/jobs/bulk/{number:int}", jobs.progress),
        _post("/jobs/bulk/{number:int}/stop", jobs.stop),
        _get("/jobs/{id}", jobs.job),
        _post("/jobs/{id}/cancel", jobs.cancel),
        _post("/jobs/{id}/retry", jobs.retry),
        _post("/jobs/{id}/move", jobs.move),
        _get("/queues", queues.queues),
        _post("/queues/pause", queues.pause),
        _get("/workers", workers.workers),
        _get("/workers/show", workers.worker),
        _get("/schedules", schedules.schedules),
        _get("/schedules/show", schedules.schedule),
        _post("/schedules/pause", schedules.pause),
        _post("/schedules/run", schedules.run),
        _get("/events", events.events),
        _get("/fairness", fairness.fairness),
        _get("/metrics", metrics),
        Route("/stream", stream, methods=["GET"]),
        Route("/login", either, methods=["GET", "POST"]),
        _post("/logout", logout),
        *api_routes(),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]
