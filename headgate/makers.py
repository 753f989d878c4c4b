"""How a function's type becomes that of its task.

A first parameter annotated `Context` is taken out of the signature of `submit`; the result
of an async function is what it gives when awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from headgate.context import Context
from headgate.tasks import AsyncTask, SyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class Anything(Protocol):
    """No type that anybody names: only a first parameter without an annotation takes it.

    A function that takes it could take a context too, but nobody said so. Its arguments are
    left unchecked.
    """

    def __headgate_anything__(self) -> None: ...


class TaskMaker(Protocol):
    """What `app.task("name", ...)` gives: it makes the task from the function."""

    # The overloads overlap on purpose: the first that fits is the most exact.
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Anything, P], Coroutine[Any, Any, R]], /
    ) -> Task[..., R]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Anything, P], R], /
    ) -> Task[..., R]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


class PayloadTaskMaker(Protocol):
    """The same with `payload=True`: the task takes one payload, whatever the handler takes."""

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[..., Coroutine[Any, Any, R]], /
    ) -> AsyncTask[[Any], R]: ...
    @overload
    def __call__(self, fn: Callable[..., R], /) -> SyncTask[[Any], R]: ...
