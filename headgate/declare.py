"""Declaring limits, tasks, job classes, commands, schedules and hooks: one half of an app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from headgate.calls import Call
from headgate.commands.command import (
    DEFAULT_GRACE,
    DEFAULT_MAX_OUTPUT,
    After,
    Before,
    make_command,
)
from headgate.commands.task import CommandTask
from headgate.config import check_weight
from headgate.context import Context
from headgate.declarations import (
    CommandDeclaration,
    Declaration,
    JobDeclaration,
    ScheduleOptions,
)
from headgate.errors import DeclarationError
from headgate.hooks import Around, Hooks, OnError, Plain
from headgate.jobclass import Job
from headgate.jobtask import JobTask
from headgate.limitbook import LimitBook
from headgate.limits import Key, Limit, stored_key
from headgate.makers import Anything, PayloadTaskMaker, TaskMaker
from headgate.rates import Rate
from headgate.taskoptions import TaskOptions
from headgate.tasks import AsyncTask, SyncTask, Task, make_task

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.schedules.book import Scheduled
    from headgate.schedules.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
J = TypeVar("J", bound=Job)


def _is_job(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Job)


class Declaring:
    """The half of an app that declares: limits, weights, tasks and hooks."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        """Every task by its name and by each of its aliases."""
        self.hooks = Hooks()
        self.schedules: dict[str, Scheduled] = {}
        """What is scheduled here, by the schedule's name."""
        self._book = LimitBook(cast("App", self))
        self._weights: dict[str, int] = {}

    def limit(self, name: str, max: int | None, *, key: Key = None) -> Limit:
        """Declare a limit: at most `max` units of it may be held at once, everywhere.

        >>> tenant = app.limit("tenant", 2, key="tenant_id")            # doctest: +SKIP
        """
        return self._book.declare(Limit(name, max, key=key))

    def rate(
        self,
        name: str,
        max: int | None,
        *,
        per: float | timedelta,
        key: Key = None,
        burst: int | None = None,
    ) -> Rate:
        """Declare a rate: at most `max` units of it may start in any `per` seconds, everywhere.

        >>> api = app.rate("payments-api", 100, per=60)                 # doctest: +SKIP

        It stands among the limits of a task like any other. `burst`: at most so many at once; 1
        spaces all starts evenly, None allows all `max` of them in one moment.
        """
        rate = Rate(name, max, per=per, key=key, burst=burst)
        self._book.declare(rate)
        return rate

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The limits and rates declared in this app, by name."""
        return self._book.declared

    def weight(self, key: object, n: int) -> None:
        """Let a fairness key have `n` jobs per turn instead of one.

        >>> app.weight("acme", 3)                                       # doctest: +SKIP
        """
        self._weights[stored_key(key, "fairness key")] = check_weight(n)

    # The overloads overlap on purpose: the first that fits is the most exact.
    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> Task[..., R]: ...
    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Anything, P], R], /
    ) -> Task[..., R]: ...
    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        fn: str | None = None,
        /,
        *,
        payload: Literal[True],
        **options: Unpack[Declaration],
    ) -> PayloadTaskMaker: ...
    @overload
    def task(
        self,
        fn: str | None = None,
        /,
        *,
        payload: Literal[False] = False,
        **options: Unpack[Declaration],
    ) -> TaskMaker: ...

    def task(self, fn: Callable[..., Any] | str | None = None, /, **options: Any) -> Any:
        """Make a function a task: `@app.task`, `@app.task(...)` or `app.task("name", ...)(fn)`.

        >>> @app.task("charge", limits=[api, tenant], retries=5, timeout=60)  # doctest: +SKIP
        ... async def charge(ctx: Context, tenant_id: str, amount: int) -> str: ...

        `limits`: Limits, `OneOf`s or names, all of which are needed. `max_concurrent`: a limit
        named after the task. `retries`: tries after errors, `retry_delay` apart (seconds, or a
        callable of (errors, error); exponential with jitter by default). `max_lost`: attempts
        that may be lost with their worker. `timeout`, `expires`: seconds. `queue`, `priority`
        (-100 to 100, lower first). `isolate="process"`: run in a process that can be killed.
        `fair_by`: the argument (or a callable of them) whose values take turns. `aliases`:
        names it had before. `payload=True`: the handler takes the whole payload. `caps`: how
        much may be submitted. `unique_for`: seconds in which the same arguments (or the same
        `unique_key`) are submitted once. `schedule`: when it runs by itself, a text or a
        `Schedule`, in `timezone` (UTC unless said).
        """
        name: str | None = options.pop("name", None)
        if fn is not None and not isinstance(fn, str):
            return self._declare_task(fn, name, options)
        if fn is not None and name is not None:
            raise DeclarationError(f"a task has one name, got {fn!r} and {name!r}")
        chosen = fn if fn is not None else name

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            return self._declare_task(function, chosen, options)

        return make

    def _declare_task(
        self, fn: Callable[..., Any], name: str | None, options: dict[str, Any]
    ) -> Task[..., Any]:
        if isinstance(fn, Task):
            fn = cast("Task[..., Any]", fn).fn
        when, zone = options.pop("schedule", None), options.pop("timezone", None)
        if unknown := [o for o in options if o not in TaskOptions.__dataclass_fields__]:
            from headgate.schedules.schedule import Schedule

            if unknown[0] in Schedule.__dataclass_fields__:
                raise DeclarationError(
                    f"{unknown[0]!r} is an option of schedules, not of tasks: say"
                    f" schedule=Schedule({when or '…'!r}, {unknown[0]}=…), or app.schedule(…)"
                )
            known = ", ".join(["name", *TaskOptions.__dataclass_fields__, "schedule", "timezone"])
            raise DeclarationError(f"unknown task option {unknown[0]!r}: known are {known}")
        if _is_job(fn):
            raise DeclarationError(f"{fn.__qualname__} is a Job: make it known with @app.job")
        task = make_task(cast("App", self), fn, name, TaskOptions(**options))
        self._keep(task)
        self._schedule_task(task, when, zone)
        return task

    def _schedule_task(self, task: Task[..., Any], when: object, zone: str | None) -> None:
        """A task with a schedule of its own, of its own name."""
        if when is not None or zone is not None:
            from headgate.schedules.book import own_schedule

            self._keep_schedule(own_schedule(task, when, zone))

    def schedule(
        self,
        name: str,
        call: Call[Any],
        when: str | Schedule,
        /,
        *,
        source: str = "code",
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled:
        """Submit a call by the clock.

        >>> app.schedule("nightly", charge.call("acme", 3), "H 2 * * *",
        ...              timezone="Europe/Berlin", missed="one")        # doctest: +SKIP

        However many workers there are, each tick becomes one job, or is merged into the run
        before it while that still waits.
        """
        from headgate.schedules.book import scheduled

        found = scheduled(cast("App", self), name, call, when, dict(options), source)
        self._keep_schedule(found)
        return found

    def _keep_schedule(self, found: Scheduled) -> None:
        if found.name in self.schedules:
            raise DeclarationError(
                f"schedule {found.name!r} is declared twice in this app: give one of them another"
                " name"
            )
        self.schedules[found.name] = found

    def _keep(self, *tasks: Task[..., Any]) -> None:
        names = [name for task in tasks for name in (task.name, *task.aliases)]
        for name in names:
            if name in self.tasks:
                raise DeclarationError(
                    f"task {name!r} is declared twice in this app: give one of them another name"
                )
        for task in tasks:
            self.tasks.update(dict.fromkeys((task.name, *task.aliases), task))

    @overload
    def job(self, cls: type[J], /) -> type[J]: ...
    @overload
    def job(
        self, cls: str | None = None, /, **options: Unpack[JobDeclaration]
    ) -> Callable[[type[J]], type[J]]: ...

    def job(self, cls: type[Job] | str | None = None, /, **options: Any) -> Any:
        """Make a class that derives from `Job` known: `@app.job` or `@app.job("name", ...)`.

        >>> @app.job(queue="slow")                                      # doctest: +SKIP
        ... class Report(Job):
        ...     def __init__(self, month: str): self.month = month
        ...     def run(self) -> None: ...

        The options are those of `@app.task`, and `one_per` and `cap_at_submit`; each may be an
        attribute of the class instead, over which the one given here wins.
        """
        name: str | None = options.pop("name", None)
        if cls is not None and not isinstance(cls, str):
            return self._declare_job(cls, name, options)
        if cls is not None and name is not None:
            raise DeclarationError(f"a job class has one name, got {cls!r} and {name!r}")
        chosen = cls if cls is not None else name

        def make(found: type[Job]) -> type[Job]:
            return self._declare_job(found, chosen, options)

        return make

    def _declare_job(self, cls: type[Job], name: str | None, options: dict[str, Any]) -> type[Job]:
        if unknown := [o for o in options if o not in JobDeclaration.__annotations__]:
            known = ", ".join(JobDeclaration.__annotations__)
            instead = ": a class says it in get_concurrency_limit()"
            raise DeclarationError(
                f"unknown option {unknown[0]!r} of a job class"
                + (instead if unknown[0] == "max_concurrent" else f": known are {known}")
            )
        options = dict(options)
        when = options.pop("schedule", getattr(cls, "schedule", None))
        zone = options.pop("timezone", getattr(cls, "timezone", None))
        task = JobTask(cast("App", self), cls, name, options)
        self._keep(task, *([task.teller()] if task.tells else []))
        cls._headgate_task = task
        self._schedule_task(task, when, zone)
        return cls

    def command(
        self,
        name: str,
        command: Sequence[str] | str,
        *,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = True,
        cwd: str | Path | None = None,
        max_execution: float | timedelta | None = None,
        max_execution_grace: float | timedelta = DEFAULT_GRACE,
        retry_exit_codes: Iterable[int] | None = None,
        concurrent_runs: bool = False,
        separate_streams: bool = False,
        max_output: int = DEFAULT_MAX_OUTPUT,
        before: Before | None = None,
        after: After | None = None,
        **options: Unpack[CommandDeclaration],
    ) -> CommandTask:
        """Make a program, or a line for the shell, a task: each job is one run of it.

        >>> backup = app.command("backup", ["pg_dump", "-f", "shop.sql", "shop"],
        ...                      max_execution=3600, limits=["disk"])   # doctest: +SKIP
        >>> tidy = app.command("tidy", "find /tmp/shop -mtime +7 -delete")  # doctest: +SKIP

        A run that ends with exit code 0 has succeeded. After `max_execution` seconds it is told
        to stop with SIGTERM, and killed `max_execution_grace` seconds later, with all that it
        started. One run at a time, by a limit of the command's own name, unless
        `concurrent_runs`. `retry_exit_codes`: of its `retries`, for which failures. The output
        is kept up to `max_output` bytes a run; with `separate_streams` it is known what went to
        stderr, but not in which order the two were written. `before` and `after` are called
        round each run. `schedule`: when it runs by itself, as for tasks.
        """
        known = CommandDeclaration.__annotations__
        if unknown := [option for option in options if option not in known]:
            raise DeclarationError(
                f"unknown option {unknown[0]!r} of command {name!r}: those shared with tasks are"
                f" {', '.join(known)}"
            )
        made = make_command(
            name,
            command,
            environment=environment,
            inherit_environment=inherit_environment,
            cwd=cwd,
            max_execution_grace=max_execution_grace,
            retry_exit_codes=retry_exit_codes,
            separate_streams=separate_streams,
            max_output=max_output,
            before=before,
            after=after,
        )
        shared: dict[str, Any] = dict(options)
        when, zone = shared.pop("schedule", None), shared.pop("timezone", None)
        chosen = TaskOptions(
            timeout=max_execution, max_concurrent=None if concurrent_runs else 1, **shared
        )
        task = CommandTask(cast("App", self), name, made, chosen)
        self._keep(task)
        self._schedule_task(task, when, zone)
        return task

    def on_worker_start(self, fn: F) -> F:
        """Call `fn()`, sync or async, when a worker process of this app starts."""
        self.hooks.worker_start.append(cast("Plain", fn))
        return fn

    def on_worker_stop(self, fn: F) -> F:
        """Call `fn()` when a worker process of this app stops."""
        self.hooks.worker_stop.append(cast("Plain", fn))
        return fn

    def around_job(self, fn: F) -> F:
        """Run each job inside the context manager that `fn(ctx)` gives, sync or async.

        >>> @app.around_job                                             # doctest: +SKIP
        ... @contextlib.contextmanager
        ... def timed(ctx):
        ...     start = time.monotonic()
        ...     yield
        ...     print(ctx.task, time.monotonic() - start)
        """
        self.hooks.around_job.append(cast("Around", fn))
        return fn

    def on_error(self, fn: F) -> F:
        """Call `fn(ctx, error)` for each attempt that ends in an error."""
        self.hooks.error.append(cast("OnError", fn))
        return fn
