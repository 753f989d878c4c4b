"""Job classes: a task as a class, with its own concurrency key and limit.

The arguments of the constructor are the arguments of the job. Whoever submits builds the
object, asks it for its key and limit and stores the arguments; a worker builds it again from
them and calls `run`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, Unpack, cast, overload

from headgate.backoff import RetryDelay
from headgate.caps import Cap, Policy
from headgate.context import Context, current
from headgate.errors import DeclarationError
from headgate.jobs import DEFAULT_MAX_LOST, DEFAULT_QUEUE, State
from headgate.limits import Key, Limit, OneOf
from headgate.options import Options

if TYPE_CHECKING:
    from headgate.calls import Call
    from headgate.handle import JobHandle
    from headgate.jobtask import JobTask
    from headgate.schedules.schedule import Schedule
    from headgate.taskoptions import Isolate

R_co = TypeVar("R_co", covariant=True)


class JobOptions(Options, total=False):
    """What `run_in_worker(...)` accepts: the options of a task, and the key."""

    concurrency_key: str
    """In place of what `get_concurrency_key` gives."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """What `on_aborted` is told: which job ended, how, and why."""

    job_id: str
    state: State
    """`cancelled`, or `failed` for a job that was lost with its workers."""
    reason: str
    """`lost`, `expired`, `superseded`, or the words of whoever cancelled it."""


class _Runs(Protocol[R_co]):
    def run(self) -> R_co: ...


class _RunsAsync(Protocol[R_co]):
    def run(self) -> Coroutine[Any, Any, R_co]: ...


class _Current:
    """`self.context`: that of the running attempt. Only read, so that a class may well have an
    attribute of that name."""

    def __get__(self, instance: object, owner: type) -> Context:
        return current()


class Job:
    """The base of job classes; `@app.job` makes one known.

    >>> @app.job                                                        # doctest: +SKIP
    ... class ProcessUserData(Job):
    ...     def __init__(self, user_id: int):
    ...         self.user_id = user_id
    ...     def run(self) -> None: ...
    ...     def get_concurrency_key(self) -> str:
    ...         return f"user-{self.user_id}"
    ...     def get_concurrency_limit(self) -> int | None:
    ...         return 1
    >>> handle = ProcessUserData(42).run_in_worker()                    # doctest: +SKIP
    """

    queue: ClassVar[str] = DEFAULT_QUEUE
    priority: ClassVar[int] = 0
    retries: ClassVar[int] = 0
    retry_delay: ClassVar[RetryDelay | None] = None
    max_lost: ClassVar[int] = DEFAULT_MAX_LOST
    timeout: ClassVar[float | timedelta | None] = None
    expires: ClassVar[float | timedelta | None] = None
    isolate: ClassVar[Isolate] = None
    fair_by: ClassVar[Key] = None
    limits: ClassVar[Sequence[Limit | OneOf | str]] = ()
    """Beside the class's own group, which `get_concurrency_limit` gives it."""
    caps: ClassVar[Sequence[Cap]] = ()
    unique_for: ClassVar[float | timedelta | None] = None
    unique_key: ClassVar[Key] = None
    one_per: ClassVar[str | None] = None
    """The name of an argument: one job at a time for each of its values."""
    cap_at_submit: ClassVar[bool | Policy] = False
    """True: a job beyond the limit is refused at submit instead of waiting; or what else is to
    happen to it, as `Cap.when_full` says."""

    schedule: ClassVar[str | Schedule | None] = None
    """When a job of the class without arguments runs by itself."""
    timezone: ClassVar[str | None] = None
    """The zone of that; UTC unless said."""

    context = _Current()
    """The running attempt, inside `run`."""

    _headgate_task: ClassVar[JobTask | None] = None
    _headgate_given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # What the constructor was given is what is stored: kept before anything can change it.
        self = super().__new__(cls)
        object.__setattr__(self, "_headgate_given", (args, kwargs))
        return self

    def __init__(self) -> None:
        """A job without arguments, unless the class says otherwise."""

    # --- what a class says -----------------------------------------------------------------

    def run(self) -> Any:
        """The work, sync or async; what it returns is the job's result."""
        raise NotImplementedError(f"{type(self).__qualname__} has no run()")

    def get_concurrency_key(self) -> str:
        """Which jobs of the class are counted together; "" is the class as a whole."""
        return ""

    def get_concurrency_limit(self) -> int | None:
        """How many of the group may run at once; None: any number, 0: none, they wait."""
        return None

    def on_aborted(self, aborted: Aborted) -> Any:
        """Called on a worker, sync or async, when a job of the class was lost, cancelled or
        expired for good. It runs as a job of its own: at least once for each such end."""

    # --- submitting ------------------------------------------------------------------------

    @overload
    def run_in_worker(self: _RunsAsync[R_co], **options: Unpack[JobOptions]) -> JobHandle[R_co]: ...
    @overload
    def run_in_worker(self: _Runs[R_co], **options: Unpack[JobOptions]) -> JobHandle[R_co]: ...

    def run_in_worker(self, **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """Store the job for a worker to run.

        >>> ProcessUserData(42).run_in_worker(delay=60, priority=-5)    # doctest: +SKIP

        Takes the options of `task.using(...)`, and `concurrency_key`. Raises
        `ConcurrencyLimitReached` where a cap refuses it.
        """
        return cast("Job", self).call(**options).submit()

    @overload
    async def arun_in_worker(
        self: _RunsAsync[R_co], **options: Unpack[JobOptions]
    ) -> JobHandle[R_co]: ...
    @overload
    async def arun_in_worker(
        self: _Runs[R_co], **options: Unpack[JobOptions]
    ) -> JobHandle[R_co]: ...

    async def arun_in_worker(self, **options: Unpack[JobOptions]) -> JobHandle[Any]:
        """`run_in_worker` for code in an event loop."""
        call = cast("Job", self).call(**options)
        return await call.task.app.asubmit_call(call)

    def call(self, **options: Unpack[JobOptions]) -> Call[Any]:
        """The job to be submitted later, with others or from a job.

        >>> app.submit_many([ProcessUserData(n).call() for n in range(9)])  # doctest: +SKIP
        """
        return task_of(type(self)).call_of(self, options)


def task_of(cls: type[Job]) -> JobTask:
    """The task that `@app.job` made of this very class; a subclass needs its own."""
    task = cast("JobTask | None", cls.__dict__.get("_headgate_task"))
    if task is None:
        raise DeclarationError(
            f"job class {cls.__qualname__} is not declared: put @app.job above it"
        )
    return task
