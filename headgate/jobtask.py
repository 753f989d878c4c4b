"""The task behind a job class: how its objects become jobs, and jobs objects again."""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headgate.arguments import Arguments, is_context
from headgate.calls import Call
from headgate.caps import Cap, Policy, check_policy, describe_cap, no_rule_twice
from headgate.errors import DeclarationError
from headgate.jobclass import Aborted, Job, JobOptions
from headgate.jobs import State
from headgate.limits import Key, Limit, check_name, check_value
from headgate.options import Options
from headgate.stores.protocol import LimitUse, TaskSpec
from headgate.submit import Stamp, Use, stamp
from headgate.taskoptions import TaskOptions
from headgate.tasks import Task

if TYPE_CHECKING:
    from headgate.app import App

OPTIONS = tuple(
    field.name
    for field in fields(TaskOptions)
    if field.name not in ("max_concurrent", "payload", "aliases")
)
"""The attributes of a class that are options of its task."""
OWN = ("one_per", "cap_at_submit")


class JobTask(Task[..., Any]):
    """Made by `@app.job`: builds the object from the stored arguments and runs it."""

    def __init__(
        self, app: App, cls: type[Job], name: str | None, given: Mapping[str, Any]
    ) -> None:
        _check_class(cls)
        self.cls = cls
        chosen: dict[str, Any] = {option: getattr(cls, option) for option in OPTIONS}
        chosen |= {option: value for option, value in given.items() if option not in OWN}
        self._instance: Job | None = None
        self._key: str | None = None
        super().__init__(app, _runner(cls), name, TaskOptions(**chosen))
        self.one_per = self._check_one_per(given.get("one_per", cls.one_per))
        self.cap_at_submit: Policy | None = self._check_cap_at_submit(
            given.get("cap_at_submit", cls.cap_at_submit)
        )
        self.has_key = cls.get_concurrency_key is not Job.get_concurrency_key
        self.has_limit = cls.get_concurrency_limit is not Job.get_concurrency_limit
        self.fixed, self.value = self._find_value()
        """Is the limit the same for every job, and which is it then?"""
        if self.fixed and self.value is not None:
            # Declared like any other, so that it follows deployments: what is in line is
            # claimed under the value of the code that runs now.
            self.app.declare(Limit(self.name, self.value, key=self.one_per))
        if self.one_per is not None or self.has_key or self.has_limit:
            check_name(self.name, "limit")
        no_rule_twice((*self._find_caps(), *self._own_cap(0, None)), f"job class {self.name!r}")

    def _check_one_per(self, one_per: object) -> str | None:
        if one_per is None:
            return None
        if not isinstance(one_per, str):
            raise DeclarationError(
                f"job class {self.name!r}: one_per is the name of an argument, got {one_per!r}"
            )
        self._check_key(one_per, "one_per")
        overrides = [
            name
            for name in ("get_concurrency_key", "get_concurrency_limit")
            if getattr(self.cls, name) is not getattr(Job, name)
        ]
        if overrides:
            raise DeclarationError(
                f"job class {self.name!r} has one_per and {overrides[0]}: one_per says both key"
                " and limit, so leave one of them out"
            )
        return one_per

    def _check_cap_at_submit(self, value: object) -> Policy | None:
        if isinstance(value, bool):
            return "reject" if value else None
        return check_policy(value, f"job class {self.name!r}: cap_at_submit")

    # --- the group of the class ---------------------------------------------------------------

    def _find_value(self) -> tuple[bool, int | None]:
        if self.one_per is not None:
            return True, 1
        if not self.has_limit:
            return True, None
        bare = object.__new__(self.cls)
        for name in self._arguments.public.parameters:
            bare.__dict__[name] = _UNSET
        try:
            value = bare.get_concurrency_limit()
        except Exception:
            # It asks the arguments, so it is told job by job.
            return False, None
        if value is _UNSET:
            return False, None
        return True, check_value(value, self.name)

    def _object(self, bound: Mapping[str, Any]) -> Job:
        if self._instance is not None:
            return self._instance
        args, kwargs = self._arguments.call_form(bound, _NO_CONTEXT)
        return self.cls(*args, **kwargs)

    def _group(self, bound: Mapping[str, Any]) -> tuple[Key, int | None]:
        """(where the key comes from, limit) of one job; no key is the class as a whole."""
        said = None if self._key is None else _key(self._key)
        if self.one_per is not None:
            return (self.one_per if self._key is None else said), 1
        if not (self.has_key or self.has_limit):
            return said, None
        job = self._object(bound)
        if self._key is None:
            said = _key(job.get_concurrency_key())
        return said, check_value(job.get_concurrency_limit(), self.name)

    def _stamped(self, bound: Mapping[str, Any], options: Options, text: str) -> Stamp:
        args = self._arguments.for_keys(bound)
        if "concurrency_group" in options:
            return stamp(self.shape, args, options, text)  # another group in place of its own
        key, limit = self._group(bound)
        if "concurrency_limit" in options:
            limit = options["concurrency_limit"]
            left = {k: v for k, v in options.items() if k != "concurrency_limit"}
            options = cast("Options", left)
        shape = self.shape
        if limit is None:
            return stamp(shape, args, options, text)
        every = (Use(self.name, key), *shape.all)
        caps = no_rule_twice((*shape.caps, *self._own_cap(limit, key)), f"job class {self.name!r}")
        stamped = stamp(replace(shape, all=every, caps=caps), args, options, text)
        if self.fixed and limit == self.value:
            return stamped
        # It counts where nothing else declares a value, and is shown where it differs.
        return replace(stamped, carried=((stamped.needs.all[0].group, limit),))

    def _own_cap(self, limit: int, key: Key) -> tuple[Cap, ...]:
        instead = self._using.get("caps", ())
        if self.cap_at_submit is None or any(cap.name == self.name for cap in instead):
            return ()
        return (Cap(self.name, max_total=limit, key=key, when_full=self.cap_at_submit),)

    # --- what others are told -----------------------------------------------------------------

    def spec(self) -> TaskSpec:
        spec = super().spec()
        told = self._told_group()
        if told is not None:
            spec = replace(spec, limits=(told, *spec.limits))
            key = _Said("") if told.callable else told.key
            own = (describe_cap(cap) for cap in self._own_cap(self.value or 0, key))
            spec = replace(spec, caps=(*spec.caps, *own))
        if self.tells:
            spec = replace(spec, on_aborted=f"{self.name}.on_aborted")
        return spec

    def _told_group(self) -> LimitUse | None:
        if self.one_per is not None:
            return LimitUse(self.name, key=self.one_per)
        if self.fixed and self.value is None:
            return None
        return LimitUse(self.name, callable=self.has_key or not self.fixed)

    # --- from an object to a job, and back ----------------------------------------------------

    def call_of(self, job: Job, options: JobOptions) -> Call[Any]:
        given = dict(cast("Mapping[str, Any]", options))
        key = given.pop("concurrency_key", None)
        if key is not None and not isinstance(key, str):
            raise DeclarationError(f"concurrency_key must be a text, got {key!r}")
        if key is not None and "concurrency_group" in given:
            raise DeclarationError(
                "concurrency_key is a key of the class's own group, concurrency_group another"
                " group: give one of them"
            )
        task = self.using(**given) if given else copy.copy(self)
        task._instance, task._key = job, key
        args, kwargs = job._headgate_given
        return Call(task, self._arguments.bind(args, kwargs))

    def _find_arguments(self, fn: Callable[..., Any]) -> Arguments:
        return _ClassArguments(fn, self.name, self.cls)

    @property
    def import_path(self) -> tuple[str, str]:
        return self.cls.__module__, self.cls.__qualname__

    # --- on_aborted ---------------------------------------------------------------------------

    @property
    def tells(self) -> bool:
        return self.cls.on_aborted is not Job.on_aborted

    def teller(self) -> Task[..., Any]:
        """The task that calls `on_aborted`: a job of it is stored with the end it tells of."""

        def build(job: str, state: State, reason: str, args: Any) -> tuple[Job, Aborted]:
            bound = self._arguments.decode(msgspec.json.encode(args).decode())
            made, named = self._arguments.call_form(bound, _NO_CONTEXT)
            return self.cls(*made, **named), Aborted(job, state, reason)

        async def tell_async(job: str, state: State, reason: str, args: Any) -> None:
            instance, aborted = build(job, state, reason, args)
            await instance.on_aborted(aborted)

        def tell_sync(job: str, state: State, reason: str, args: Any) -> None:
            instance, aborted = build(job, state, reason, args)
            instance.on_aborted(aborted)

        tell = tell_async if inspect.iscoroutinefunction(self.cls.on_aborted) else tell_sync
        tell.__module__ = self.cls.__module__
        tell.__qualname__ = f"{self.cls.__qualname__}.on_aborted"
        options = TaskOptions(
            queue=self.queue,
            priority=self.priority,
            retries=self.retries,
            retry_delay=self._retry_delay,
            max_lost=self.max_lost,
            timeout=self.timeout,
            isolate=self.isolate,
        )
        return Task(self.app, tell, f"{self.name}.on_aborted", options)


