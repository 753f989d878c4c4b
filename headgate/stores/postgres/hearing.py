"""A bell as one who listens has it: rung by the thread that hears the server, or by nobody."""

from __future__ import annotations

import threading
from typing import Protocol

from headgate.stores.protocol import Order, Unattended
from headgate.stores.sqlite.bell import MemoryBell, readable

POLL = 0.05
"""Seconds between two looks where nothing can be heard."""


class Listener(Protocol):
    """Who hears the server."""

    serving: bool
    """It does, and carries out orders."""

    def attend(self, what: str) -> None:
        """Somebody waits again."""
        ...

    def looks_by(self, time: float) -> bool:
        """See to it that orders are looked at by then; False: nobody looks at any."""
        ...


class ServerBell(MemoryBell):
    """A bell that our listener rings. It carries out orders too: to wake another thread for that,
    through the event loop, takes as long as a claim does."""

    def __init__(self, listener: Listener, what: str, listeners: list[MemoryBell]) -> None:
        super().__init__(listeners)
        self._listener = listener
        self.what = what
        self.busy = False
        """Nobody waits on it now: its ear may close."""
        self._orders = threading.Lock()
        self._order: Order | None = None
        self._until = 0.0
        self._rung = False
        """Since the order was last carried out."""
        self._at_work = False
        self._dismissed = False

    def awake(self, busy: bool) -> None:
        if self.busy != busy:
            self.busy = busy
            if not busy:
                self._listener.attend(self.what)

    def ring(self) -> None:
        with self._orders:
            if self._order is not None:
                self._rung = True
            else:
                # Not after the lock is given back: an order given in between would not know of it.
                super().ring()

    # --- orders -------------------------------------------------------------------------------

    @property
    def attends(self) -> bool:
        return self._listener.serving

    def attend(self, order: Order, until: float) -> bool:
        with self._orders:
            # Rung before this line, it is for the caller to answer; after it, for the listener.
            # `ring` waits for the same lock, so that no ring is for neither.
            if readable(self._read, 0.0):
                return False
            self._order, self._until = order, until
            self._rung = self._dismissed = False
        if self._listener.looks_by(until):
            return True
        with self._orders:
            # The listener has ended. If it has dropped the order first, that was told.
            given, self._order = self._order is order, None
            return not given

    def dismiss(self) -> None:
        with self._orders:
            order, self._dismissed = self._order, True
            # Decided and left under one lock: what the listener has begun by now is not dropped,
            # and what is left here it does not begin.
            if order is None or self._at_work:
                return
            self._leave()
        order.drop()

    def due(self, now: float) -> float | None:
        """Seconds until the order is to be carried out, if there is one."""
        with self._orders:
            if self._order is None:
                return None
            return 0.0 if self._rung else max(0.0, self._until - now)

    def obey(self) -> None:
        """In the thread of the listener: carry out the order."""
        with self._orders:
            order = self._order
            if order is None:
                return
            self._at_work, self._rung = True, False
        try:
            until = order.act()
        except BaseException:
            self._end(None)
            order.drop()
            raise
        # Not before the bell has left it: who hears of it may give the next order at once.
        if not self._end(until):
            (order.done if until is None else order.drop)()

    def _end(self, until: float | None) -> bool:
        """The order was carried out, and is to be again by then; False: it is not."""
        with self._orders:
            self._at_work = False
            if until is None or self._dismissed:
                self._leave()
                return False
            self._until = until
            return True

    def _leave(self) -> None:
        """Under the lock: there is no order any more, and what has rung is for who gave it."""
        self._order = None
        if self._rung:
            super().ring()

    def close(self) -> None:
        self.dismiss()
        super().close()


class PollingBell(Unattended):
    """Where nothing can be heard (behind a pooler): one must look, now and then."""

    def fileno(self) -> int | None:
        return None

    def drain(self) -> None:
        return

    def wait(self, timeout: float) -> bool:
        threading.Event().wait(max(0.0, min(timeout, POLL)))
        return True

    def close(self) -> None:
        return
