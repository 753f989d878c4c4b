"""`/metrics`, for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from headgate.web.site import site_of


def metrics(request: Request) -> Response:
    site = site_of(request)
    headers = {"content-type": CONTENT_TYPE_LATEST}
    return Response(site.metrics.text(site.sampler.latest()), headers=headers)
