"""A fork finds none of our own threads within SQLite.

SQLite has locks of its own, for its memory among others. A child that is forked while another
thread holds one of them waits for it for ever, as that thread does not exist in the child. The
threads that a program starts are its own to mind; of those that we start beside them it knows
nothing, so whoever forks waits until they are out, and they wait until it has.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_within = threading.RLock()
"""Held by one of our threads while it is within SQLite, and by whoever forks. It can be taken
twice: what is deleted meanwhile may be a cursor of the same thread."""
_threads = threading.local()

os.register_at_fork(
    before=_within.acquire, after_in_parent=_within.release, after_in_child=_within.release
)


def ours(work: Callable[P, R]) -> Callable[P, R]:
    """What a thread of our own runs: the connections that it opens are calm ones."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _threads.ours = True
        return work(*args, **kwargs)

    return run


def is_ours() -> bool:
    return getattr(_threads, "ours", False)


def no_fork() -> AbstractContextManager[object]:
    """Around what a thread of ours does on a connection that it shares with others, where each
    single statement would be too dear to guard."""
    return _within if is_ours() else nullcontext()


class CalmCursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> CalmCursor:
        with _within:
            super().execute(*args)
        return self

    def executemany(self, *args: Any) -> CalmCursor:
        with _within:
            super().executemany(*args)
        return self

    def fetchone(self) -> Any:
        with _within:
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        with _within:
            return super().fetchall()

    def __next__(self) -> Any:
        with _within:
            return super().__next__()

    def __del__(self) -> None:
        # What was not read to its end is given up here, and that is within SQLite too.
        with _within, suppress(sqlite3.ProgrammingError):  # its connection may be closed by now
            self.close()


class CalmConnection(sqlite3.Connection):
    """One that our own threads use, if need be in turn with others."""

    def cursor(self, factory: Any = CalmCursor) -> Any:
        return super().cursor(factory)

    def execute(self, *args: Any) -> CalmCursor:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> CalmCursor:
        return self.cursor().executemany(*args)

    def close(self) -> None:
        with _within:
            super().close()
