"""What a running job knows about itself, and what it can ask of whoever runs it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from headgate.codec import plain
from headgate.errors import Cancel, HeadgateError, WrongConnection
from headgate.jobs import Claimed, NewJob, Submitted
from headgate.schedules.template import tick_of
from headgate.threads import in_thread

if TYPE_CHECKING:
    from headgate.calls import Call
    from headgate.handle import JobHandle
    from headgate.jobclass import Job, JobOptions
    from headgate.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")

MAX_PROGRESS_TEXT = 1000


class AttemptPort(Protocol):
    """How a context reaches the attempt it belongs to.

    The worker's loop, its threads, isolated child processes and plain local calls each
    bring one. Any thread may call any method; `extend`, `release` and `retake` may block,
    the others must not.
    """

    def progress(self, fraction: float, text: str) -> None:
        """Note how far the attempt is; it travels with the worker's next round trip."""
        ...

    def extend(self, seconds: float) -> None:
        """Keep the slots for at least `seconds` from now, or raise `StaleAttempt`."""
        ...

    def release(self) -> None:
        """Give all slots back for a while, or raise `StaleAttempt`."""
        ...

    def retake(self, timeout: float | None) -> bool:
        """Wait until the same groups are held again; False when `timeout` seconds passed.

        Raises `StaleAttempt` when the attempt is no longer the running one, and `Cancel`
        when the job is cancelled while it waits.
        """
        ...

    def followup(self, job: NewJob) -> None:
        """Store `job` together with the finish of this attempt, or not at all."""
        ...

    def is_cancelled(self) -> bool: ...
    def cancel_reason(self) -> str: ...


