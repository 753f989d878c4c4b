"""Tasks: code that can run, and the calls of it that become jobs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from headgate.arguments import Arguments
from headgate.backoff import check_retry_delay, delay_before_retry
from headgate.calls import Call
from headgate.caps import Cap, check_caps, describe_cap, no_rule_twice, unique
from headgate.codec import encode
from headgate.context import Context, maybe_current
from headgate.errors import DeclarationError, HeadgateError
from headgate.jobs import (
    Claimed,
    Finish,
    NewJob,
    Routing,
    Unrouted,
)
from headgate.limits import Key, Limit, OneOf, check_name
from headgate.options import (
    Options,
    check_expires,
    check_max_lost,
    check_options,
    check_priority,
    check_queue,
    check_retries,
    check_timeout,
    check_unique_for,
    check_unique_key,
    read_options,
)
from headgate.stores.protocol import TaskSpec
from headgate.submit import Shape, Stamp, Use, describe, knew_caps, new_job, stamp
from headgate.taskoptions import (
    Isolate,
    TaskOptions,
    callee,
    check_aliases,
    check_isolate,
    check_limits,
    members,
    name_of,
)

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.commands.command import Command
    from headgate.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Task(Generic[P, R]):
    """A function that can be submitted, with its limits and options.

    Made by `@app.task`; calling it runs the function, here and now.

    >>> @app.task(max_concurrent=5)                                     # doctest: +SKIP
    ... def resize(path: str) -> int: ...
    >>> resize.submit("a.png").result()                                 # doctest: +SKIP
    """

    command: Command | None = None
    """What its jobs run, where that is a program and not a function."""
    on_end: Callable[[Claimed, Finish], Sequence[NewJob]] | None = None
    """Called in the worker's event loop when an attempt has ended: the jobs that it gives are
    stored together with that end, whichever it is."""
    on_aborted: str | None = None
    """The task that is told of jobs which were lost, cancelled or expired."""
    source: str = "code"
    """`file`: it is a job of a configuration."""

    def __init__(
        self, app: App, fn: Callable[..., Any], name: str | None, options: TaskOptions
    ) -> None:
        if not callable(fn):
            raise DeclarationError(f"a task is made from a function, got {fn!r}")
        functools.update_wrapper(self, fn)
        self.app = app
        self.fn = fn
        self.name = check_name(name if name is not None else name_of(fn), "task")
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(callee(fn)))
        self.payload = options.payload
        self.aliases = check_aliases(self.name, options.aliases)
        self.queue = check_queue(options.queue)
        self.priority = check_priority(options.priority)
        self.retries = check_retries(options.retries)
        self.max_lost = check_max_lost(options.max_lost)
        self.timeout = check_timeout(options.timeout)
        self.expires = check_expires(options.expires)
        self.isolate: Isolate = check_isolate(self.name, fn, options.isolate)
        self.fair_by = options.fair_by
        self._retry_delay = check_retry_delay(options.retry_delay, self.name)
        self._using: Options = {}
        self.conn: object = None
        """A connection of the caller's that this task is submitted through."""
        self._shape: Shape | None = None
        self._arguments = self._find_arguments(fn)
        self._limits = self._declare_limits(options)
        self._check_key(self.fair_by, "fair_by")
        self._caps = check_caps(options.caps, f"task {self.name!r}: caps")
        self._unique_for = check_unique_for(options.unique_for)
        self._unique_key = cast("Key", check_unique_key(options.unique_key))
        if self._unique_for is None and self._unique_key is not None:
            raise DeclarationError(
                f"task {self.name!r}: unique_key says nothing without unique_for"
            )
        self._find_caps()

    # --- submitting ----------------------------------------------------------------------

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call this task with these arguments.

        >>> handle = charge.submit(tenant_id="acme", amount=3)          # doctest: +SKIP
        """
        return self.call(*args, **kwargs).submit()

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`submit` for code in an event loop."""
        return await self.app.asubmit_call(self.call(*args, **kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call to be submitted later, with others or from a job.

        >>> app.submit_many([resize.call("a.png"), resize.call("b.png")])  # doctest: +SKIP
        """
        return Call(self, self._arguments.bind(args, kwargs))

    def call_payload(self, payload: object) -> Call[R]:
        """A call from arguments by name, as `app.submit(name, payload)` brings them."""
        return Call(self, self._arguments.from_payload(payload))

    def using(self, **options: Unpack[Options]) -> Self:
        """The same task with other options for what is submitted through it.

        >>> charge.using(priority=-5, delay=60).submit(tenant_id="acme", amount=1)
        ... # doctest: +SKIP

        On PostgreSQL, `conn` submits in the transaction of a connection of yours: the job is
        there when that commits, and never if it does not.

        >>> charge.using(conn=session).submit(tenant_id="acme", amount=1)   # doctest: +SKIP
        """
        task = copy.copy(self)
        checked = check_options(cast("Mapping[str, object]", options))
        task.conn = checked.pop("conn", self.conn)
        merged = {**self._using, **checked}
        if "delay" in checked:
            merged.pop("run_at", None)
        if "run_at" in checked:
            merged.pop("delay", None)
        task._using = cast("Options", merged)
        task._shape = None
        task.queue = checked.get("queue", task.queue)
        task.priority = checked.get("priority", task.priority)
        task.retries = checked.get("retries", task.retries)
        task.max_lost = checked.get("max_lost", task.max_lost)
        if "timeout" in checked:
            task.timeout = cast("float | None", checked["timeout"])
        if "expires" in checked:
            task.expires = cast("float | None", checked["expires"])
        return task

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now: no store, no limits, no retries.

        A context parameter gets that of the running job, else a plain local one.
        """
        given: tuple[Any, ...] = (*args, *kwargs.values())
        if any(isinstance(value, Context) for value in given):
            return self.fn(*args, **kwargs)
        ctx = maybe_current() or self.app.local_context(self)
        bound = self._arguments.bind(args, kwargs)
        positional, named = self._arguments.call_form(bound, ctx)
        return self.fn(*positional, **named)

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    # --- for whoever runs it ---------------------------------------------------------------

    def for_job(self, options: str) -> Self:
        """This task under the options its job was submitted with (`Claimed.options`)."""
        return self if options == "{}" else self.using(**read_options(options))

    def bind(self, args_json: str, ctx: Context) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Stored arguments as the function takes them, the context in its place."""
        return self._arguments.call_form(self._arguments.decode(args_json), ctx)

    def arguments(self, args_json: str) -> dict[str, Any]:
        """Stored arguments by name, each as annotated (a payload that is a mapping: as it is)."""
        bound = self._arguments.decode(args_json)
        return dict(self._arguments.for_keys(bound)) if self.payload else bound

    def encode_result(self, value: object) -> str:
        """A result as JSON, or `InvalidArguments` that says what cannot be stored."""
        if value is None:
            return "null"
        what = f"the result of task {self.name!r}"
        text = encode(value, what, self._arguments.hints.get("return", Any))
        self.app.check_size(len(text), what)
        return text.decode()

    def decode_result(self, text: str | None) -> R:
        """A stored result as the annotated type."""
        return cast("R", None if text is None else self._arguments.decode_result(text))

    def retry_delay_for(self, errors: int, exc: BaseException) -> float:
        """Seconds before the next try, after `errors` errors of which `exc` is the last."""
        return delay_before_retry(self._retry_delay, errors, exc)

    @property
    def import_path(self) -> tuple[str, str]:
        """(module, qualified name) from which another process imports the task."""
        return self.fn.__module__, self.fn.__qualname__

    def spec(self) -> TaskSpec:
        """This task as the catalogue tells it to others."""
        shape = self.shape
        called = shape.fair_by is not None and not isinstance(shape.fair_by, str)
        return TaskSpec(
            name=self.name,
            aliases=self.aliases,
            queue=shape.queue,
            priority=shape.priority,
            expires=shape.expires,
            max_lost=shape.max_lost,
            limits=tuple(describe(use) for use in shape.all),
            one_of=tuple(tuple(describe(use) for use in members) for members in shape.one_of),
            fair_by=shape.fair_by if isinstance(shape.fair_by, str) else None,
            fair_callable=called,
            payload=self.payload,
            caps=tuple(describe_cap(cap) for cap in shape.caps),
            on_aborted=self.on_aborted,
            source=self.source,
        )

    def route(self, unrouted: Unrouted) -> Routing:
        """The stamp for a job that was submitted by somebody who did not know the task."""
        try:
            bound = self._arguments.decode(unrouted.args)
            # No check of values here: a limit that the job carries is known to the store only.
            stamped = self._stamped(bound, read_options(unrouted.options), unrouted.args)
            if stamped.caps and not knew_caps(unrouted.options):
                return Routing(unrouted.job, error=_too_late(self.name))
        except HeadgateError as error:
            return Routing(unrouted.job, error=f"{type(error).__name__}: {error}")
        except Exception as error:  # a key function is anybody's code
            return Routing(unrouted.job, error=f"{type(error).__qualname__}: {error}")
        return Routing(
            job=unrouted.job,
            queue=stamped.queue,
            priority=stamped.priority,
            needs=stamped.needs,
            turn=stamped.turn,
            fair_limit=stamped.fair_limit,
            expires=stamped.expires,
            max_lost=stamped.max_lost,
            task=self.name if unrouted.task != self.name else None,
            carried=stamped.carried,
        )

    # --- what it needs -----------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """All that a stamp depends on; limit names are resolved here, at first need."""
        if self._shape is None:
            self._shape = self._find_shape()
        return self._shape

    def _find_shape(self) -> Shape:
        return Shape(
            task=self.name,
            queue=self.queue,
            priority=self.priority,
            expires=self.expires,
            max_lost=self.max_lost,
            all=tuple(self._use(e) for e in self._limits if not isinstance(e, OneOf)),
            one_of=tuple(
                tuple(self._use(member) for member in entry.members)
                for entry in self._limits
                if isinstance(entry, OneOf)
            ),
            fair_by=self.fair_by,
            caps=self._find_caps(),
        )

    def _find_caps(self) -> tuple[Cap, ...]:
        given = tuple(self._using.get("caps", ()))
        instead = {cap.name for cap in given}
        period = cast("float | None", self._using.get("unique_for", self._unique_for))
        key = self._using.get("unique_key", self._unique_key)
        if period is None and "unique_key" in self._using:
            raise DeclarationError(
                f"task {self.name!r}: unique_key says nothing without unique_for"
            )
        caps = (
            *(cap for cap in self._caps if cap.name not in instead),
            *given,
            *unique(self.name, period, key),
        )
        for cap in caps:
            self._check_key(cap.key, cap.what)
        return no_rule_twice(caps, f"task {self.name!r}: caps")

    def _stamped(self, bound: Mapping[str, Any], options: Options, text: str) -> Stamp:
        return stamp(self.shape, self._arguments.for_keys(bound), options, text)

    def stamp(self, bound: Mapping[str, Any], options: Options, text: str) -> Stamp:
        stamped = self._stamped(bound, options, text)
        if stamped.needs:
            self.app.check_needs(stamped)
        return stamped

    def new_job(self, bound: Mapping[str, Any], parent: str | None) -> NewJob:
        args = self._arguments.encode(bound)
        self.app.check_size(len(args.encode()), f"the arguments of task {self.name!r}")
        stamped = self.stamp(bound, self._using, args)
        return new_job(stamped, self.name, args, self._using, parent)

    def _find_arguments(self, fn: Callable[..., Any]) -> Arguments:
        return Arguments(fn, self.name, payload=self.payload)

    def _use(self, entry: Limit | str) -> Use:
        limit = self.app.find_limit(entry) if isinstance(entry, str) else entry
        if limit is None:
            assert isinstance(entry, str)
            return Use(entry)
        self._check_key(limit.key, f"limit {limit.name!r}")
        return Use(limit.name, limit.key, limit.width)

    def _declare_limits(self, options: TaskOptions) -> tuple[Limit | OneOf | str, ...]:
        entries = check_limits(self.name, options)
        for member in (member for entry in entries for member in members(entry)):
            if isinstance(member, Limit):
                self.app.declare(member)
                self._check_key(member.key, f"limit {member.name!r}")
        return entries

    def _check_key(self, key: Key, what: str) -> None:
        if isinstance(key, str) and not self._arguments.accepts(key):
            raise DeclarationError(
                f"task {self.name!r}: {what} is keyed by argument {key!r}, but the task takes"
                f" {self._arguments.public}"
            )


class SyncTask(Task[P, R]):
    """A task made from a plain function: calling it gives the result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return super().__call__(*args, **kwargs)


class AsyncTask(Task[P, R]):
    """A task made from an async function: calling it gives the coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return super().__call__(*args, **kwargs)


def make_task(
    app: App, fn: Callable[..., Any], name: str | None, options: TaskOptions
) -> Task[..., Any]:
    """A `SyncTask` or an `AsyncTask`, by the function."""
    is_async = inspect.iscoroutinefunction(inspect.unwrap(callee(fn)))
    return (AsyncTask if is_async else SyncTask)(app, fn, name, options)


def _too_late(name: str) -> str:
    return (
        f"task {name!r} has caps, and whoever submitted this job by name did not know them: a"
        " worker has to have published the task before. Submit it again now"
    )
