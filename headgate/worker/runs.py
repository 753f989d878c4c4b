"""The attempts of one worker process, in memory that outlives it.

The supervisor reads this memory after it has killed a process that could not report what it
ran. One row per attempt: job, token, and when its code ended. The rows of ended attempts are used
again, the oldest first.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

ROWS = 4096
"""Attempts that run beyond this number at once are not noted."""

_ROW = struct.Struct("qd36s4x")
SIZE = ROWS * _ROW.size


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt."""

    job: str
    token: int
    ended: float | None = None
    """When its code ended, by CLOCK_BOOTTIME; None: it has not."""


class Runs:
    """The rows. One process writes them.

    >>> runs = Runs()
    >>> first = runs.start(7, "0197c0de-0000-7000-8000-000000000001")
    >>> second = runs.start(8, "0197c0de-0000-7000-8000-000000000002")
    >>> runs.end(first, 12.5)
    >>> [(run.token, run.ended) for run in runs.all()]
    [(7, 12.5), (8, None)]
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory = memoryview(bytearray(SIZE)) if memory is None else memory
        self._numbers = self._memory.cast("d")
        self._free = deque(range(ROWS))

    def start(self, token: int, job: str) -> int | None:
        """Note an attempt before its code starts; its row, None when all are taken."""
        if not self._free:
            return None
        row = self._free.popleft()
        # Killed in the middle of this line, the row names a job and a token that do not belong
        # together: the store knows no such attempt, and nothing comes of it.
        _ROW.pack_into(self._memory, row * _ROW.size, token, 0.0, job.encode())
        return row

    def end(self, row: int | None, now: float) -> None:
        """The code has ended."""
        if row is not None:
            self._numbers[row * _ROW.size // 8 + 1] = now
            self._free.append(row)

    def all(self) -> list[Run]:
        """What runs, and what ended last."""
        return [
            Run(job.rstrip(b"\0").decode(errors="replace"), token, ended or None)
            for token, ended, job in _ROW.iter_unpack(self._memory)
            if token
        ]

    def clear(self) -> None:
        """Nothing is known any more. For the supervisor, before the next process starts."""
        self._memory[:] = bytes(SIZE)
