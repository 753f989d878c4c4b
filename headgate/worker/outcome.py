"""How the end of the code becomes the end of the attempt: pure decisions."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Literal

import msgspec

from headgate.codec import plain
from headgate.errors import Cancel, CommandFailed, Retry, Snooze
from headgate.jobs import Failure, Finish, NewJob
from headgate.options import MAX_SECONDS

StopKind = Literal["timeout", "cancel", "shutdown", "lease", "stale"]

EndingKind = Literal[
    "returned",  # the code gave a result
    "raised",  # the code raised an error
    "retry",  # Retry, Snooze, Cancel: the code said how it ends
    "snooze",
    "cancel",
    "refused",  # it cannot be run or its result not be kept: trying again would not help
    "crashed",  # its process died by itself
    "stopped",  # we stopped it
    "unstarted",  # it was never begun
]

MAX_TRACEBACK = 32_000
MAX_MESSAGE = 4_000


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an attempt was asked to stop. The first reason counts."""

    kind: StopKind
    reason: str


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How the code of an attempt ended. Texts only: it may come from another process."""

    kind: EndingKind
    result: str | None = None
    failure: Failure | None = None
    delay: float | None = None
    reason: str = ""
    again: bool = True
    """False: trying again would not help, whatever the retries."""


class Allowance(msgspec.Struct, frozen=True):
    """How often the job may still be tried: its errors before this attempt, and its retries."""

    errors: int
    retries: int
    delay: Callable[[], float] = lambda: 1.0
    """The delay before a retry, for ends that have no error to compute it from."""


def finish(
    token: int,
    ending: Ending,
    stop: Stop | None,
    allowance: Callable[[], Allowance],
    followups: tuple[NewJob, ...] = (),
) -> Finish | None:
    """What to tell the store; None when the attempt is not ours to finish any more."""
    if ending.kind == "unstarted":
        reason = stop.kind if stop is not None else ""
        if stop is not None and stop.kind == "cancel":
            return Finish(token, "cancelled", stop.reason)
        return Finish(token, "returned", reason)
    if stop is not None:
        if stop.kind == "stale":
            return None
        if stop.kind == "timeout":
            return _error(token, ending, allowance(), "timeout", _timed_out(stop, ending))
        # Code that came to its end in spite of the order to stop did what it was there for.
        if ending.kind not in ("returned", "refused"):
            if stop.kind == "cancel":
                return Finish(token, "cancelled", stop.reason)
            return Finish(token, "interrupted", stop.kind)
    match ending.kind:
        case "returned":
            return Finish(token, "succeeded", result=ending.result, followups=followups)
        case "cancel":
            return Finish(token, "cancelled", ending.reason)
        case "snooze":
            return Finish(token, "snoozed", ending.reason, delay=ending.delay or 0.0)
        case "refused":
            return Finish(token, "failed", ending.reason, error=ending.failure)
        case "crashed":
            return _error(token, ending, allowance(), "crashed", ending.failure)
        case "retry":
            return _error(token, ending, allowance(), ending.reason or "retry", ending.failure)
        case _:
            return _error(token, ending, allowance(), ending.reason or "error", ending.failure)


def _error(
    token: int, ending: Ending, allowance: Allowance, reason: str, failure: Failure | None
) -> Finish:
    if allowance.errors >= allowance.retries or not ending.again:
        return Finish(token, "failed", reason, result=ending.result, error=failure)
    delay = ending.delay if ending.delay is not None else allowance.delay()
    return Finish(token, "retry", reason, error=failure, delay=delay)


def refused_followup(
    token: int, error: BaseException, allowance: Allowance, delay: float
) -> Finish:
    """The end of an attempt whose code returned, but what it submitted did not fit under a cap."""
    return _error(token, Ending("raised", delay=delay), allowance, "error", failure_of(error))


def _timed_out(stop: Stop, ending: Ending) -> Failure:
    trace = ending.failure.traceback if ending.failure is not None else ""
    return Failure("TimeoutError", stop.reason, trace)


# --- from exceptions to texts -----------------------------------------------------------------


def ending_of(error: BaseException, delay: float | None) -> Ending:
    """The ending of code that raised `error`; `delay` is that before a retry."""
    match error:
        case Retry():
            chosen = delay if error.delay is None else _seconds(error.delay)
            reason = _reason(error)
            return Ending("retry", failure=failure_of(error), delay=chosen, reason=reason)
        case Snooze():
            return Ending("snooze", delay=_seconds(error.delay), reason=_reason(error))
        case Cancel():
            return Ending("cancel", reason=_reason(error))
        case CommandFailed():
            # Where in our code it was raised tells nobody anything.
            failure = Failure("CommandFailed", plain(str(error))[:MAX_MESSAGE])
            return Ending(
                *("raised", str(error.code), failure, delay, f"exit {error.code}", error.again)
            )
        case _:
            return Ending("raised", failure=failure_of(error), delay=delay)


def _seconds(value: object) -> float:
    """What the code asked for, made usable: a job must not vanish behind `Snooze(nan)`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and math.isfinite(value):
        return min(max(0.0, float(value)), MAX_SECONDS)
    return 1.0


def _reason(error: Retry | Snooze | Cancel) -> str:
    """Untyped code gives anything, an exception for instance: it becomes a text here, for a
    store that refuses it would refuse everything that travels with it."""
    reason: object = error.reason
    try:
        return plain(str(reason))[:MAX_MESSAGE]
    except Exception as broken:
        return f"(its text cannot be had: {type(broken).__name__})"


def refused(reason: str, error: BaseException) -> Ending:
    """The attempt fails for good."""
    return Ending("refused", failure=failure_of(error), reason=reason)


def failure_of(error: BaseException) -> Failure:
    """An exception as texts that every store can keep."""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its text cannot be had: {type(broken).__name__})"
    try:
        lines = traceback.format_exception(error.with_traceback(_inner(error)))
    except Exception as broken:
        lines = [f"(the traceback cannot be shown: {type(broken).__name__})"]
    trace = "".join(lines)
    if len(trace) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        trace = f"{trace[:half]}\n… {len(trace) - 2 * half} characters left out …\n{trace[-half:]}"
    return Failure(
        plain(f"{module}{kind.__qualname__}"), plain(message)[:MAX_MESSAGE], plain(trace)
    )


def _inner(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of the worker itself."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("headgate.worker."):
            break
        trace = trace.tb_next
    return trace
