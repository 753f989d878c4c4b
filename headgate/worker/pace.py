"""How long jobs take here: only of what is known to be short may the next be reserved ahead."""

from __future__ import annotations

from collections import deque

from headgate.stores.protocol.claims import AHEAD

ENOUGH = 10
"""Measurements without which nothing is known about a task."""
_MEASURED = 100
_RECKONED_EVERY = 16


class Pace:
    """How long the attempts of each task take in this process.

    >>> pace = Pace()
    >>> for _ in range(ENOUGH):
    ...     pace.note("resize", 0.002)
    >>> pace.short
    {'resize': 0.002}
    """

    def __init__(self, bound: float = AHEAD) -> None:
        self.bound = bound
        """Seconds that a task may take at most, as a rule, for its jobs to be reserved ahead."""
        self.short: dict[str, float] = {}
        """The 95th percentile of each task's last attempts, for short tasks only."""
        self._last: dict[str, deque[float]] = {}
        self._news: dict[str, int] = {}

    def note(self, task: str, seconds: float) -> None:
        last = self._last.get(task)
        if last is None:
            last = self._last[task] = deque(maxlen=_MEASURED)
            self._news[task] = _RECKONED_EVERY - ENOUGH
        last.append(seconds)
        # To sort them at every end would cost more than many a job itself.
        self._news[task] += 1
        if self._news[task] == _RECKONED_EVERY:
            self._news[task] = 0
            self._reckon(task, last)

    def _reckon(self, task: str, times: deque[float]) -> None:
        usual = sorted(times)[(len(times) * 95 - 1) // 100]
        if usual <= self.bound:
            self.short[task] = usual
        else:
            self.short.pop(task, None)
