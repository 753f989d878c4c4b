"""What the keeper counts and shows at `/metrics`; nothing, unless that was asked for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.worker.board import Board
from headgate.worker.options import WorkerOptions
from headgate.worker.place import Place

if TYPE_CHECKING:  # who asks for no metrics need not have the library for them
    from headgate.telemetry.counts import Delta
    from headgate.telemetry.gauges import Value
    from headgate.telemetry.serving import Serving

log = logging.getLogger("headgate.worker")


class Books:
    """Of all worker processes of a keeper, those that have ended included."""

    def __init__(self, options: WorkerOptions, places: Sequence[Place], board: Board) -> None:
        self._options = options
        self._places = places
        self._board = board
        self._serving: Serving | None = None

    def open(self) -> None:
        """Serve them, or raise `ConfigError`."""
        if self._options.metrics is None:
            return
        from headgate.telemetry.serving import Serving

        serving = Serving(self._options.key_metrics, self._gauges)
        log.info("metrics are at %s", serving.listen(self._options.metrics))
        self._serving = serving

    def look_at(self, url: str) -> None:
        """This is the store of the worker processes."""
        if self._serving is not None:
            self._serving.look_at(url)

    def merge(self, counts: Sequence[Delta]) -> None:
        """What a worker process has counted since it last told."""
        if self._serving is not None:
            self._serving.merge(counts)

    def process_lost(self) -> None:
        if self._serving is not None:
            from headgate.telemetry import names

            self._serving.count(names.PROCESSES_LOST)

    def renewal(self, result: str) -> None:
        if self._serving is not None:
            from headgate.telemetry import names

            self._serving.count(names.RENEWALS, result)

    def _gauges(self) -> list[Value]:
        """In a thread of the server: it only reads, and what it reads may be a moment old."""
        from headgate.telemetry import names

        stages = Counter(
            "stalled" if place.stalled else place.stage
            for place in self._places
            if place.stage != "empty"
        )
        states = (
            dict.fromkeys(("starting", "running", "stalled", "stopping", "cleaning"), 0) | stages
        )
        running = sum(row.running for row in self._board.rows())
        found: list[Value] = [(names.PROCESSES, (state,), n) for state, n in states.items()]
        return [*found, (names.RUNNING, (), running)]
