"""An ear for a store's bell: in an event loop, or in a thread that has nothing else to do."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable

from headgate.stores.protocol import Bell


class Ear:
    """Calls `heard` in the loop when the bell rings. `hears` is False where one must poll."""

    def __init__(self, bell: Bell, heard: Callable[[], None]) -> None:
        self._bell = bell
        self._call = heard
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._called = self._caller = -1
        """The two ends of a pipe, by which a thread that listens is called back."""

    @property
    def hears(self) -> bool:
        return self._bell.fileno() is not None

    def awake(self, busy: bool) -> None:
        """Say whether there is work enough here: then nobody need ring."""
        self._bell.awake(busy)

    # --- in the loop --------------------------------------------------------------------------

    def listen(self) -> None:
        """The loop hears the bell from now on."""
        if self._fd is None:
            self._fd = self._bell.fileno()
            if self._fd is not None:
                self._loop.add_reader(self._fd, self._rang)

    def _rang(self) -> None:
        # A bell may open itself anew while it is drained (its file was deleted), even under
        # the same number: watch afresh what it has then.
        self._deafen()
        self._bell.drain()
        self.listen()
        self._call()

    def _deafen(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None

    # --- in a thread --------------------------------------------------------------------------

    def lend(self) -> None:
        """The loop does not hear the bell until it listens again: a thread does."""
        self._deafen()
        if self._called < 0:
            self._called, self._caller = os.pipe()
            os.set_blocking(self._called, False)
            os.set_blocking(self._caller, False)

    def heard(self, seconds: float, not_before: float) -> bool:
        """In the thread: True when the bell has rung, not before that time, or when so many seconds
        are over; False: called back."""
        fd = self._bell.fileno()
        if not self._until(seconds, *(() if fd is None else (fd,))):
            return False
        self._bell.drain()
        return self._until(not_before - time.monotonic())

    def _until(self, seconds: float, *fds: int) -> bool:
        """Wait for one of these, and so long at most; False: called back."""
        if seconds <= 0:
            return True
        poll = select.poll()
        for fd in (self._called, *fds):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._called in ready:
            os.read(self._called, 65536)
        return self._called not in ready

    def call_back(self) -> None:
        """Whoever listens in a thread need not wait any longer."""
        try:
            os.write(self._caller, b"!")
        except BlockingIOError:
            return  # it was called often enough

    def close(self) -> None:
        self._deafen()
        self._bell.close()
        if self._called >= 0:
            os.close(self._called)
            os.close(self._caller)
