"""Where to begin to look for what is due.

What was due and has left stands at the front of its table. Where another session keeps such
dead rows from being removed, to pass over them takes the longer the more there are. Then it is
done only now and then; in between, the look begins at the time of the last one that began at
the front, for nobody puts a job before the present. Who does all the same, because his
transaction took long, is found by the next look from the front.
"""

from __future__ import annotations

import time

SLOW = 0.001
"""Seconds that a look from the front may take without anything being done about it."""
PART = 20
"""Looks from the front take at most one in so many seconds."""
LONGEST = 1.0
"""At most so many seconds are between two of them."""


class Dues:
    """What one process remembers of its looks."""

    def __init__(self) -> None:
        self._took = 0.0
        self._fully = 0.0
        self._from = 0.0

    @property
    def since(self) -> float:
        """Where the next look begins; 0: at the front."""
        passed = time.monotonic() - self._fully
        if self._took < SLOW or passed > min(LONGEST, PART * self._took):
            return 0.0
        return self._from

    def saw(self, since: float, now: float, first: float | None, took: float) -> None:
        """A look that began there, at that time of the store's, found this to be due first."""
        if since == 0.0:
            self._fully, self._took = time.monotonic(), took
        self._from = now if first is None else min(now, first)
