"""How long to wait before something is tried again: a job, or a call to a store that failed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from headgate.errors import DeclarationError

RetryDelay = float | timedelta | Callable[[int, BaseException], float]
"""Seconds, or a callable of (errors so far, the last error) that gives seconds."""


_FAR = 64
"""Steps after which every wait is the longest: an outage of hours has thousands of failures, and
two to the power of that is no number any more."""


def grown(steps: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Seconds: `first`, times `factor` for each step, up to `longest`.

    >>> [grown(n, 0.5, 3.0) for n in (0, 1, 2, 3, 100_000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    return min(first * factor ** min(steps, _FAR), longest)


def worth_telling(failures: int) -> bool:
    """The first of many failures, the fifth, and then now and then.

    >>> [n for n in range(1, 100) if worth_telling(n)]
    [1, 5, 30, 60, 90]
    """
    return failures in (1, 5) or failures % 30 == 0


@dataclass(frozen=True, slots=True)
class Backoff:
    """`base` seconds, times `factor` after each error, up to `cap`, ± `jitter` of it.

    >>> Backoff(base=1, jitter=0)(3, ValueError())
    4.0
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if not (self.base >= 0 and self.factor >= 1 and self.cap >= 0 and 0 <= self.jitter <= 1):
            raise DeclarationError(
                f"{self}: base and cap must be at least 0, factor at least 1, jitter from 0 to 1"
            )

    def __call__(self, errors: int, error: BaseException) -> float:
        delay = grown(max(errors - 1, 0), self.base, self.cap, self.factor)
        return delay * (1 + self.jitter * random.uniform(-1, 1))


FLOOR = 1.0
"""The least delay of a retry for which nobody set one."""


def delay_before_retry(chosen: RetryDelay | None, errors: int, error: BaseException) -> float:
    """Seconds until the next try; only what the user chose may be under the floor."""
    if chosen is None:
        return max(FLOOR, Backoff()(errors, error))
    if isinstance(chosen, timedelta):
        return chosen.total_seconds()
    if not callable(chosen):
        return float(chosen)
    delay = float(chosen(errors, error))
    if not math.isfinite(delay) or delay < 0:
        raise DeclarationError(
            f"the retry delay function gave {delay!r}: it must give seconds, at least 0"
        )
    return delay


def check_retry_delay(value: object, task: str) -> RetryDelay | None:
    if value is None or callable(value):
        return cast("RetryDelay | None", value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise DeclarationError(
            f"task {task!r}: retry_delay must be seconds from 0, a timedelta or a callable of"
            f" (errors, error), got {value!r}"
        )
    return seconds
