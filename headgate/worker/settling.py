"""Bring the store up to date on one attempt, for what can only be done to slots it knows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headgate.stores.protocol import Exchange, Store
from headgate.worker.chains import Chains


class Settler:
    """An attempt that followed another runs in slots which the store knows under the token of
    that one, until the next round trip. Who wants to extend or release them waits for it."""

    def __init__(self, store: Store, worker: str, chains: Chains, wake: Callable[[], None]) -> None:
        self._store = store
        self._worker = worker
        self._chains = chains
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def settle(self, token: int) -> None:
        """From any thread: return when the store knows that this attempt runs."""
        if token not in self._chains.untold:
            return
        if threading.get_ident() != self._thread:
            asyncio.run_coroutine_threadsafe(self._settled(token), self._loop).result()
            return
        # A coroutine calls what blocks. The loop stands still, so no round trip can be waited
        # for; one may be under way, and what is sent here is right whichever comes first.
        sent = self._chains.send_one(token)
        answer = self._store.exchange(Exchange(self._worker, passed=sent.passed))
        self._chains.confirmed(sent, answer.stale)

    async def _settled(self, token: int) -> None:
        if token in self._chains.untold:
            future = self._loop.create_future()
            self._waiting.append((token, future))
            self._wake()
            await future

    def heard(self, error: Exception | None = None) -> None:
        """A round trip has ended, with this error or well."""
        waiting, self._waiting = self._waiting, []
        for token, future in waiting:
            if future.done():
                continue  # whoever waited was stopped
            if error is not None:
                future.set_exception(error)
            elif token not in self._chains.untold:
                future.set_result(None)
            else:  # it started after that round trip was put together
                self._waiting.append((token, future))
                self._wake()
