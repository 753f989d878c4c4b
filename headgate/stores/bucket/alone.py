"""One process of a machine at a time, for what several would only do twice."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

TURN = 3.0
"""Seconds for which a turn is left to who has it, unless it says that it needs longer: whoever it
was may have died, or have nothing more to do."""


class Alone:
    """A turn among the processes that share this file. No promise rests on it: at worst a thing is
    done twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ours = False

    def take(self) -> bool:
        """False: somebody else has it."""
        try:
            self._ours = self._taken()
        except OSError:
            self._ours = True  # the file cannot be had: then there is nobody to share it with
        return self._ours

    def _taken(self) -> bool:
        with self._path.open("a") as file:
            # Closes the race of two that find it free at once: the second looks after the first.
            fcntl.flock(file, fcntl.LOCK_EX)
            seen = os.fstat(file.fileno())
            if not self._ours and seen.st_size and 0 <= time.time() - seen.st_mtime < TURN:
                return False
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
        return True

    def keep(self) -> None:
        """It takes longer."""
        if self._ours:
            with suppress(OSError):
                os.utime(self._path)

    def over(self) -> None:
        if self._ours:
            self._ours = False
            with suppress(OSError):
                os.truncate(self._path, 0)
