"""OpenTelemetry spans of submit and run, after the conventions for messaging.

The context of the submitting span is stored with the job, in its options, and found there by
whoever runs it. What is stored is the W3C form, a hundred bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headgate.errors import ConcurrencyLimitReached, Control

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from headgate.context import Context
    from headgate.jobs import NewJob, Submitted

KEY = "trace"
"""Its place among the options of a job."""
SYSTEM = "headgate"

_w3c = TraceContextTextMapPropagator()


@dataclass(slots=True)
class Traced:
    """A submit under way: the jobs with the context of its span, and what became of them."""

    jobs: list[NewJob]
    done: Sequence[Submitted] = field(default_factory=tuple)


class Tracing:
    """The spans of one app."""

    def __init__(self, provider: TracerProvider | None, follow: Literal["link", "parent"]) -> None:
        self._tracer = trace.get_tracer("headgate", version("headgate"), provider)
        self._follow = follow

    @contextmanager
    def submitting(self, jobs: list[NewJob]) -> Generator[Traced]:
        """Round the storing of jobs: one span, which all of them carry."""
        if not jobs:
            yield Traced(jobs)
            return
        queues = {job.queue for job in jobs}
        name = f"submit {queues.pop()}" if len(queues) == 1 else "submit"
        with self._tracer.start_as_current_span(
            name,
            kind=SpanKind.PRODUCER,
            attributes=_submitted(jobs),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            traced = Traced(_stamped(jobs))
            try:
                yield traced
            except BaseException as error:
                _failed(span, error)
                raise
            _tell(span, traced.done)

    def followup(self, job: NewJob) -> NewJob:
        """A job that is stored with the end of the attempt that runs here."""
        with self.submitting([job]) as traced:
            return traced.jobs[0]

    @contextmanager
    def around(self, ctx: Context) -> Generator[None]:
        """Round the code of an attempt (a hook of `around_job`)."""
        # Not the context of whoever runs the worker: a run begins a trace, or goes on with that
        # of its submit.
        before = _w3c.extract(_carrier(ctx._options), context=OtelContext())
        origin = trace.get_current_span(before).get_span_context()
        linked = self._follow == "link" and origin.is_valid
        with self._tracer.start_as_current_span(
            f"run {ctx.queue}",
            context=OtelContext() if self._follow == "link" else before,
            kind=SpanKind.CONSUMER,
            links=[Link(origin)] if linked else None,
            attributes=_run(ctx),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Control as order:
                # Not an error: the code says how it wants to go on.
                span.set_attribute("headgate.outcome", type(order).__name__.lower())
                raise
            except asyncio.CancelledError:
                span.set_attribute("headgate.outcome", "stopped")
                raise
            except BaseException as error:
                _failed(span, error)
                raise


def _stamped(jobs: list[NewJob]) -> list[NewJob]:
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    if not carrier:
        return jobs  # nobody has set up a provider: there is nothing to follow
    return [replace(job, options=_with(job.options, carrier)) for job in jobs]


def _with(options: str, carrier: dict[str, str]) -> str:
    kept = {**json.loads(options), KEY: carrier}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def _carrier(options: str) -> dict[str, str]:
    found: Any = json.loads(options).get(KEY) if f'"{KEY}"' in options else None
    # Whatever stands there was written by somebody: only texts are read.
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}  # pyright: ignore[reportUnknownVariableType]


def _submitted(jobs: Sequence[NewJob]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
    }
    queues, tasks = {job.queue for job in jobs}, {job.task for job in jobs}
    if len(queues) == 1:
        told["messaging.destination.name"] = queues.pop()
    if len(tasks) == 1:
        told["headgate.task"] = tasks.pop()
    if len(jobs) == 1:
        told["messaging.message.id"] = jobs[0].id
    else:
        told["messaging.batch.message_count"] = len(jobs)
    return told


def _run(ctx: Context) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": ctx.queue,
        "messaging.message.id": ctx.job_id,
        "headgate.task": ctx.task,
        "headgate.attempt": ctx.attempt,
        "headgate.token": ctx.token,
        "headgate.groups": list(ctx.groups),
    }


def _tell(span: Span, done: Sequence[Submitted]) -> None:
    refused = [one.refused for one in done if one.refused is not None]
    if len(done) == 1 and done[0].existing:
        # An earlier job stands for it: the message is that one.
        span.set_attribute("messaging.message.id", done[0].id)
        span.set_attribute("headgate.existing", True)
    if refused:
        span.set_attribute("error.type", ConcurrencyLimitReached.__name__)
        span.set_attribute("headgate.refused", len(refused))
        span.set_attribute("headgate.group", refused[0].group)
        span.set_status(Status(StatusCode.ERROR, f"refused by a cap on {refused[0].group}"))


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
