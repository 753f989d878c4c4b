"""What the dashboard tells Prometheus: the store as it is, and what the dashboard saw end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from headgate.telemetry import gauges, names
from headgate.telemetry.counts import Counts
from headgate.telemetry.exposition import Counted, Gauges

if TYPE_CHECKING:
    from headgate.stores.protocol import EndRecord, Store
    from headgate.web.sampler import Sample


class Metrics:
    """Counts from the first look on; what was before is not counted."""

    def __init__(self, store: Callable[[], Store], keyed: frozenset[str]) -> None:
        self._store = store
        self._keyed = keyed
        self._counts = Counts()
        self._past = gauges.Past(self._counts, keyed)
        self._lock = threading.Lock()

    def count(self, ends: Sequence[EndRecord]) -> None:
        self._past.note_ends(ends)

    def text(self, sample: Sample) -> bytes:
        store = self._store()
        with self._lock:
            # Two at once would count the same events twice.
            self._past.note_events(store, rejected=True)
        held = gauges.held_keys(store, self._keyed)
        values = [*gauges.values(sample, store.schedules(), held), (names.UP, (), 1.0)]
        registry = CollectorRegistry()
        registry.register(Gauges(lambda: values))
        registry.register(Counted(self._counts))
        return generate_latest(registry)
