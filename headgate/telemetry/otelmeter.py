"""The counts of a meter as OpenTelemetry metrics, under the names of its conventions where it has
some."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry import metrics

from headgate.telemetry import names
from headgate.telemetry.counts import Bounds, Labels

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider

_CONVENTIONS = {
    names.SUBMITTED.name: "messaging.client.sent.messages",
    names.ATTEMPTS.name: "messaging.client.consumed.messages",
    names.DURATION.name: "messaging.process.duration",
}
_ATTRIBUTES = {"queue": "messaging.destination.name"}


class OtelSink:
    """Counts go to instruments, made when they are first needed."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._meter = metrics.get_meter("headgate", meter_provider=provider)
        self._lock = threading.Lock()
        self._bounds = Bounds()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def add(self, family: names.Family, labels: Labels, by: float = 1.0) -> None:
        with self._lock:
            counter = self._counters.get(family.name)
            if counter is None:
                name = _name(family)
                counter = self._meter.create_counter(name, description=family.text)
                self._counters[family.name] = counter
            told = self._attributes(family, labels)
        counter.add(by, told)

    def observe(self, family: names.Family, labels: Labels, value: float) -> None:
        with self._lock:
            histogram = self._histograms.get(family.name)
            if histogram is None:
                histogram = self._histograms[family.name] = self._meter.create_histogram(
                    _name(family),
                    unit="s",
                    description=family.text,
                    explicit_bucket_boundaries_advisory=family.buckets,
                )
            told = self._attributes(family, labels)
        histogram.record(value, told)

    def _attributes(self, family: names.Family, labels: Labels) -> dict[str, str]:
        bounded = self._bounds.of(family, labels)
        told = {
            _ATTRIBUTES.get(label, f"headgate.{label}"): value
            for label, value in zip(family.labels, bounded, strict=True)
        }
        told["messaging.system"] = "headgate"
        if told.get("headgate.result") in ("refused", "rejected"):
            told["error.type"] = "ConcurrencyLimitReached"
        return told


def _name(family: names.Family) -> str:
    plain = family.name.removesuffix("_seconds").removeprefix("headgate_").replace("_", ".")
    return _CONVENTIONS.get(family.name, f"headgate.{plain}")
