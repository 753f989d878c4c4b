"""The loop of a worker process: claimer, runner and chores together, from start to stop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from headgate.app import App
from headgate.commands.running import Commands
from headgate.errors import StoreError
from headgate.threads import in_thread
from headgate.worker import pruner, sweeper
from headgate.worker.cells import Cells
from headgate.worker.chores import every
from headgate.worker.claimer import Claimer
from headgate.worker.execute import call_hooks
from headgate.worker.isolated import WardCell
from headgate.worker.options import DEFAULT_GRACE
from headgate.worker.overruns import Overruns
from headgate.worker.pulse import Pulse
from headgate.worker.queues import Queues
from headgate.worker.router import Router
from headgate.worker.runner import Runner
from headgate.worker.runs import Runs
from headgate.worker.ticker import Ticker

log = logging.getLogger("headgate.worker")

End = Literal["stopped", "burst", "retired", "dead", "stuck"]
"""`stuck`: code that could not be stopped still runs, so the process has to go with it."""

_BURST_POLL = 0.1
_AFTER_GRACE = 2.0
_FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one worker process works."""

    worker: str
    """The id under which it is registered."""
    name: str
    concurrency: int
    queues: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    burst: bool = False
    max_jobs: int | None = None
    grace: float = DEFAULT_GRACE
    fds: Sequence[int] = ()
    """Files whose being open tells the store that this worker lives."""
    module: str | None = None
    url: str | None = None
    scheduler: bool = True
    """It submits what is scheduled, like every worker."""


