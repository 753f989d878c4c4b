"""The pulse: an event loop proves that it still turns, by writing the time on the board."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.clock import Clock
from headgate.worker.board import Board

EVERY = 1.0


class Pulse:
    """Writes one row of the board, and the earliest time-out for the keeper to enforce."""

    def __init__(self, board: Board, place: int, clock: Clock) -> None:
        self._board = board
        self._place = place
        self._clock = clock
        self.runs = board.runs(place)
        self._starts = 0

    def beat(self, deadline: float | None, running: int) -> None:
        self._board.work(self._place, deadline or 0.0, running)
        self._board.pulse(self._place, self._clock.boot())

    def note_start(self, deadline: float) -> None:
        """At once, not with the next beat: the new attempt may be what stops the loop."""
        row = self._board.row(self._place)
        if not row.deadline or deadline < row.deadline:
            self._board.work(self._place, deadline, row.running + 1)

    def note_ahead(self, token: int) -> None:
        """A job that was reserved ahead starts now: the store does not know it yet."""
        self._board.note_start(self._place, self._starts, token)
        self._starts += 1

    async def run(self, state: Callable[[], tuple[float | None, int]]) -> None:
        while True:
            self.beat(*state())
            await asyncio.sleep(EVERY)