class Context:
    """The running attempt, as its own code sees it.

    A parameter annotated with `Context` receives it, wherever it stands; `current()` gives
    it deeper down.

    >>> @app.task                                                       # doctest: +SKIP
    ... def train(ctx: Context, run: int) -> None:
    ...     for step in range(10):
    ...         ctx.raise_if_cancelled()
    ...         ctx.progress(step / 10, f"step {step}")
    """

    __slots__ = (
        "_lock",
        "_log",
        "_options",
        "_port",
        "_released",
        "attempt",
        "granted_at",
        "group",
        "groups",
        "job_id",
        "queue",
        "schedule",
        "scheduled_at",
        "task",
        "token",
    )

    def __init__(
        self,
        port: AttemptPort,
        *,
        job_id: str,
        attempt: int,
        token: int,
        task: str,
        queue: str,
        groups: tuple[str, ...] = (),
        picked: tuple[str, ...] = (),
        granted_at: float | None = None,
        options: str = "{}",
    ) -> None:
        self._port = port
        self._released = 0
        self._lock = threading.Lock()
        self._log: JobLog | None = None
        self._options = options
        self.job_id = job_id
        self.attempt = attempt
        self.token = token
        """Grows with every attempt: hand it to systems that can refuse an older one."""
        self.task = task
        self.queue = queue
        self.groups = groups
        """Every group of which this attempt holds a slot."""
        self.group: str | None = picked[0] if picked else (groups[0] if groups else None)
        """The group picked from a one-of, else the first one held, else None."""
        self.granted_at = granted_at
        """By the clock of `headgate.execlog`, when the store was asked for what allows this
        attempt to run: it allowed it then or later. None where nobody was asked."""
        tick = None if options == "{}" else tick_of(options)
        self.schedule: str | None = None if tick is None else tick[0]
        """The schedule that submitted the job; None: it was submitted in another way."""
        self.scheduled_at: float | None = None if tick is None else tick[1]
        """When it was due, in seconds since the epoch."""

    @classmethod
    def of(cls, claimed: Claimed, port: AttemptPort, granted_at: float | None = None) -> Context:
        """The context of a claimed attempt."""
        return cls(
            port,
            job_id=claimed.job,
            attempt=claimed.attempt,
            token=claimed.token,
            task=claimed.task,
            queue=claimed.queue,
            groups=tuple([group for group, _ in claimed.groups]) if claimed.groups else (),
            picked=claimed.picked,
            granted_at=granted_at,
            options=claimed.options,
        )

    def __repr__(self) -> str:
        return f"<Context of {self.task!r} job {self.job_id} attempt {self.attempt}>"

    # --- how far, and how long still ---------------------------------------------------

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the job is: a fraction from 0 to 1, and a few words.

        >>> ctx.progress(0.3, "30 of 100 pages")                        # doctest: +SKIP
        """
        # Also from untyped code: a text or a NaN must not reach the store.
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HeadgateError(f"progress: the fraction must be a number, got {fraction!r}")
        if not 0 <= fraction <= 1:
            raise HeadgateError(f"progress: the fraction must be from 0 to 1, got {fraction!r}")
        self._port.progress(float(fraction), plain(str(text))[:MAX_PROGRESS_TEXT])

    def extend_lease(self, seconds: float) -> None:
        """Keep this attempt's slots for at least `seconds` from now, whatever its worker does.

        Raises `StaleAttempt` when the attempt is no longer the running one.
        """
        if not math.isfinite(seconds) or seconds <= 0:
            raise HeadgateError(f"extend_lease: seconds must be above 0, got {seconds!r}")
        self._port.extend(float(seconds))

    async def aextend_lease(self, seconds: float) -> None:
        """`extend_lease` for code in an event loop."""
        await in_thread(self.extend_lease, seconds)

    # --- being stopped -----------------------------------------------------------------

    @property
    def cancelled(self) -> bool:
        """Has somebody asked this attempt to stop (a cancel, a time-out, a lost lease)?"""
        return self._port.is_cancelled()

    def raise_if_cancelled(self) -> None:
        """Raise `Cancel` if this attempt was asked to stop.

        Long sync code calls it at its safe points: a thread cannot be stopped from outside.
        """
        if self._port.is_cancelled():
            raise Cancel(self._port.cancel_reason())

    # --- giving the slots back for a while -----------------------------------------------

    def released(self) -> Released:
        """Give all slots back for the time of the block, then wait for the same groups.

        >>> with ctx.released():                                        # doctest: +SKIP
        ...     answer = other.submit(1).result()

        The block must not touch what the limits protect. `async with` works too.
        """
        return Released(self)

    @property
    def holding(self) -> tuple[str, ...]:
        """The groups held at this moment: none inside `released()`."""
        return () if self._released else self.groups

    # --- follow-ups --------------------------------------------------------------------

    @overload
    def submit(self, what: Call[R], /) -> JobHandle[R]: ...
    @overload
    def submit(self, what: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def submit(self, what: Job, /, **options: Unpack[JobOptions]) -> JobHandle[Any]: ...

    def submit(self, what: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a job that is stored together with the finish of this attempt, or not at all.

        >>> ctx.submit(resize.call("a.png"))                            # doctest: +SKIP
        >>> ctx.submit(resize, "a.png")                                 # doctest: +SKIP

        The handle names the job to be: it is there once this attempt has succeeded. A cap that
        refuses it fails the attempt with `ConcurrencyLimitReached`; one that blocks is an error.
        """
        from headgate.calls import Call
        from headgate.caps import check_waits
        from headgate.jobclass import Job
        from headgate.tasks import Task

        if isinstance(what, Call):
            if args or kwargs:
                raise HeadgateError("ctx.submit: a call already has its arguments")
            call = cast("Call[Any]", what)
        elif isinstance(what, Task):
            call = cast("Task[..., Any]", what).call(*args, **kwargs)
        elif isinstance(what, Job):
            call = what.call(*args, **kwargs)
        else:
            raise HeadgateError(f"ctx.submit takes task.call(…), a task or a Job, got {what!r}")
        if call.task.conn is not None:
            raise WrongConnection(
                "ctx.submit stores the job together with the finish of this attempt: conn= has no"
                " place there. Leave it out, or submit with task.using(conn=…).submit(…)"
            )
        job = call.new_job(parent=self.job_id)
        check_waits(job.caps, "ctx.submit stores the job with the finish of this attempt")
        tracing = call.task.app.tracing
        if tracing is not None:
            job = tracing.followup(job)
        self._port.followup(job)
        return call.handle(Submitted(job.id))

    @overload
    async def asubmit(self, what: Call[R], /) -> JobHandle[R]: ...
    @overload
    async def asubmit(
        self, what: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    async def asubmit(self, what: Job, /, **options: Unpack[JobOptions]) -> JobHandle[Any]: ...

    async def asubmit(self, what: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`submit` for code in an event loop."""
        return await in_thread(self.submit, what, *args, **kwargs)

    # --- saying something --------------------------------------------------------------

    @property
    def log(self) -> JobLog:
        """A logger whose records carry the job, the attempt and the group."""
        if self._log is None:
            self._log = JobLog(
                logging.getLogger(f"headgate.task.{self.task}"),
                {"job": self.job_id, "attempt": self.attempt, "group": self.group},
            )
        return self._log


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds job, attempt and group to every record, beside what the call itself adds."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        extra: Mapping[str, Any] = kwargs.get("extra") or {}
        kwargs["extra"] = {**(self.extra or {}), **extra}
        return msg, kwargs


class Released:
    """The block of `ctx.released()`: sync and async, and it may be nested."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        ctx = self._ctx
        with ctx._lock:
            if ctx._released == 0:
                # First the slots go, then `holding` says so: read in between, the attempt
                # is still taken to hold them, which errs on the side of refusing.
                ctx._port.release()
            ctx._released += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ctx = self._ctx
        with ctx._lock:
            if ctx._released == 1:
                # The code goes on only with all its groups held again, even when the block
                # failed: what runs after it (a handler, a clean-up) counts as running.
                ctx._port.retake(None)
            ctx._released -= 1

    async def __aenter__(self) -> None:
        entering = asyncio.ensure_future(in_thread(self.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread gives the slots back all the same, and the block is not entered: whoever
            # goes on after this (a time-out of the code's own) must not do so without them.
            await asyncio.wait([entering])
            if not entering.cancelled() and entering.exception() is None:
                await self.__aexit__(None, None, None)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        waiting = asyncio.ensure_future(in_thread(self.__exit__, kind, error, trace))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The thread cannot be stopped in the middle of taking slots. The port sees the
            # same cancellation and ends the wait; leaving before that would let the attempt
            # finish while a thread is still taking slots for it.
            await asyncio.wait([waiting])
            raise


_current: ContextVar[Context | None] = ContextVar("headgate_context", default=None)


def current() -> Context:
    """The context of the job that runs here.

    >>> def deep_down() -> None:                                        # doctest: +SKIP
    ...     current().progress(0.5)

    Follows `await`, and threads started with a copy of the context (`asyncio.to_thread`).
    """
    ctx = _current.get()
    if ctx is None:
        raise HeadgateError(
            "current(): no job is running here. Use it in code called by a task; a thread"
            " started by hand needs contextvars.copy_context().run(...)"
        )
    return ctx


def maybe_current() -> Context | None:
    """The context of the job that runs here, or None."""
    return _current.get()


def activate(ctx: Context) -> None:
    """Make `ctx` the current one from here on, for code that is alone in its asyncio task."""
    _current.set(ctx)


class active:
    """Make `ctx` the current one inside the block (what a runner does round each job)."""

    __slots__ = ("_ctx", "_mark")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __enter__(self) -> Context:
        self._mark = _current.set(self._ctx)
        return self._ctx

    def __exit__(self, *_: object) -> None:
        _current.reset(self._mark)
