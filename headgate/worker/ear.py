"""An ear for a store's bell in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.stores.protocol import Bell, Order


class Ear:
    """Calls `heard` in the loop when the bell rings. `hears` is False where one must poll."""

    def __init__(self, bell: Bell, heard: Callable[[], None]) -> None:
        self._bell = bell
        self._call = heard
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._listen()

    @property
    def hears(self) -> bool:
        return self._fd is not None

    def awake(self, busy: bool) -> None:
        """Say whether there is work enough here: then nobody need ring."""
        self._bell.awake(busy)

    @property
    def attends(self) -> bool:
        return self._bell.attends

    def attend(self, order: Order, until: float) -> bool:
        """Let who hears the bell act on it."""
        return self._bell.attend(order, until)

    def dismiss(self) -> None:
        self._bell.dismiss()

    def _listen(self) -> None:
        self._fd = self._bell.fileno()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._rang)

    def _rang(self) -> None:
        # A bell may open itself anew while it is drained (its file was deleted), even under
        # the same number: watch afresh what it has then.
        self._deafen()
        self._bell.drain()
        self._listen()
        self._call()

    def _deafen(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None

    def close(self) -> None:
        self._deafen()
        self._bell.close()
