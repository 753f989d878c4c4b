"""OpenTelemetry without a line of code: what `headgate worker --otel` turns on.

Spans and metrics go to a collector by OTLP over HTTP. Where it is, and what else can be set, is
told by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, …).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from headgate.telemetry import instrument

if TYPE_CHECKING:
    from headgate.app import App


SOON = "200"
"""Milliseconds."""


def export(app: App, *, soon: bool = False) -> None:
    """Instrument the app, unless its own module did. A process that has providers keeps them.
    `soon`: this one may be ended without a word, so spans are not kept for long."""
    if app.tracing is not None:
        return
    if soon:
        os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", SOON)
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        os.environ.setdefault("OTEL_SERVICE_NAME", "headgate")
        resource = Resource.create()
        tracers = TracerProvider(resource=resource)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([reader], resource=resource))
    instrument(app)
