"""What a task is declared with: the options of `@app.task`, and what is checked of them at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

from headgate.backoff import RetryDelay
from headgate.caps import Cap
from headgate.errors import DeclarationError
from headgate.jobs import DEFAULT_MAX_LOST, DEFAULT_QUEUE
from headgate.limits import Key, Limit, OneOf, check_name

Isolate = Literal["process"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """All that `@app.task(...)` accepts beside the name, checked."""

    limits: Sequence[Limit | OneOf | str] = ()
    max_concurrent: int | None = None
    retries: int = 0
    retry_delay: RetryDelay | None = None
    max_lost: int = DEFAULT_MAX_LOST
    timeout: float | timedelta | None = None
    expires: float | timedelta | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    isolate: Isolate = None
    fair_by: Key = None
    aliases: Sequence[str] = ()
    payload: bool = False
    caps: Sequence[Cap] = ()
    unique_for: float | timedelta | None = None
    unique_key: Key = None


def callee(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is called in the end, and tells whether it is async."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # The method itself is asked for, not whether there is one.
    return fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a task that was given none."""
    name = getattr(fn, "__name__", "")
    if not name or name == "<lambda>":
        raise DeclarationError(f'{fn!r} has no name of its own: use app.task("name")(…)')
    return name


def check_aliases(name: str, aliases: object) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise DeclarationError(f"task {name!r}: aliases must be a list of names, got {aliases!r}")
    checked = tuple(check_name(alias, "task") for alias in cast("Sequence[object]", aliases))
    if name in checked or len(set(checked)) != len(checked):
        raise DeclarationError(f"task {name!r}: an alias stands twice or is the name itself")
    return checked


def check_isolate(name: str, fn: Callable[..., Any], isolate: object) -> Isolate:
    if isolate is None:
        return None
    if isolate != "process":
        raise DeclarationError(f"task {name!r}: isolate is None or 'process', got {isolate!r}")
    qualname = getattr(fn, "__qualname__", "<object>")
    if "<" in qualname:
        raise DeclarationError(
            f"task {name!r}: isolate='process' needs a function that another process can"
            f" import, but {qualname!r} is local or has no name: define it at module level"
        )
    return "process"


def check_limits(task: str, options: TaskOptions) -> tuple[Limit | OneOf | str, ...]:
    """The limits that a task names, its own (`max_concurrent`) first; each once."""
    # Also from untyped code: one limit instead of a list would be read letter by letter.
    if isinstance(options.limits, str | Limit | OneOf):
        raise DeclarationError(f"task {task!r}: limits must be a list of limits")
    entries: list[Limit | OneOf | str] = list(options.limits)
    if options.max_concurrent is not None:
        entries.insert(0, Limit(task, options.max_concurrent))
    names = [_name_of_limit(task, member) for entry in entries for member in members(entry)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DeclarationError(
            f"task {task!r} names limit {twice!r} twice: name it once, with units(n)"
        )
    return tuple(entries)


def members(entry: Limit | OneOf | str) -> Sequence[Limit | str]:
    return entry.members if isinstance(entry, OneOf) else (entry,)


def _name_of_limit(task: str, member: object) -> str:
    if isinstance(member, Limit):
        return member.name
    if isinstance(member, str):
        return check_name(member, "limit")
    raise DeclarationError(f"task {task!r}: a limit is a Limit, a OneOf or a name, got {member!r}")
