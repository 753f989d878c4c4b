"""The courier: takes what a worker has to say to the store, and brings back the answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.stores.protocol import Exchange, Exchanged, Store
from headgate.threads import OwnThread


class Courier:
    """Belongs to the event loop; the store is called in one thread of its own, or by who keeps
    watch. `clock` is that of leases."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._thread = OwnThread("headgate-store")
        self._trips: list[float] = []
        self._used = 0.0
        self.sent_at = 0.0
        """When the last round trip was sent, on the clock of leases."""

    async def carry(self, exchange: Exchange) -> Exchanged:
        """One round trip."""
        return await self._thread.call(self.trip, exchange)

    async def beside(self, exchange: Exchange) -> Exchanged:
        """One that does not count as such: something is told alone."""
        return await self._thread.call(self._call, exchange)

    def trip(self, exchange: Exchange) -> Exchanged:
        """One round trip, in this thread."""
        began, self.sent_at = time.monotonic(), self._clock()
        try:
            return self._call(exchange)
        finally:
            self._trips.append(time.monotonic() - began)

    def _call(self, exchange: Exchange) -> Exchanged:
        used = time.thread_time()
        try:
            return self._store.exchange(exchange)
        finally:
            self._used += time.thread_time() - used

    def trips(self) -> list[float]:
        """How long each took that was made since this was last asked."""
        trips, self._trips = self._trips, []
        return trips

    def used(self) -> float:
        """Seconds of a processor that this thread and the round trips have used."""
        return time.thread_time() + self._used

    def close(self) -> None:
        self._thread.close()