class _ClassArguments(Arguments):
    """The arguments of a constructor; the result is that of `run`."""

    def __init__(self, fn: Callable[..., Any], task: str, cls: type[Job]) -> None:
        self._cls = cls
        super().__init__(fn, task, payload=False)

    def _find_contexts(self) -> frozenset[str]:
        init = _constructor(self._cls)
        if any(is_context(init, p) for p in self._parameters.values()):
            raise DeclarationError(
                f"job class {self.task!r} takes a Context in its constructor, which runs where the"
                " job is submitted too: use self.context in run()"
            )
        return frozenset()

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        try:
            found = typing.get_type_hints(_constructor(self._cls), include_extras=True)
            result = typing.get_type_hints(self._cls.run, include_extras=True)
        # Annotations are anybody's code: reading them may raise whatever it likes.
        except Exception as error:
            raise DeclarationError(
                f"job class {self.task!r}: its annotations cannot be read ({error}). Types of"
                " arguments and results must be importable where the class is defined, not only"
                " under TYPE_CHECKING and not local to a function"
            ) from None
        found.pop("return", None)
        return {**found, "return": result["return"]} if "return" in result else found


class _Said:
    """A key that was said already, as a callable that needs no arguments."""

    def __init__(self, key: object) -> None:
        self.key = key

    def __call__(self) -> object:
        return self.key


