"""The watch of a worker that has nothing to do: who hears the bell answers it.

What is to be said then is known before. To wake the event loop first, and a thread from there,
takes as long as the claim itself; and where many workers are idle, most of them find that another
was quicker: of that their event loops hear nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headgate.backoff import grown
from headgate.stores.protocol import Exchange, Exchanged, Order
from headgate.threads import fail, settle, tell
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
    """`empty` looks in a row have found nothing, the last of them at that time. The event loop does
    not look at this before it is over."""

    def __init__(self, send: Send, empty: int, last: float) -> None:
        self._send = send
        self.empty = empty
        self._last = last
        self._until = 0.0
        self._answer: Exchanged | None = None
        self._error: BaseException | None = None

    def keep(
        self, ear: Ear, exchange: Exchange, seconds: float
    ) -> asyncio.Future[Exchanged | None]:
        """What came of it, as soon as that is more than nothing, or when the time is over. None: it
        was dismissed, and nothing is under way."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Exchanged | None] = loop.create_future()

        def act() -> float | None:
            try:
                self._answer = self._look(exchange)
            except BaseException as error:
                self._error = error
            return self._until if self._answer is None and self._error is None else None

        def done() -> None:
            if self._error is not None:
                tell(loop, fail, over, self._error)
            else:
                tell(loop, settle, over, self._answer)

        def drop() -> None:
            tell(loop, settle, over, None)

        self._until = time.monotonic() + seconds
        if not ear.attend(Order(act, done, drop), self._until):
            over.set_result(None)
        return over

    def _look(self, exchange: Exchange) -> Exchanged | None:
        """In the thread that hears the bell. None: there was nothing, and it goes on."""
        late = self._last + gap(self.empty) - time.monotonic()
        if late > 0:
            time.sleep(late)
        last_one = time.monotonic() >= self._until
        answer = self._send(exchange)
        self._last = time.monotonic()
        if last_one or answer != Exchanged(wake_in=answer.wake_in):
            return answer
        self.empty += 1
        if answer.wake_in is not None:
            self._until = min(self._until, self._last + answer.wake_in + SOON)
        return None
