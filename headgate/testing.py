"""For tests of programs that use Headgate: the real engine, here and now, without workers.

Jobs run in this process, one at a time, with the same claims, limits, retries and finishes
as in a worker. What only a worker can do is left out: time-outs are not enforced, and tasks
with `isolate="process"` run here too.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import msgspec

from headgate.app import App
from headgate.caps import refusal_error
from headgate.clock import Clock
from headgate.config import Config
from headgate.errors import HeadgateError
from headgate.jobclass import Job, task_of
from headgate.jobs import Claimed, JobFilter, JobRecord, NewJob, Outcome, Progress, new_id
from headgate.options import seconds
from headgate.schedules.rounds import Rounds
from headgate.stores.protocol import Claim, Exchange, NewWorker
from headgate.tasks import Task
from headgate.threads import in_thread
from headgate.turns import ClaimState
from headgate.worker.attempt import Attempt
from headgate.worker.execute import delay_before_retry, run_async, run_sync
from headgate.worker.outcome import Ending, finish, refused_followup

MEMORY = "sqlite:///:memory:"

AnyTask = Task[..., Any] | type[Job] | str


class TestClock(Clock):
    """A clock that stands still until it is told to go on.

    >>> clock = TestClock(start=1000.0)
    >>> clock.advance(60)
    >>> clock.now()
    1060.0
    """

    __test__ = False  # not a test, though pytest would take it for one by its name

    def __init__(self, start: float | None = None) -> None:
        self._now = time.time() if start is None else float(start)
        self._boot = 1000.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now

    def boot(self) -> float:
        return self._boot

    def advance(self, by: float | timedelta) -> None:
        """Let that many seconds pass."""
        length = seconds(by, "advance", above=False)
        with self._lock:
            self._now += length
            self._boot += length


def memory_app(*, clock: Clock | None = None) -> App:
    """An app whose store lives in memory, with a clock under control.

    >>> app = memory_app()
    >>> @app.task
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> handle = double.submit(4)
    >>> drain(app).succeeded
    1
    >>> handle.result()
    8
    """
    return App(MEMORY, clock=clock or TestClock(), config=Config(url=MEMORY))


@contextmanager
def in_memory(app: App, *, clock: Clock | None = None) -> Generator[Clock]:
    """Give an app that is declared elsewhere a fresh store in memory for the time of the block.

    >>> with in_memory(app) as clock, inline(app):                      # doctest: +SKIP
    ...     assert charge.submit("acme", 3).result() == "paid"
    """
    with app.replaced(MEMORY, clock or TestClock()):
        yield app.clock


@dataclass(frozen=True, slots=True)
class Drained:
    """What `drain` did: attempts by how they ended."""

    succeeded: int = 0
    failed: int = 0
    retry: int = 0
    snoozed: int = 0
    cancelled: int = 0

    @property
    def attempts(self) -> int:
        return self.succeeded + self.failed + self.retry + self.snoozed + self.cancelled

    def plus(self, outcome: Outcome) -> Drained:
        return replace(self, **{outcome: getattr(self, outcome) + 1})


def drain(app: App, *, advance: bool = False, max_attempts: int = 10_000) -> Drained:
    """Run everything that is ready, and what that submits, until nothing is left to run.

    With `advance` the clock (a `TestClock`) is moved on to whatever is due later: retries,
    snoozes and delayed jobs run too.
    """
    if advance and not isinstance(app.clock, TestClock):
        raise HeadgateError("drain(advance=True) needs an app whose clock is a TestClock")
    with _Hand(app) as hand:
        return hand.drain(advance, max_attempts)


async def adrain(app: App, *, advance: bool = False, max_attempts: int = 10_000) -> Drained:
    """`drain` for tests that run in an event loop; the jobs run in a loop of their own."""
    return await in_thread(drain, app, advance=advance, max_attempts=max_attempts)


def tick(app: App) -> int:
    """Submit by the clock of the app what it has scheduled and is due, as every worker does; how
    many ticks there were.

    >>> app = memory_app(clock=TestClock(start=0.0))
    >>> @app.task(schedule="*/10 * * * *")
    ... def tidy() -> None: ...
    >>> tick(app)
    0
    >>> app.clock.advance(600)
    >>> tick(app), drain(app).succeeded
    (1, 1)
    """
    app.store.declare_schedules(app.declared_schedules("testing"))
    rounds = Rounds(app.store)
    while rounds.round() == 0:
        continue
    return rounds.ticked


@contextmanager
def inline(app: App) -> Generator[None]:
    """Inside the block each submit runs the job at once, before it returns.

    >>> app = memory_app()
    >>> @app.task
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> with inline(app):
    ...     double.submit(4).result()
    8

    A job that fails does not raise here: its handle does. Retries, delays and jobs that find
    no room stay where they are, for `drain`.
    """
    before = app.after_submit
    app.after_submit = lambda: _ignore(drain(app))
    try:
        yield
    finally:
        app.after_submit = before


def submitted(app: App, task: AnyTask, /, **args: object) -> list[JobRecord]:
    """The jobs of a task that were submitted with (at least) these arguments, oldest first."""
    name = _name_of(task)
    known = app.tasks.get(name)
    found: list[JobRecord] = []
    after: str | None = None
    while page := app.store.find(JobFilter(task=name), limit=500, after=after):
        found.extend(record for record in page if _fits(known, record, args))
        after = page[-1].id
    return found[::-1]


def assert_submitted(app: App, task: AnyTask, /, **args: object) -> JobRecord:
    """Assert that a job of this task was submitted with these arguments; gives the newest.

    >>> app = memory_app()
    >>> @app.task
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> _ = double.submit(4)
    >>> assert_submitted(app, double, n=4).state
    'ready'
    """
    matching = submitted(app, task, **args)
    if matching:
        return matching[-1]
    name = _name_of(task)
    others = submitted(app, name)
    seen = "".join(f"\n  {record.args[:200]}" for record in others[-10:])
    raise AssertionError(
        f"no job of task {name!r} was submitted with {args!r};"
        + (f" there are {len(others)}, the last with{seen}" if others else " there is none at all")
    )


def assert_not_submitted(app: App, task: AnyTask, /, **args: object) -> None:
    """Assert that no job of this task was submitted with these arguments."""
    if matching := submitted(app, task, **args):
        raise AssertionError(f"{len(matching)} such jobs were submitted: {matching[-1]}")


def _name_of(task: AnyTask) -> str:
    if isinstance(task, str):
        return task
    return task_of(task).name if isinstance(task, type) else task.name


def _fits(task: Task[..., Any] | None, record: JobRecord, args: dict[str, object]) -> bool:
    read = msgspec.json.decode if task is None else task.arguments
    given: object = read(record.args)
    if not isinstance(given, dict):
        return not args
    stored = cast("dict[str, object]", given)
    return all(name in stored and stored[name] == value for name, value in args.items())


def _ignore(_: object) -> None:
    """The handle tells how a job ended."""


class _Hand:
    """A worker of one hand: claims one job at a time and runs it in this thread."""

    def __init__(self, app: App) -> None:
        self.store = app.store
        self._app = app
        self._id = f"testing-{new_id()}"
        self._state = ClaimState()
        self._tasks = frozenset(app.tasks)
        self._loop = _Loop()
        self._fds: tuple[int, ...] = ()

    def __enter__(self) -> _Hand:
        self.store.publish(self._app.publication("testing"))
        registration = self.store.register(
            NewWorker(
                id=self._id, name="testing", pid=os.getpid(), tasks=tuple(sorted(self._tasks))
            )
        )
        self._fds = registration.fds
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()
        self.store.unregister(self._id)
        for fd in self._fds:
            os.close(fd)

    def drain(self, advance: bool, max_attempts: int) -> Drained:
        done, quiet = Drained(), 0
        while True:
            got = self.store.exchange(Exchange(self._id, claim=self._claim()))
            if got.unrouted and self._route():
                continue
            for claimed in got.claimed:
                if done.attempts >= max_attempts:
                    raise HeadgateError(
                        f"drain: {max_attempts} attempts and still no end: does a job snooze or"
                        " submit itself for ever?"
                    )
                done = done.plus(self._run(claimed))
            quiet = 0 if got.claimed else quiet + 1
            # Once more when nothing was there: what this look itself brought to an end, by an
            # expiry, may have left a job that tells of it.
            if quiet < 2 or got.more:
                continue
            if not advance or got.wake_in is None:
                return done
            # A hair more than asked for: the sum of two floats may fall just short.
            cast("TestClock", self._app.clock).advance(got.wake_in + 0.001)

    def _claim(self) -> Claim:
        return Claim(
            room=1,
            tasks=self._tasks,
            state=self._state,
            weights=self._app.weights,
            ageing=self._app.ageing,
        )

    def _route(self) -> int:
        waiting = self.store.unrouted(self._tasks)
        return self.store.route([self._app.tasks[job.task].route(job) for job in waiting])

    def _run(self, claimed: Claimed) -> Outcome:
        task = self._app.tasks[claimed.task].for_job(claimed.options)
        attempt = Attempt(claimed, task, self)
        ending = self._execute(task, attempt)
        followups: tuple[NewJob, ...] = tuple(attempt.followups)
        end = finish(claimed.token, ending, None, attempt.allowance, followups)
        assert end is not None, "an attempt that nobody stopped is ours to finish"
        told = self.store.exchange(Exchange(self._id, finishes=[end]))
        for token, refusal in told.refused:
            # What it submitted did not fit under a cap: it fails, as in a worker.
            error = refusal_error(refusal)
            delay = delay_before_retry(task, claimed.errors, error)
            end = refused_followup(token, error, attempt.allowance(), delay)
            told = self.store.exchange(Exchange(self._id, finishes=[end]))
        if claimed.token in told.stale:
            return "cancelled"
        return end.outcome

    def _execute(self, task: Task[..., Any], attempt: Attempt) -> Ending:
        args, errors, hooks = attempt.claimed.args, attempt.claimed.errors, self._app.hooks
        if task.is_async:
            return self._loop.wait_for(run_async(task, args, attempt.context(), hooks, errors))
        return run_sync(task, args, attempt.context(), hooks, errors, self._loop.wait_for)

    # --- what an attempt tells its worker -------------------------------------------------

    def note_progress(self, progress: Progress) -> None:
        self.store.exchange(Exchange(self._id, progress=[progress]))

    def note_released(self, change: int) -> None:
        pass

    def settle(self, token: int) -> None:
        pass  # nothing is reserved ahead: the store knows every attempt


class _Loop:
    """An event loop in a thread of its own: the thread of the test may have one running, and
    hooks that enter in one call and leave in another must find the same loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def wait_for(self, work: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await work

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="headgate-testing-loop", daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