def _key(said: object) -> _Said | None:
    return None if said == "" else _Said(said)


class _Unset:
    """In place of an argument, to see whether a limit depends on it: any use is an error."""

    def _used(self, *_: object) -> Any:
        raise AttributeError("the limit depends on an argument")

    __getattr__ = __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _used
    __str__ = __repr__ = __format__ = __hash__ = __len__ = __iter__ = __int__ = _used
    __index__ = __float__ = __contains__ = __getitem__ = __call__ = _used


_UNSET = _Unset()
_NO_CONTEXT = cast("Any", None)


def _constructor(cls: type[Job]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", cls.__init__)


def _check_class(cls: object) -> None:
    if not isinstance(cls, type) or not issubclass(cls, Job):
        raise DeclarationError(
            f"@app.job is for classes that derive from headgate.Job, got {cls!r}; a function is"
            " made a task with @app.task"
        )
    if cls.run is Job.run:
        raise DeclarationError(f"job class {cls.__qualname__} has no run()")
    taken = list(inspect.signature(cls.run).parameters.values())[1:]
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken):
        raise DeclarationError(
            f"job class {cls.__qualname__}: run() takes nothing but self. What the job needs"
            " is given to its constructor"
        )
    if "_headgate_task" in cls.__dict__:
        raise DeclarationError(f"job class {cls.__qualname__} is declared twice")


def _runner(cls: type[Job]) -> Callable[..., Any]:
    """What a worker calls with the job's arguments."""

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await cls(*args, **kwargs).run()

    def run_sync(*args: Any, **kwargs: Any) -> Any:
        return cls(*args, **kwargs).run()

    run = run_async if inspect.iscoroutinefunction(cls.run) else run_sync
    parameters = list(inspect.signature(_constructor(cls)).parameters.values())[1:]
    # A function has no such attribute until it is given one, which `inspect` then believes.
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__name__, run.__qualname__ = cls.__name__, cls.__qualname__
    run.__module__, run.__doc__ = cls.__module__, cls.__doc__
    return run
