"""What a machine is told of the work: metrics, traces, logs. Nothing here is imported, and nothing
is counted, unless somebody asks for it.

names     every metric: its kind, its labels, what it says
counts    counters and histograms as plain numbers, which can be sent and added up
meter     what the loops of a worker and an app have to tell
gauges    the store as it is now, from bounded reads
exposition  all of that as Prometheus reads it; serving, server: over HTTP, by the keeper
tracing   OpenTelemetry spans of submit and run; otelmeter: the counts there too; exporting: both
          to a collector, by a flag
jsonlog   log lines as JSON
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from headgate.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client.registry import Collector

    from headgate.app import App

__all__ = ["collector", "instrument"]

Follow = Literal["link", "parent"]


def instrument(
    app: App,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    follow: Follow = "link",
) -> None:
    """Make OpenTelemetry spans of every submit and run of this app, and its metrics.

    >>> from headgate.telemetry import instrument
    >>> instrument(app)                                                 # doctest: +SKIP

    Without providers those of the process are used. The span of a run is linked to that of the
    submit, wherever it happened; with `follow="parent"` it is a child of it, in one trace. Call it
    where the app is declared, so that submitters and workers both do.
    """
    try:
        from headgate.telemetry.otelmeter import OtelSink
        from headgate.telemetry.tracing import Tracing
    except ImportError as error:
        raise _missing("OpenTelemetry", "otel", error) from None
    if app.tracing is not None:
        raise ConfigError("this app is instrumented already: call instrument(app) once")
    if follow not in ("link", "parent"):
        raise ConfigError(f"follow must be 'link' or 'parent', got {follow!r}")
    app.tracing = Tracing(tracer_provider, follow)
    app.hooks.around_job.insert(0, app.tracing.around)
    app.metered().sinks.append(OtelSink(meter_provider))


def collector(app: App, *, keys: Iterable[str] = ()) -> Collector:
    """What this process counts of this app, for a Prometheus registry of your own.

    >>> from prometheus_client import REGISTRY
    >>> REGISTRY.register(headgate.telemetry.collector(app))            # doctest: +SKIP

    For programs that submit, and for `Worker(app).run()`; `headgate worker --metrics` does it by
    itself. `keys` names the limits whose keys are told apart.
    """
    try:
        from headgate.telemetry.exposition import Counted
    except ImportError as error:
        raise _missing("Prometheus", "metrics", error) from None
    from headgate.telemetry.counts import Counts

    counts = Counts()
    meter = app.metered()
    meter.keyed |= frozenset(keys)
    meter.sinks.append(counts)
    return Counted(counts)


def _missing(what: str, extra: str, error: ImportError) -> ConfigError:
    package = (error.name or "").partition(".")[0]
    return ConfigError(f"{what} needs {package}: {how_to_install(extra)}")
