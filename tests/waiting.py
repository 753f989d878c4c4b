"""The one place in the tests that polls, and sleeps in between.

A wait ends when its event happens. Its deadline only ends a test that has failed, so it is far
longer than the event takes on the slowest machine."""

from __future__ import annotations

import asyncio
import linecache
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that any one event may take."""
SHORTEST, LONGEST = 0.005, 0.2
LOOKS = 4.0
"""A pause between two looks takes as long as this many looks, so that looking does not slow down
what is looked at."""


def wait_until(
    reached: Callable[[], T], seconds: float = PATIENCE, why: str | Callable[[], str] = ""
) -> T:
    """The first true answer. `why` names what is waited for, or is called after the deadline;
    without it the line of the call is shown."""
    pauses = _pauses(seconds, why, sys._getframe(1))
    while not (found := reached()):
        time.sleep(next(pauses))
    return found


async def wait_until_async(
    reached: Callable[[], T], seconds: float = PATIENCE, why: str | Callable[[], str] = ""
) -> T:
    """The same, beside whatever else runs in the event loop."""
    pauses = _pauses(seconds, why, sys._getframe(1))
    while not (found := reached()):
        await asyncio.sleep(next(pauses))
    return found


def _pauses(seconds: float, why: str | Callable[[], str], caller: FrameType) -> Iterator[float]:
    pause, deadline = SHORTEST, time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        yield pause
        look = time.monotonic() - now - pause
        pause = min(max(SHORTEST, LOOKS * look), LONGEST)
    line = linecache.getline(caller.f_code.co_filename, caller.f_lineno).strip()
    shown = why() if callable(why) else why or line
    raise AssertionError(f"not within {seconds:g} s: {shown}")
