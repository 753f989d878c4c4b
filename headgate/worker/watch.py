"""The watch of a worker that has nothing to do: the thread of the store waits for the bell and
answers it.

What is to be said then is known before. To go through the event loop first would take as long as
the claim itself, and where many workers are idle most of them find that another was quicker: of
that their event loops hear nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.backoff import grown
from headgate.stores.protocol import Exchange, Exchanged
from headgate.worker.ear import Ear

LONGEST_GAP = 0.02
"""Seconds, at most, between two looks that a bell asks for, where they keep finding nothing."""

SOON = 0.001
"""Seconds after the time at which something is due: then it is."""

Send = Callable[[Exchange], Exchanged]


def gap(empty: int) -> float:
    """Seconds between two such looks, after so many that found nothing. Others' ends ring too."""
    return grown(empty, 0.001, LONGEST_GAP) if empty else 0.0


class Watch:
    """For so many `seconds`, after `empty` looks in a row that found nothing, the last of them at
    that time."""

    def __init__(self, ear: Ear, seconds: float, empty: int, last: float) -> None:
        self._ear = ear
        self._until = time.monotonic() + seconds
        self.empty = empty
        self._last = last

    def answer(self, send: Send, exchange: Exchange) -> Exchanged | None:
        """In the thread: what came of it, as soon as that is more than nothing, or the time is
        over. None: called back, and nothing is under way."""
        while self._ear.heard(self._until - time.monotonic(), self._last + gap(self.empty)):
            over = time.monotonic() >= self._until
            answer = send(exchange)
            if over or answer != Exchanged(wake_in=answer.wake_in):
                return answer
            self.empty += 1
            self._last = time.monotonic()
            if answer.wake_in is not None:
                self._until = min(self._until, self._last + answer.wake_in + SOON)
        return None
