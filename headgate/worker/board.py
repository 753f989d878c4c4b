"""Memory shared by guard, keeper and worker processes: signs of life, without a store.

One row of numbers for each place of a worker process. All times are CLOCK_BOOTTIME, so they
mean the same in every process and count suspension. Each cell is one aligned double written
by one process only, so a reader sees an old value or a new one, never a mix.

Behind the rows, for each place a ring of the tokens that its process took from those reserved
ahead and started. The store hears of such a start later; after a crash the ring tells what
had started from what had not. Behind the rings, for each place its `Runs`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

from headgate.worker import runs
from headgate.worker.runs import Runs

STARTS = 4096
"""So many starts are remembered: more can never be unknown to the store at once."""

_CELLS = 8
_PULSE, _DEADLINE, _RENEWED, _LEASE, _RUNNING, _PID, _OUTLIVED = range(7)
_SIZE = 8 * (_CELLS + STARTS) + runs.SIZE


@dataclass(frozen=True, slots=True)
class Row:
    """What the board says about one worker process."""

    pulse: float
    """When its event loop last wrote; 0: not yet."""
    deadline: float
    """The earliest time-out among its running attempts; 0: none."""
    renewed: float
    """When the last renewal that was confirmed had been sent."""
    lease: float
    """Seconds; 0: this worker lives without a lease."""
    running: int
    pid: int
    """Of the worker process."""
    outlived: float
    """When the guard found it alive after its lease had ended; 0: never."""


class Board:
    """The shared memory itself; hand `fd` to a child and open it there.

    >>> board = Board.create(2)
    >>> board.pulse(0, 12.5)
    >>> board.row(0).pulse
    12.5
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.places = os.fstat(fd).st_size // _SIZE
        memory = memoryview(mmap.mmap(fd, _SIZE * self.places))
        starts, rows = 8 * _CELLS * self.places, 8 * (_CELLS + STARTS) * self.places
        self._cells = memory[:starts].cast("d")
        self._starts = memory[starts:rows].cast("q")
        self._runs = memory[rows:]

    @staticmethod
    def create(places: int) -> Board:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("headgate-board")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _SIZE * places)
        return Board(fd)

    def row(self, place: int) -> Row:
        at = place * _CELLS
        cells = self._cells
        return Row(
            cells[at + _PULSE],
            cells[at + _DEADLINE],
            cells[at + _RENEWED],
            cells[at + _LEASE],
            int(cells[at + _RUNNING]),
            int(cells[at + _PID]),
            cells[at + _OUTLIVED],
        )

    def rows(self) -> list[Row]:
        return [self.row(place) for place in range(self.places)]

    def clear(self, place: int) -> None:
        for cell in range(_CELLS):
            self._cells[place * _CELLS + cell] = 0.0

    def note_start(self, place: int, number: int, token: int) -> None:
        """The `number`th start of a reserved job in the process of this place."""
        self._starts[place * STARTS + number % STARTS] = token

    def started(self, place: int) -> frozenset[int]:
        """The tokens of the last starts, for whoever cleans up after the process."""
        return frozenset(self._starts[place * STARTS : (place + 1) * STARTS]) - {0}

    def forget_attempts(self, place: int) -> None:
        """The next process of this place has not started any."""
        self._starts[place * STARTS : (place + 1) * STARTS] = memoryview(bytes(8 * STARTS)).cast(
            "q"
        )
        self.runs(place).clear()

    def process(self, place: int, pid: int) -> None:
        self._cells[place * _CELLS + _PID] = float(pid)

    def runs(self, place: int) -> Runs:
        return Runs(self._runs[place * runs.SIZE : (place + 1) * runs.SIZE])

    def pulse(self, place: int, now: float) -> None:
        self._cells[place * _CELLS + _PULSE] = now

    def work(self, place: int, deadline: float, running: int) -> None:
        self._cells[place * _CELLS + _DEADLINE] = deadline
        self._cells[place * _CELLS + _RUNNING] = float(running)

    def outlived(self, place: int, now: float) -> None:
        self._cells[place * _CELLS + _OUTLIVED] = now

    def lease(self, place: int, seconds: float, sent: float) -> None:
        # The time first: a lease without its time would look long overdue to the guard.
        self._cells[place * _CELLS + _RENEWED] = sent
        self._cells[place * _CELLS + _LEASE] = seconds
