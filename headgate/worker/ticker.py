"""The ticker: submits by the clock what is scheduled, in every worker, together with all others.

Nobody leads, so there is nobody to lose: each looks when the next tick is due and does what it
finds; the store sees to it that each tick is done once.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from headgate.errors import StoreError
from headgate.schedules.rounds import SAFETY, Rounds
from headgate.stores.protocol import Store
from headgate.threads import in_thread
from headgate.waiting import rung_within
from headgate.worker.ear import Ear

log = logging.getLogger("headgate.worker")

POLL = 1.0
"""Seconds between looks where no bell can be heard."""
_AFTER_ERROR = 1.0
_LAST = 2.0


class Ticker:
    """Runs rounds until it is cancelled. In a thread of its own: what else a worker does now and
    then (pruning) may take long."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rounds = Rounds(store)
        self._woken = asyncio.Event()
        self._rang = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="headgate-ticker")
        ear: Ear | None = None
        try:
            # Opened before the first look: what changes after that look rings.
            bell = await loop.run_in_executor(thread, self._store.bell, "ticks")
            ear = Ear(bell, self._hear)
            while True:
                try:
                    wait = await loop.run_in_executor(thread, self._round)
                except StoreError as error:
                    log.warning("ticking failed (%s); it will be tried again", error)
                    wait = _AFTER_ERROR
                except Exception:
                    # Whatever one schedule brings out of a library, the others must tick on.
                    log.exception("ticking failed; it will be tried again")
                    wait = _AFTER_ERROR
                await self._rest(wait if ear.hears else min(wait, POLL))
        finally:
            if ear is not None:
                ear.close()
            # A round under way ends in a moment; the store may be closed after us.
            thread.shutdown(wait=False, cancel_futures=True)
            await asyncio.wait([asyncio.create_task(in_thread(thread.shutdown))], timeout=_LAST)

    def _hear(self) -> None:
        self._rang = True
        self._woken.set()

    def _round(self) -> float:
        if self._rang:
            self._rang = False
            self._rounds.changed()
        return self._rounds.round()

    async def _rest(self, seconds: float) -> None:
        if seconds == float("inf"):
            seconds = 360 * SAFETY  # a library is missing here: installing one takes a restart
        if await rung_within(self._woken, seconds):
            self._woken.clear()
