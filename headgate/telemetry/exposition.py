"""Counts and gauges as Prometheus reads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from headgate.telemetry.names import FAMILIES, Family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from headgate.telemetry.counts import Counts
    from headgate.telemetry.gauges import Value


class Counted(Collector):
    """Counters and histograms."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        for family in FAMILIES:
            if family.kind == "counter":
                numbers = self._counts.numbers(family)
                # Without labels there is one series, and it is there from the start.
                if numbers or not family.labels:
                    yield _counter(family, numbers or [((), 0.0)])
            elif family.kind == "histogram":
                drawn = self._counts.drawn(family)
                if drawn:
                    yield _histogram(family, drawn)

    def describe(self) -> Iterable[Metric]:
        """Nothing: what is registered twice by somebody is theirs to tell apart."""
        return ()


class Gauges(Collector):
    """Gauges, looked at when they are collected."""

    def __init__(self, values: Callable[[], Sequence[Value]]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        by_name: dict[str, GaugeMetricFamily] = {}
        for family, labels, value in self._values():
            gauge = by_name.get(family.name)
            if gauge is None:
                gauge = GaugeMetricFamily(family.name, family.text, labels=family.labels)
                by_name[family.name] = gauge
            gauge.add_metric(labels, value)
        yield from by_name.values()

    def describe(self) -> Iterable[Metric]:
        return ()


def _counter(family: Family, numbers: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    told = CounterMetricFamily(family.name, family.text, labels=family.labels)
    for labels, value in numbers:
        told.add_metric(labels, value)
    return told


def _histogram(family: Family, drawn: Iterable[tuple[tuple[str, ...], list[float]]]) -> Metric:
    told = HistogramMetricFamily(family.name, family.text, labels=family.labels)
    edges = [*map(str, family.buckets), "+Inf"]
    for labels, (*counts, total) in drawn:
        told.add_metric(
            labels, list(zip(edges, itertools.accumulate(counts), strict=True)), sum_value=total
        )
    return told
