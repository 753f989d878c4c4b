"""What an app does round its jobs and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field

from headgate.context import Context

Plain = Callable[[], Awaitable[None] | None]
Around = Callable[[Context], AbstractContextManager[object] | AbstractAsyncContextManager[object]]
OnOrder = Callable[[str], Awaitable[bool]]
"""Called with what was ordered; True: the app declares something else now."""
OnError = Callable[[Context, BaseException], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """In the order they were declared; each may be sync or async."""

    worker_start: list[Plain] = field(default_factory=list[Plain])
    worker_stop: list[Plain] = field(default_factory=list[Plain])
    around_job: list[Around] = field(default_factory=list[Around])
    error: list[OnError] = field(default_factory=list[OnError])
    order: list[OnOrder] = field(default_factory=list[OnOrder])
    """For programs that take further signals: see `Guard`."""
