"""Spans of submit and run, as other processes and machines find them."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headgate import App, Cap, ConcurrencyLimitReached
from headgate.errors import ConfigError
from headgate.jobs import JobFilter
from headgate.telemetry import instrument
from tests.telemetry import sample
from tests.telemetry.conftest import Metered
from tests.telemetry.sample import spans
from tests.waiting import wait_until
from tests.worker.site import REPO

SUBMIT = """
from tests.telemetry.sample import app, greet, alone, late, true
with app:
    greet.submit("acme"); greet.submit("nobody"); late.submit(); alone.submit(); true.submit()
"""


def test_a_run_is_linked_to_its_submit_in_another_process(site: Metered) -> None:
    submit_and_run(site, "link")


def test_a_run_may_go_on_with_the_trace_of_its_submit(quick: Metered) -> None:
    submit_and_run(quick, "parent")


def submit_and_run(site: Metered, follow: str) -> None:
    file = site.folder / "spans"
    env = {"SPANS": str(file), "FOLLOW": follow}
    subprocess.run([sys.executable, "-c", SUBMIT], check=True, cwd=REPO, env={**os.environ, **env})
    sent = {span["attributes"]["headgate.task"]: span for span in spans(file)}
    assert set(sent) == {"greet", "late", "alone", "true"}
    tree = site.work("--burst", "--log-level", "error", **env)
    assert tree.wait() == 0
    found = spans(file)
    by_id = {span["context"]["span_id"]: span for span in found}
    runs = [span for span in found if span["name"] == "run default"]
    # The follow-up of the isolated task was submitted there, and runs here.
    assert sorted(run["attributes"]["headgate.task"] for run in runs) == [
        *("alone", "charge", "greet", "greet", "late", "late", "true"),
    ]
    for run in runs:
        origin = run["parent_id"] if follow == "parent" else run["links"][0]["context"]["span_id"]
        submit = by_id[origin]
        assert submit["name"] == "submit default"
        assert submit["kind"] == "SpanKind.PRODUCER"
        assert run["kind"] == "SpanKind.CONSUMER"
        id = "messaging.message.id"
        assert submit["attributes"][id] == run["attributes"][id]
        same = submit["context"]["trace_id"] == run["context"]["trace_id"]
        assert same == (follow == "parent")
    (failed,) = [run for run in runs if run["status"]["status_code"] == "ERROR"]
    assert failed["attributes"]["error.type"] == "ValueError"
    snoozed = [r for r in runs if r["attributes"].get("headgate.outcome") == "snooze"]
    assert len(snoozed) == 1
    (follow_up,) = [s for s in found if s["attributes"].get("headgate.task") == "charge"
                    and s["kind"] == "SpanKind.PRODUCER"]  # fmt: skip
    parent = by_id[follow_up["parent_id"]]
    assert parent["attributes"]["headgate.task"] == "alone"


class Collector(BaseHTTPRequestHandler):
    """What is sent to a collector of OpenTelemetry."""

    traces: ClassVar[list[ResourceSpans]] = []
    metrics: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.traces.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
        else:
            for told in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics.update(m.name for scope in told.scope_metrics for m in scope.metrics)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...

    @classmethod
    def ran(cls) -> list[str]:
        """Tasks of which runs were told."""
        return [
            attribute.value.string_value
            for told in cls.traces
            for scope in told.scope_spans
            for span in scope.spans
            if span.name == "run default"
            for attribute in span.attributes
            if attribute.key == "headgate.task"
        ]


@pytest.fixture
def collector() -> Iterator[str]:
    """The address of one."""
    Collector.traces.clear()
    Collector.metrics.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_flag_of_the_worker_sends_them_without_any_code(quick: Metered, collector: str) -> None:
    sample.app.submit_many([sample.greet.call("acme"), sample.greet.call("x"), sample.alone.call()])
    tree = quick.work("--otel", "--log-level", "error", OTEL_EXPORTER_OTLP_ENDPOINT=collector)
    # That of the isolated task comes from the process in which it ran, while that is there.
    wait_until(lambda: "alone" in Collector.ran())
    done = JobFilter(states=frozenset(("succeeded",)))
    wait_until(lambda: sample.app.store.count(done) == 4)
    assert tree.stop() == 0
    assert "Traceback" not in tree.output()
    names = {a.value.string_value for t in Collector.traces for a in t.resource.attributes
             if a.key == "service.name"}  # fmt: skip
    assert names == {"headgate"}
    assert sorted(Collector.ran()) == ["alone", "charge", "greet", "greet"]
    assert {"messaging.client.consumed.messages", "messaging.process.duration"} <= Collector.metrics


class Seen:
    """Everything that an app tells OpenTelemetry in this process."""

    def __init__(self, app: App) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._reader])
        instrument(app, tracer_provider=self.tracers, meter_provider=meters)

    def span(self) -> ReadableSpan:
        (span,) = self._spans.get_finished_spans()
        self._spans.clear()
        return span

    def numbers(self, name: str) -> dict[tuple[object, ...], float]:
        data = self._reader.get_metrics_data()
        return {
            tuple(point.attributes[key] for key in sorted(point.attributes)): point.value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }


@pytest.fixture
def shop(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(caps=[Cap("one", max_total=1)], name="once")
    def once() -> None: ...

    @app.task(name="many")
    def many(n: int) -> None: ...

    return app


def test_a_refused_submit_is_marked(shop: App) -> None:
    seen = Seen(shop)
    once = shop.tasks["once"]
    once.submit()
    assert seen.span().status.status_code is StatusCode.UNSET
    with pytest.raises(ConcurrencyLimitReached):
        once.submit()
    span = seen.span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ConcurrencyLimitReached"
    assert span.attributes["headgate.group"] == "one"
    sent = seen.numbers("messaging.client.sent.messages")
    assert sum(sent.values()) == 2
    rejected = seen.numbers("headgate.concurrency.acquisition")
    assert list(rejected.values()) == [1]


def test_many_jobs_are_one_span(shop: App) -> None:
    seen = Seen(shop)
    many = shop.tasks["many"]
    with seen.tracers.get_tracer("here").start_as_current_span("request") as request:
        asyncio.run(shop.asubmit_many([many.call(n) for n in range(3)]))
    submit, _ = seen._spans.get_finished_spans()
    assert submit.kind is SpanKind.PRODUCER
    assert submit.attributes is not None
    assert submit.attributes["messaging.batch.message_count"] == 3
    assert submit.parent is not None
    assert submit.parent.span_id == request.get_span_context().span_id


def test_whatever_stands_in_the_options_is_no_harm(shop: App) -> None:
    from headgate.telemetry.tracing import _carrier

    for text in ("{}", '{"trace":null}', '{"trace":[1]}', '{"trace":{"traceparent":7}}'):
        assert _carrier(text) == {}


def test_a_second_time_is_refused(shop: App) -> None:
    Seen(shop)
    with pytest.raises(ConfigError, match="already"):
        Seen(shop)


def test_the_same_idempotency_key_from_another_span_is_the_same_job(shop: App) -> None:
    Seen(shop)
    many = shop.tasks["many"].using(idempotency_key="a")
    assert many.submit(1).id == many.submit(1).id
