"""The first page: how much goes through, what is nearly full, what looks stuck."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.stores.protocol import LimitLoad
from headgate.web import charts
from headgate.web.charts import Series
from headgate.web.site import site_of

NEAREST = 8


def overview(request: Request) -> Response:
    site = site_of(request)
    sample = site.sampler.latest()
    minutes = site.sampler.history.last_minutes(sample.at)
    times = [at for at, _ in minutes]
    ended = charts.bars(
        "Jobs that ended in the last hour, by minute",
        times,
        [
            Series("succeeded", "succeeded", [minute.succeeded for _, minute in minutes]),
            Series("failed", "failed", [minute.failed for _, minute in minutes]),
            Series("cancelled", "cancelled", [minute.cancelled for _, minute in minutes]),
        ],
    )
    totals = list(site.sampler.history.totals)
    load = charts.lines(
        "Jobs that wait and run",
        [total.at for total in totals],
        [
            Series("waiting", "ready", [total.waiting for total in totals]),
            Series("running", "running", [total.running for total in totals]),
        ],
    )
    done, failed = (
        sum(minute.succeeded for _, minute in minutes[-5:]),
        sum(minute.failed for _, minute in minutes[-5:]),
    )
    return site.page(
        request,
        "overview.html",
        now=sample.at,
        sample=sample,
        ended=ended,
        load=load,
        done=done,
        failed=failed,
        failed_hour=sum(minute.failed for _, minute in minutes),
        bounded=any(minute.bounded for _, minute in minutes[-5:]),
        nearest=sorted(filter(_is_bounded, sample.loads), key=_fullness)[:NEAREST],
        troubles=site.troubles(),
        alive=sum(worker.state == "alive" for worker in sample.workers),
        unwell=sum(worker.state in ("stalled", "dead") for worker in sample.workers),
        room=sum(worker.concurrency for worker in sample.workers if worker.state == "alive"),
        events=site.store.past_events(limit=8),
    )


def _is_bounded(load: LimitLoad) -> bool:
    return load.limit.value is not None and not load.limit.keyed


def _fullness(load: LimitLoad) -> tuple[float, int, str]:
    value = load.limit.value or 0
    share = load.held / value if value else 1.0 if load.waiting or load.held else 0.0
    return -share, -load.waiting, load.limit.group
