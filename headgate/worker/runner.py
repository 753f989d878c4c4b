"""Runs attempts: async ones in the loop, sync ones in threads, isolated ones and commands in
processes.

An attempt is over when its code has really ended, not when it was told to: until then it
keeps its slots, and is shown as overdue.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from headgate.app import App
from headgate.caps import refusal_error
from headgate.codec import visible
from headgate.commands.running import Commands, ends_with, grace_of
from headgate.errors import HeadgateError, StoreError
from headgate.jobs import Claimed, Failure, Finish, Refusal
from headgate.worker.attempt import Attempt, Desk
from headgate.worker.cells import C, Cells
from headgate.worker.chains import Chains, Hold
from headgate.worker.execute import delay_before_retry, run_async, run_sync
from headgate.worker.isolated import WardCell
from headgate.worker.logs import about
from headgate.worker.outcome import (
    Ending,
    Stop,
    StopKind,
    failure_of,
    finish,
    refused,
    refused_followup,
)
from headgate.worker.runs import Runs
from headgate.worker.source import source_of

log = logging.getLogger("headgate.worker")

OVERDUE_AFTER = 1.0
"""Seconds that code may take to end after it was told to, before it is shown as overdue."""
_MOST_THREADS = 10_000
_NEXT_TRY = 0.2

Ended = Callable[[int, Finish | None], None]


class Runner:
    """All attempts that run in this process. Lives in one event loop."""

    def __init__(
        self,
        app: App,
        desk: Desk,
        chains: Chains,
        cells: Cells[WardCell],
        commands: Commands,
        ended: Ended,
        runs: Runs,
        *,
        grace: float,
        module: str | None = None,
        url: str | None = None,
        note_deadline: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._desk = desk
        self._chains = chains
        self._cells = cells
        self._commands = commands
        self._ended = ended
        self._runs = runs
        self.grace = grace
        self._module = module
        self._url = url
        self._note_deadline = note_deadline
        kept = app.config.retention.of()
        self._forgotten = frozenset(state for state, seconds in kept.items() if seconds == 0)
        """Ends of which nothing is kept."""
        # Threads are made on need and the claimer keeps their number at the concurrency. The
        # pool itself does not: code inside `ctx.released()` waits in its thread for other
        # jobs, which then need threads beside it.
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="headgate-job")
        self._chores = ThreadPoolExecutor(1, thread_name_prefix="headgate-overdue")
        self._loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        """The context variables as every job finds them. The next job is started by the one that
        ended: in that one's context, it would find what was left there."""
        self.attempts: dict[int, Attempt] = {}
        self.granted_at = 0.0
        """When the last claim that was answered had been sent: it granted what starts now,
        or left the slots standing in which it follows."""
        self._unaccounted: deque[tuple[Attempt, Ending, float]] = deque()
        """Their code has ended after so many seconds, and others have followed them."""
        self._capped: dict[int, Attempt] = {}
        """Over as far as their code goes; the store may still refuse what follows from them."""
        self._timers: dict[int, list[asyncio.TimerHandle]] = {}
        self._coroutines: set[asyncio.Task[Any]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    # --- what the claimer wants to know -------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self.attempts)

    def by_turn(self) -> Mapping[str, int]:
        return Counter(attempt.claimed.turn for attempt in self.attempts.values())

    def by_queue(self) -> Mapping[str, int]:
        return Counter(attempt.claimed.queue for attempt in self.attempts.values())

    def places(self) -> Mapping[str, int]:
        """By chain, the attempts whose slots are likely to go to the next one soon."""
        short, since = self._chains.pace.short, time.monotonic() - self._chains.longest_wait
        if not short:
            return {}
        return Counter(
            attempt.hold.chain
            for attempt in self.attempts.values()
            if attempt.claimed.task in short
            and attempt.began > since
            and attempt.stop is None
            and attempt.holding
        )

    def earliest_deadline(self) -> float | None:
        deadlines = [a.deadline for a in self.attempts.values() if a.deadline is not None]
        return min(deadlines, default=None)

    # --- start --------------------------------------------------------------------------------

    def start(self, claimed: Claimed) -> None:
        """Start an attempt in slots of its own."""
        hold = self._chains.granted(claimed)
        if not self._begin(claimed, hold):
            self._go_on(hold, passes=True)

    def start_reserved(self) -> None:
        """Of what was reserved, start what need not wait for anything."""
        for hold, claimed in self._chains.fill():
            if not self._begin(claimed, hold):
                self._go_on(hold, passes=True)

    def _go_on(self, hold: Hold, *, passes: bool) -> bool:
        """Start what follows in these slots, in the same step of the loop; False: nothing does."""
        while (claimed := self._chains.ended(hold, passes=passes)) is not None:
            if self._begin(claimed, hold):
                return True
        return False

    def _begin(self, claimed: Claimed, hold: Hold) -> bool:
        """False: it cannot be run, and has ended with that."""
        try:
            task = self._app.tasks[claimed.task].for_job(claimed.options)
        except (KeyError, HeadgateError, ValueError) as error:
            failure = failure_of(error)
            if isinstance(error, KeyError):
                failure = Failure("UnknownTask", f"no task {claimed.task!r} in this worker")
            self._refuse(claimed, failure)
            return False
        began = time.monotonic()
        attempt = Attempt(claimed, task, self._desk, hold, began, self.granted_at)
        self.attempts[claimed.token] = attempt
        attempt.row = self._runs.start(claimed.token, claimed.job)
        self._empty.clear()
        if self._app.meter is not None:
            self._app.meter.started(claimed, began)
        if attempt.timeout is not None:
            attempt.deadline = self._app.clock.boot() + attempt.timeout
            self._note_deadline(attempt.deadline)
            self._later(attempt, attempt.timeout, self._timed_out, attempt)
        if task.command is not None:
            self._in_background(self._command(attempt))
        elif task.isolate == "process":
            self._in_background(self._isolated(attempt))
        elif task.is_async:
            self._start_async(attempt)
        else:
            self._start_thread(attempt)
        return True

    def _refuse(self, claimed: Claimed, failure: Failure) -> None:
        told = Finish(claimed.token, "failed", "unusable", error=failure)
        log.error("job %s cannot be run: %s", claimed.job, failure.message, extra=about(claimed))
        if self._app.meter is not None:
            self._app.meter.ended(claimed, None, told)
        self._ended(claimed.token, told)

    def _start_async(self, attempt: Attempt) -> None:
        task = self._loop.create_task(self._run_async(attempt), context=self.context.copy())

        def halt(_: Stop) -> None:
            task.cancel()
            if not attempt.entered and not attempt.unstarted:
                # Cancelled before its first step: nothing of it will ever run.
                attempt.unstarted = True
                self._loop.call_soon(self._over, attempt, Ending("unstarted"))

        attempt.halt = halt

    async def _run_async(self, attempt: Attempt) -> None:
        attempt.entered = True
        claimed, hooks = attempt.claimed, self._app.hooks
        try:
            ending = await run_async(
                attempt.task, claimed.args, attempt.context(), hooks, claimed.errors
            )
        except BaseException as error:
            ending = _without_end(attempt, error)
        self._over(attempt, ending)

    def _start_thread(self, attempt: Attempt) -> None:
        claimed, hooks = attempt.claimed, self._app.hooks
        context = self.context.copy()

        def wait_for(awaitable: Awaitable[Any]) -> Any:
            # SystemExit thrown in the loop would end it; it belongs to the thread of the job.
            async def main() -> tuple[Any, BaseException | None]:
                try:
                    return await awaitable, None
                except (SystemExit, KeyboardInterrupt) as error:
                    return None, error

            value, error = asyncio.run_coroutine_threadsafe(main(), self._loop).result()
            if error is not None:
                raise error
            return value

        def run() -> None:
            try:
                ending = context.run(
                    run_sync,
                    *(
                        attempt.task,
                        claimed.args,
                        attempt.context(),
                        hooks,
                        claimed.errors,
                        wait_for,
                    ),
                )
            except BaseException as error:
                ending = _without_end(attempt, error)
            self._loop.call_soon_threadsafe(self._over, attempt, ending)

        self._threads.submit(run)

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine, context=self.context.copy())
        self._coroutines.add(task)
        task.add_done_callback(self._coroutines.discard)

    async def _isolated(self, attempt: Attempt) -> None:
        try:
            source = source_of(attempt.task, self._module, self._url)
        except HeadgateError as error:
            self._over(attempt, refused("import", error))
            return
        cell = await self._take_cell(attempt, self._cells)
        if cell is None:
            self._over(attempt, Ending("unstarted"))
            return
        attempt.halt = lambda stop: cell.halt(stop, self.grace)
        try:
            ending = await cell.run(attempt, source)
        except Exception as error:
            await cell.destroy()
            ending = _without_end(attempt, error)
        finally:
            attempt.halt = lambda _: None
            self._cells.give_back(cell)
        self._over(attempt, ending)

    async def _command(self, attempt: Attempt) -> None:
        cells = self._commands.cells
        cell = await self._take_cell(attempt, cells)
        if cell is None:
            self._over(attempt, Ending("unstarted"))
            return
        attempt.halt = lambda stop: cell.halt(stop, grace_of(attempt, stop, self.grace))
        try:
            ending = await self._commands.run(attempt, cell, self._app.hooks)
        except Exception as error:
            await cell.destroy()
            ending = _without_end(attempt, error)
        finally:
            attempt.halt = lambda _: None
            cells.give_back(cell)
        self._over(attempt, ending)

    async def _take_cell(self, attempt: Attempt, cells: Cells[C]) -> C | None:
        """None: it was told to stop before it got one."""
        told = False
        while attempt.stop is None:
            try:
                return cells.take()
            except OSError as error:
                # No process, memory or descriptor is left for it, which is not the job's
                # fault: it keeps its place until others have ended.
                if not told:
                    log.warning("job %s waits for a process: %s", attempt.claimed.job, error)
                told = True
                await asyncio.sleep(_NEXT_TRY)
        return None

    # --- stop ---------------------------------------------------------------------------------

    def stop(self, token: int, kind: StopKind, reason: str) -> None:
        """Ask one attempt to stop; it is over when its code has ended."""
        attempt = self.attempts.get(token)
        if attempt is None:
            return
        if not attempt.ask_to_stop(Stop(kind, reason)):
            if attempt.task.command is not None and kind in ("shutdown", "lease"):
                # It has long to obey an earlier order, but no longer than its worker is there.
                attempt.halt(Stop(kind, reason))
            return
        if kind != "stale":
            self._later(attempt, OVERDUE_AFTER, self._overdue, attempt, kind)

    def stop_all(self, kind: StopKind, reason: str) -> None:
        for token in list(self.attempts):
            self.stop(token, kind, reason)

    def hurry(self, grace: float) -> None:
        """Repeat the order to those that still run, with less time to obey."""
        self.grace = grace
        for attempt in list(self.attempts.values()):
            if attempt.stop is not None:
                attempt.halt(Stop("shutdown", attempt.stop.reason))

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _timed_out(self, attempt: Attempt) -> None:
        reason = f"the attempt took longer than its time-out of {attempt.timeout:g} s"
        self.stop(attempt.token, "timeout", reason)

    def _overdue(self, attempt: Attempt, kind: StopKind) -> None:
        """The code goes on though it was told to stop: say so, and leave it its slots."""
        log.warning(
            "job %s (%s) was told to stop (%s) and still runs: it keeps its slots",
            *(attempt.claimed.job, attempt.claimed.task, kind),
            extra=about(attempt.claimed, reason=kind),
        )

        def tell() -> None:
            try:
                self._desk.settle(attempt.token)
                self._desk.store.overdue(attempt.token, kind)
            except StoreError as error:
                log.warning("job %s is not shown as overdue: %s", attempt.claimed.job, error)

        self._chores.submit(tell)

    # --- end ----------------------------------------------------------------------------------

    def _over(self, attempt: Attempt, ending: Ending) -> None:
        for timer in self._timers.pop(attempt.token, ()):
            timer.cancel()
        del self.attempts[attempt.token]
        passes = attempt.over()
        self._runs.end(attempt.row, self._app.clock.boot())
        self._unaccounted.append((attempt, ending, time.monotonic() - attempt.began))
        # Jobs that began together end together. First all that follow them begin, then it is
        # written down what ended: until then the slots stand idle.
        if not self._go_on(attempt.hold, passes=passes):
            self.account()
        elif len(self._unaccounted) == 1:
            # Behind those that begin with the next step of the loop, not between them.
            self._loop.call_soon(self._account_behind, context=self.context)

    def _account_behind(self) -> None:
        self._loop.call_soon(self.account, context=self.context)

    def account(self) -> None:
        """Write down what has ended; whoever tells the store calls this first."""
        while self._unaccounted:
            self._account(*self._unaccounted.popleft())

    def _account(self, attempt: Attempt, ending: Ending, ran: float) -> None:
        if attempt.task.isolate is None and attempt.task.command is None:
            self._chains.pace.note(attempt.claimed.task, ran)
        told = self._told(attempt, ending)
        if told is not None and told.followups and any(job.caps for job in told.followups):
            self._capped[attempt.token] = attempt
        if self._app.meter is not None:
            self._app.meter.ended(
                attempt.claimed, None if ending.kind == "unstarted" else ran, told
            )
        self._log(attempt, told)
        if not self.attempts:
            self._empty.set()
        self._ended(attempt.token, told)

    def _told(self, attempt: Attempt, ending: Ending) -> Finish | None:
        """What the store is to hear of this end; None: nothing, it is not ours to tell."""
        stop, task = attempt.stop, attempt.task
        if ending.kind == "raised" and ends_with(attempt, stop):
            # Killed for good: the end is its own, and not one to be tried again.
            stop, ending = None, msgspec.structs.replace(ending, again=False)
        told = finish(attempt.token, ending, stop, attempt.allowance, tuple(attempt.followups))
        if told is None:
            return None
        if task.on_end is not None:
            told = _with_jobs(attempt, told)
        # What a command wrote is forgotten by the pruner only, with its job.
        if told.outcome in self._forgotten and task.command is None:
            told = msgspec.structs.replace(told, keep=False)
        return told

    def heard(self, tokens: Iterable[int], refused: Iterable[tuple[int, Refusal]]) -> None:
        """The store has answered to these ends, and refused what follows from some."""
        if self._capped:
            for token, refusal in refused:
                self._refuse_followup(self._capped.pop(token), refusal)
            for token in tokens:
                self._capped.pop(token, None)

    def _refuse_followup(self, attempt: Attempt, refusal: Refusal) -> None:
        """It did not fit under a cap, so the attempt has not ended yet: it fails, and is tried
        again like after any error."""
        if self._app.meter is not None:
            self._app.meter.refused(refusal)
        error = refusal_error(refusal)
        delay = delay_before_retry(attempt.task, attempt.claimed.errors, error)
        told = refused_followup(attempt.token, error, attempt.allowance(), delay)
        if told.outcome in self._forgotten:
            told = msgspec.structs.replace(told, keep=False)
        self._log(attempt, told)
        self._ended(attempt.token, told)

    def _log(self, attempt: Attempt, told: Finish | None) -> None:
        claimed = attempt.claimed
        if told is None:
            log.warning(
                "job %s (%s): the attempt was lost to others",
                *(claimed.job, claimed.task),
                extra=about(claimed, outcome="lost"),
            )
        elif told.error is not None:
            log.warning(
                "job %s (%s), attempt %d: %s (%s): %s: %s",
                *(claimed.job, claimed.task, claimed.attempt, told.outcome, told.reason),
                *(told.error.type, visible(told.error.message)),
                extra=about(claimed, outcome=told.outcome, reason=told.reason),
            )
        elif log.isEnabledFor(logging.DEBUG):
            extra = about(claimed, outcome=told.outcome, reason=told.reason)
            log.debug("job %s (%s): %s", claimed.job, claimed.task, told.outcome, extra=extra)

    def _later(
        self, attempt: Attempt, seconds: float, call: Callable[..., None], *args: Any
    ) -> None:
        # Not in the context of the job that ended here and started this one: the loop keeps a timer
        # that was cancelled, and all that is in its context, often until it would have run out.
        timer = self._loop.call_later(seconds, call, *args, context=self.context)
        self._timers.setdefault(attempt.token, []).append(timer)

    async def close(self) -> None:
        """After the last attempt; threads that never ended are left to the process's end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._chores.shutdown(wait=False)
        await self._cells.close()
        await self._commands.close()


def _with_jobs(attempt: Attempt, told: Finish) -> Finish:
    """The end with what its task wants to be stored together with it."""
    assert attempt.task.on_end is not None
    try:
        more = tuple(attempt.task.on_end(attempt.claimed, told))
    except Exception:
        log.exception("on_end of task %r failed: its end is told without it", attempt.task.name)
        return told
    return msgspec.structs.replace(told, followups=(*told.followups, *more)) if more else told


def _without_end(attempt: Attempt, error: BaseException) -> Ending:
    """Not the job's fault; but an attempt without an end would hold its slots for ever."""
    log.error("running job %s failed", attempt.claimed.job, exc_info=error)
    return Ending("crashed", failure=failure_of(error))
