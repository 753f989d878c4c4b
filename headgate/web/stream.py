"""The stream of events: says that something changed, and pages fetch what they show anew.

However many listen, the store is looked at once every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from headgate.errors import HeadgateError
from headgate.threads import in_thread
from headgate.web.sampler import Sample, Sampler
from headgate.web.site import site_of

log = logging.getLogger("headgate.web")

EVERY = 2.0
BEAT = 15.0
LONGEST = 3600.0
"""Seconds after which a stream ends and its browser opens another: whose session has ended since
is then not let in."""
MOST = 100


class Streams:
    """How many listen now."""

    def __init__(self) -> None:
        self.open = 0


async def stream(request: Request) -> Response:
    streams: Streams = request.app.state.streams
    if streams.open >= MOST:
        return PlainTextResponse(f"{MOST} pages listen already\n", 503, {"retry-after": "60"})
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    told = _tell(site_of(request).sampler, streams)
    return StreamingResponse(told, media_type="text/event-stream", headers=headers)


async def _tell(sampler: Sampler, streams: Streams) -> AsyncIterator[str]:
    streams.open += 1
    try:
        seen: int | None = None
        quiet = 0.0
        yield "retry: 3000\n\n"
        for _ in range(int(LONGEST / EVERY)):
            try:
                sample = await in_thread(sampler.latest)
            except HeadgateError as error:
                log.warning("the stream could not look at the store: %s", error)
            else:
                now = _digest(sample, sampler)
                if seen is not None and now != seen:
                    quiet = 0.0
                    yield f"event: change\nid: {sample.events}\ndata: {sample.at:.3f}\n\n"
                seen = now
            if quiet >= BEAT:
                quiet = 0.0
                yield ": still here\n\n"
            # All at the same moments, so that the pages of all who look are made from one look.
            await asyncio.sleep(EVERY - time.monotonic() % EVERY)
            quiet += EVERY
    finally:
        streams.open -= 1


def _digest(sample: Sample, sampler: Sampler) -> int:
    """Changes when something that pages show does, other than the time."""
    ended = tuple(
        (minute.succeeded, minute.failed, minute.cancelled)
        for minute in sampler.history.minutes.values()
    )
    workers = tuple((worker.id, worker.state, worker.running) for worker in sample.workers)
    return hash((sample.events, sample.queues, sample.loads, workers, ended))
