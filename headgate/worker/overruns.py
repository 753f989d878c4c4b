"""Over-runs: code that still ran after its worker was declared dead, reported to the store.

A worker stops its code before its lease can end. Code that outlives the lease all the same (a
thread that ignores the stop, a process that was frozen) is recorded once for each attempt, and
shown by `headgate doctor`. A process that is killed before it has reported is reported by its
supervisor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable
from concurrent.futures import Executor

from headgate.clock import Clock
from headgate.errors import StoreError
from headgate.stores.protocol import Store
from headgate.worker.attempt import Attempt
from headgate.worker.runs import Run, Runs

log = logging.getLogger("headgate.worker")

_LAST_TRIES = 10.0
"""Seconds for which a worker that has nothing else left to do tries to report them."""


class Overruns:
    """Belongs to one event loop; the store is called in `thread`."""

    def __init__(
        self, store: Store, worker: str, clock: Clock, thread: Executor, runs: Runs
    ) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._thread = thread
        self._runs = runs
        self._counted: set[int] = set()
        self._due: dict[int, Run] = {}
        self._telling: asyncio.Task[None] | None = None

    def count(self, attempts: Iterable[Attempt]) -> None:
        """This worker is dead, and these still run."""
        for attempt in attempts:
            log.error(
                "job %s (%s) still runs though the lease of its worker was lost: others may hold"
                " its slots by now",
                *(attempt.claimed.job, attempt.claimed.task),
            )
            self._count(Run(attempt.claimed.job, attempt.token))

    def refused(self, tokens: Container[int]) -> None:
        """This worker is dead, and these had ended before it knew. The time of the end tells
        whether the code ran on after the loss, or was only reported too late."""
        for run in self._runs.all():
            if run.token in tokens:
                self._count(run)

    def _count(self, run: Run) -> None:
        if run.token in self._counted:
            return
        self._counted.add(run.token)
        self._due[run.token] = run
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell(), name="headgate-overruns")

    async def _tell(self) -> None:
        loop, pause = asyncio.get_running_loop(), 0.05
        while self._due:
            token, run = next(iter(self._due.items()))
            try:
                new = await loop.run_in_executor(self._thread, self._send, run)
            except StoreError as error:
                log.warning("the over-run of job %s is not recorded yet: %s", run.job, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            else:
                del self._due[token]
                if new and run.ended is not None:
                    log.error("job %s ran on after the lease of its worker was lost", run.job)
        self._telling = None

    def _send(self, run: Run) -> bool:
        # Never 0 for one that has ended: that would say that it still ran.
        ago = 0.0 if run.ended is None else max(1e-6, self._clock.boot() - run.ended)
        return self._store.over_ran(run.job, run.token, self._worker, ago)

    async def close(self) -> None:
        """Nothing runs any more: report what is left to report."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=_LAST_TRIES)
        if self._telling is not None:
            self._telling.cancel()
            jobs = ", ".join(run.job for run in self._due.values())
            log.error("over-runs could not be recorded, of jobs %s", jobs)