class WorkLoop:
    """Runs jobs until it is told to stop. All methods belong to one event loop."""

    def __init__(self, app: App, plan: Plan, pulse: Pulse | None = None) -> None:
        self._app = app
        self._plan = plan
        self._pulse = pulse
        self._store = app.store
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headgate-chores")
        self._queues = Queues(plan.queues, app.config.queues)
        self._claimer = Claimer(
            app,
            plan.worker,
            concurrency=plan.concurrency,
            queues=self._queues,
            router=Router(self._store, app.tasks),
            max_jobs=plan.max_jobs,
            groups=plan.groups,
            note_ahead=pulse.note_ahead if pulse is not None else lambda _: None,
        )
        runs = pulse.runs if pulse is not None else Runs()
        self._runner = Runner(
            app,
            self._claimer,
            self._claimer.chains,
            Cells(lambda: WardCell(plan.fds)),
            Commands(self._store, plan.fds),
            self._claimer.note_end,
            runs,
            grace=plan.grace,
            module=plan.module,
            url=plan.url,
            note_deadline=pulse.note_start if pulse is not None else lambda _: None,
        )
        self._claimer.runner = self._runner
        self._claimer.on_idle = self._idle
        self._claimer.on_dead = self.declared_dead
        self._overruns = Overruns(self._store, plan.name, app.clock, self._thread, runs)
        self._claimer.on_refused = self._overruns.refused
        self._end: End | None = None
        self._ending = asyncio.Event()
        self._stop_at = _FOR_EVER
        self._grace = plan.grace
        self._asking: asyncio.Task[None] | None = None
        self._started = False
        self._orders: list[str] = []
        self._obeying: asyncio.Task[None] | None = None

    # --- orders -------------------------------------------------------------------------------

    def stop(self, timeout: float, grace: float | None = None) -> None:
        """Claim nothing new; wait `timeout` seconds for what runs, then stop it. Called
        again, the shorter time counts."""
        if grace is not None and grace < self._grace:
            self._grace = grace
            self._runner.hurry(grace)
        self._finish("stopped", timeout)

    def lease(self, lost: bool) -> None:
        """The lease could not be renewed in time: claim nothing and stop all that runs, until it
        could."""
        self._claimer.accept(not lost and self._end is None)
        if lost:
            self._runner.stop_all("lease", "the lease of the worker could not be renewed")
        self._claimer.wake()

    def declared_dead(self) -> None:
        """Others may hold its slots by now, and nothing that it says counts any more: what still
        runs has over-run. Stop it, then end."""
        self._overruns.count(self._runner.attempts.values())
        self._finish("dead", 0.0)

    def order(self, what: str) -> None:
        """Something that only the app understands; one at a time, in the order they came, and
        none before the app has started."""
        self._orders.append(what)
        if len(self._orders) == 1 and self._started:
            self._obeying = asyncio.create_task(self._obey())

    async def _obey(self) -> None:
        while self._orders:
            for hook in self._app.hooks.order:
                try:
                    if await hook(self._orders[0]):
                        await self._declare(self._plan.worker)
                        self._claimer.know_tasks()
                        self._claimer.wake()
                except Exception:
                    # Whatever is wrong with an order, the work goes on.
                    log.exception("the order %r failed", self._orders[0])
            self._orders.pop(0)

    def _finish(self, end: End, timeout: float) -> None:
        if self._end is None or end == "dead":
            self._end = end
        self._stop_at = min(self._stop_at, self._loop.time() + timeout)
        self._claimer.accept(False)
        self._claimer.wake()
        self._ending.set()

    # --- from start to stop -------------------------------------------------------------------

    @property
    def running(self) -> int:
        return self._runner.running

    async def run(self, ready: Callable[[], None] = lambda: None) -> End:
        """`ready` is called once the worker has started and may claim."""
        with self._app.kept_open():
            return await self._run(ready)

    async def _run(self, ready: Callable[[], None]) -> End:
        await self._declare()
        await call_hooks(self._app.hooks.worker_start, "on_worker_start")
        self._runner.context = contextvars.copy_context()
        ready()
        self._started = True
        if self._orders:
            self._obeying = asyncio.create_task(self._obey())
        claiming = asyncio.create_task(self._claimer.run(), name="headgate-claimer")
        chores = [asyncio.create_task(chore) for chore in self._chores()]
        try:
            await self._until_told(claiming)
            stuck = not await self._wind_down()
            self._claimer.closing = True
            self._claimer.wake()
            await claiming
            await self._overruns.close()
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            self._thread.shutdown(wait=False)
        await call_hooks(self._app.hooks.worker_stop, "on_worker_stop")
        if stuck:
            return "stuck"
        await self._runner.close()
        assert self._end is not None
        return self._end

    async def _declare(self, worker: str = "") -> None:
        """Tell the store what the app declares, in place of what it declared before; with the
        worker's id, also what it knows from now on."""
        said = replace(self._app.publication(self._plan.name), worker=worker)
        await in_thread(self._store.publish, said)
        schedules = self._app.declared_schedules(self._plan.name)
        await in_thread(self._store.declare_schedules, schedules)

    async def _until_told(self, claiming: asyncio.Task[None]) -> None:
        told = asyncio.create_task(self._ending.wait())
        await asyncio.wait([told, claiming], return_when=asyncio.FIRST_COMPLETED)
        if claiming.done():
            told.cancel()
            claiming.result()  # the claimer ends only by an error before it is told to

    async def _wind_down(self) -> bool:
        """Wait for what runs, then stop it; False when some of it does not stop."""
        if self._end == "dead":
            self._runner.stop_all("stale", "the worker was declared dead")
        while self._runner.running and self._loop.time() < self._stop_at:
            await self._empty_or(self._stop_at)
        if self._runner.running:
            self._runner.stop_all("shutdown", "the worker is stopping")
        told = self._loop.time()
        while self._runner.running and self._loop.time() < told + self._grace + _AFTER_GRACE:
            await self._empty_or(told + self._grace + _AFTER_GRACE)
        for attempt in self._runner.attempts.values():
            log.error("job %s (%s) does not stop", attempt.claimed.job, attempt.claimed.task)
        return not self._runner.running

    async def _empty_or(self, when: float) -> None:
        """Until nothing runs, the time has come, or another order came in."""
        self._ending.clear()
        waits = [
            asyncio.create_task(self._runner.wait_empty()),
            asyncio.create_task(self._ending.wait()),
        ]
        timeout = None if when == _FOR_EVER else max(0.0, when - self._loop.time())
        _, left = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in left:
            wait.cancel()

    # --- chores -------------------------------------------------------------------------------

    def _chores(self) -> list[Coroutine[Any, Any, None]]:
        store, retention = self._store, self._app.config.retention
        chores: list[Coroutine[Any, Any, None]] = [
            every(sweeper.EVERY, "sweeping", lambda: sweeper.sweep(store), self._thread),
            every(pruner.EVERY, "pruning", lambda: pruner.prune(store, retention), self._thread),
        ]
        if store.capabilities.compacts:
            chores.append(every(sweeper.COMPACT_EVERY, "compacting", store.compact, self._thread))
        if self._pulse is not None:
            chores.append(self._pulse.run(self._state))
        if self._plan.scheduler:
            chores.append(Ticker(store).run())
        return chores

    def _state(self) -> tuple[float | None, int]:
        return self._runner.earliest_deadline(), self._runner.running

    # --- burst, and the last job of a process -------------------------------------------------

    def _idle(self) -> None:
        if self._claimer.spent:
            self._finish("retired", _FOR_EVER)
        elif self._plan.burst and self._claimer.idle and self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_rest())

    async def _ask_for_rest(self) -> None:
        try:
            rest = await self._loop.run_in_executor(
                self._thread,
                self._store.remaining,
                frozenset(self._app.tasks),
                *(self._plan.queues, self._queues.closed),
            )
        except StoreError as error:
            log.warning("what is left could not be counted (%s)", error)
            rest = 1
        self._asking = None
        if rest == 0 and self._claimer.idle:
            self._finish("burst", _FOR_EVER)
        else:
            # Somebody else may be running the last job, or a retry be due soon.
            self._loop.call_later(_BURST_POLL, self._claimer.wake)
