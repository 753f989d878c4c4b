"""Counters and histograms as plain numbers: cheap to add to, and what was added can be taken out,
sent elsewhere and added up there."""

from __future__ import annotations

import bisect
import hashlib
import threading
from collections.abc import Iterable
from typing import Protocol, cast

from headgate.telemetry.names import BY_NAME, Family

MOST = 500
"""Values of a first label; what comes beyond counts as `(other)`."""
MOST_DRAWN = 100
"""The same for a histogram, each of which is many lines."""
LONGEST = 64
OTHER = "(other)"

Labels = tuple[str, ...]
Delta = list[object]
"""Name, labels, and a number or the buckets with the sum behind them, as JSON can carry it."""


def short(text: str) -> str:
    """A label of bounded length; two that differ stay different.

    >>> short("tenant"), len(short("x" * 1000))
    ('tenant', 64)
    """
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[: LONGEST - 9]}…{digest}"


class Sink(Protocol):
    """Where counts go."""

    def add(self, family: Family, labels: Labels, by: float = 1.0) -> None: ...
    def observe(self, family: Family, labels: Labels, value: float) -> None: ...


class Bounds:
    """Names of tasks and groups may come from anywhere, one for each user of a program even:
    whoever reads them must not pay for that."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def of(self, family: Family, labels: Labels) -> Labels:
        if not labels:
            return labels
        known = self._known.setdefault(family.name, set())
        first = labels[0]
        if first in known:
            return labels
        first = short(first)
        if first not in known:
            if len(known) >= (MOST_DRAWN if family.kind == "histogram" else MOST):
                return OTHER, *labels[1:]
            known.add(first)
        return first, *labels[1:]


class Counts:
    """All counts of a process, or of several. Any thread may call.

    >>> from headgate.telemetry.names import ENDED
    >>> here, there = Counts(), Counts()
    >>> here.add(ENDED, ("mail", "succeeded"), 2)
    >>> for delta in here.take():
    ...     there.merge(delta)
    >>> there.number(ENDED, ("mail", "succeeded"))
    2.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, Labels], float] = {}
        self._drawn: dict[tuple[str, Labels], list[float]] = {}
        """How many fell into each bucket and beyond the last, then their sum."""
        self._bounds = Bounds()

    def add(self, family: Family, labels: Labels, by: float = 1.0) -> None:
        key = family.name, labels
        with self._lock:
            # What is there under these very labels is within the bounds.
            if key in self._numbers:
                self._numbers[key] += by
            else:
                key = family.name, self._bounds.of(family, labels)
                self._numbers[key] = self._numbers.get(key, 0.0) + by

    def observe(self, family: Family, labels: Labels, value: float) -> None:
        key = family.name, labels
        with self._lock:
            drawn = self._drawn.get(key) or self._histogram(family, labels)
            drawn[bisect.bisect_left(family.buckets, value)] += 1
            drawn[-1] += value

    def merge(self, delta: Delta) -> None:
        """Add what another took out of its own."""
        name, texts, value = cast("tuple[str, list[str], float | list[float]]", delta)
        family, labels = BY_NAME[name], tuple(texts)
        if not isinstance(value, list):
            self.add(family, labels, value)
            return
        with self._lock:
            drawn = self._histogram(family, labels)
            for n, more in enumerate(value):
                drawn[n] += more

    def take(self) -> Iterable[Delta]:
        """What was added since the last time; it counts elsewhere from now on."""
        with self._lock:
            numbers, self._numbers = self._numbers, {}
            drawn, self._drawn = self._drawn, {}
        for (name, labels), value in (*numbers.items(), *drawn.items()):
            yield [name, list(labels), value]

    def number(self, family: Family, labels: Labels) -> float:
        with self._lock:
            return self._numbers.get((family.name, labels), 0.0)

    def numbers(self, family: Family) -> list[tuple[Labels, float]]:
        with self._lock:
            return [(at[1], value) for at, value in self._numbers.items() if at[0] == family.name]

    def drawn(self, family: Family) -> list[tuple[Labels, list[float]]]:
        with self._lock:
            return [
                (at[1], list(value)) for at, value in self._drawn.items() if at[0] == family.name
            ]

    def _histogram(self, family: Family, labels: Labels) -> list[float]:
        key = family.name, self._bounds.of(family, labels)
        drawn = self._drawn.get(key)
        if drawn is None:
            drawn = self._drawn[key] = [0.0] * (len(family.buckets) + 2)
        return drawn
