"""Over-runs: code that went on after its worker was declared dead, counted and told.

Only for a worker that lets its jobs run on when its lease is lost. What the store is told is
recorded there once for each attempt, and shown by `headgate doctor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from headgate.clock import Clock
from headgate.errors import StoreError
from headgate.stores.protocol import Store
from headgate.worker.attempt import Attempt

log = logging.getLogger("headgate.worker")

_LAST_TRIES = 10.0
"""Seconds for which a worker that has nothing else left to do tries to tell them."""
_KEPT = 1000
"""So many ends are remembered before those are dropped that the store has accepted."""


@dataclass(frozen=True, slots=True)
class _Run:
    job: str
    task: str
    ended: float | None
    """By CLOCK_BOOTTIME; None: it still ran when we heard that we were dead."""


class Overruns:
    """Belongs to one event loop; the store is called in `thread`."""

    def __init__(
        self,
        store: Store,
        worker: str,
        clock: Clock,
        thread: Executor,
        unsent: Callable[[], Container[int]],
    ) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._thread = thread
        self._unsent = unsent
        """Tokens of the ends that the store has not accepted."""
        self._ended: dict[int, _Run] = {}
        self._keep = _KEPT
        self._counted: set[int] = set()
        self._due: dict[int, _Run] = {}
        self._telling: asyncio.Task[None] | None = None

    def note_end(self, attempt: Attempt) -> None:
        """Its code has ended. Should its end be refused, the time of this tells whether it had
        run on after the loss, or was only told of too late."""
        if len(self._ended) >= self._keep:
            unsent = self._unsent()
            self._ended = {token: run for token, run in self._ended.items() if token in unsent}
            self._keep = max(_KEPT, 2 * len(self._ended))
        claimed = attempt.claimed
        self._ended[attempt.token] = _Run(claimed.job, claimed.task, self._clock.boot())

    def count(self, attempts: Iterable[Attempt]) -> None:
        """We are dead, and these still run."""
        for attempt in attempts:
            self._count(attempt.token, _Run(attempt.claimed.job, attempt.claimed.task, None))

    def refused(self, tokens: Iterable[int]) -> None:
        """We are dead, and these had ended before we knew."""
        for token in tokens:
            run = self._ended.pop(token, None)
            if run is not None:
                self._count(token, run)

    def _count(self, token: int, run: _Run) -> None:
        if token in self._counted:
            return
        self._counted.add(token)
        self._due[token] = run
        if run.ended is None:
            log.error(
                "job %s (%s) runs on though the lease of its worker was lost: others may hold its"
                " slots by now",
                *(run.job, run.task),
            )
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell(), name="headgate-overruns")

    async def _tell(self) -> None:
        loop, pause = asyncio.get_running_loop(), 0.05
        while self._due:
            token, run = next(iter(self._due.items()))
            try:
                new = await loop.run_in_executor(self._thread, self._send, token, run)
            except StoreError as error:
                log.warning("the over-run of job %s is not recorded yet: %s", run.job, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            else:
                del self._due[token]
                if new and run.ended is not None:
                    log.error(
                        "job %s (%s) had run on though the lease of its worker was lost",
                        *(run.job, run.task),
                    )
        self._telling = None

    def _send(self, token: int, run: _Run) -> bool:
        # Never 0 for one that has ended: that would say that it still ran.
        ago = 0.0 if run.ended is None else max(1e-6, self._clock.boot() - run.ended)
        return self._store.over_ran(run.job, token, self._worker, ago)

    async def close(self) -> None:
        """Nothing runs any more: tell what is left to tell."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=_LAST_TRIES)
        if self._telling is not None:
            self._telling.cancel()
            jobs = ", ".join(run.job for run in self._due.values())
            log.error("over-runs could not be recorded, of jobs %s", jobs)
