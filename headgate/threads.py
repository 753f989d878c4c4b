"""Blocking calls from an event loop, each in a thread of its own if need be.

Not `asyncio.to_thread`: its pool has a few threads, which code of the user's shares. A job that
waits there for its groups would keep the one that holds them from getting a thread to give
them back.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_MOST = 10_000


class _Threads:
    """Made on need, and made anew in a child: threads do not survive a fork."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.pool = ThreadPoolExecutor(_MOST, thread_name_prefix="headgate")


_threads = _Threads()


async def in_thread(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `fn` in another thread, in a copy of this context, and wait for it."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads.pool, lambda: context.run(fn, *args, **kwargs))


class OwnThread:
    """A thread that makes blocking calls for one event loop, one after the other.

    Not `run_in_executor`: that makes two futures of each call and locks them a dozen times, which
    takes a worker that has just been woken as long as the claim itself.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Belongs to the loop, like `close`."""
        future: asyncio.Future[R] = self._loop.create_future()

        def made() -> None:
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                tell(self._loop, fail, future, error)
            else:
                tell(self._loop, settle, future, value)

        if self._thread is None:
            # A loop that was left behind must not keep the process from its end.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(made)
        return future

    def close(self) -> None:
        """It ends when the call under way has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (made := self._calls.get()) is not None:
            made()


def tell(loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
    """Call it in the loop, from another thread; if that is closed, nobody waits any more."""
    try:
        loop.call_soon_threadsafe(fn, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def settle(future: asyncio.Future[R], value: R) -> None:
    """In its loop."""
    if not future.done():  # whoever waited may be gone
        future.set_result(value)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """In its loop."""
    if not future.done():
        future.set_exception(error)


def twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The same method for code in an event loop: `aset = twin(set)` in the body of its class."""
    name = method.__name__

    @functools.wraps(method)
    async def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    called.__name__ = f"a{name}"
    called.__qualname__ = f"{method.__qualname__.removesuffix(name)}a{name}"
    called.__doc__ = f"`{name}` for code in an event loop."
    return called
