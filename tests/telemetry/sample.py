"""Tasks for the tests of metrics, traces and logs. With SPANS set, spans go to that file."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from headgate import App, Cap, Context, Snooze
from headgate.telemetry import instrument

app = App()
api = app.limit("api", 2)
tenant = app.limit("tenant", 1, key="who")

log = logging.getLogger("shop")


class ToFile(SpanExporter):
    """One JSON line for each span, one write: many processes share the file."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        fd = os.open(os.environ["SPANS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for span in spans:
            os.write(fd, span.to_json(indent=None).encode() + b"\n")
        os.close(fd)
        return SpanExportResult.SUCCESS


def spans(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if "SPANS" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    instrument(app, tracer_provider=provider, follow=os.environ.get("FOLLOW", "link"))  # type: ignore[arg-type]


@app.task(limits=[api])
def charge(n: int) -> None:
    log.warning("charging %d", n)


@app.task(limits=[tenant])
async def greet(who: str) -> None:
    if who == "nobody":
        raise ValueError("there is nobody")


@app.task(limits=[tenant])
def hold(who: str, file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.01)


@app.task
def late(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise Snooze(0.01)


@app.task(isolate="process")
def alone(ctx: Context) -> None:
    log.warning("all alone")
    ctx.submit(charge.call(1))


true = app.command("true", ["true"], concurrent_runs=True)


@app.task(caps=[Cap("once", max_total=1)])
def once() -> None: ...
