"""Everything Headgate refuses, in one small family.

Each message says what was refused, why, and what to do about it.
"""

from __future__ import annotations

from functools import partial


def how_to_install(extra: str) -> str:
    """The end of a message about an optional dependency that is missing."""
    return f"run pip install '.[{extra}]' in a checkout of Headgate"


class HeadgateError(Exception):
    """The base of every error raised by Headgate."""


class ConfigError(HeadgateError):
    """The configuration (file, environment, url) cannot be used."""


class DeclarationError(HeadgateError):
    """A task, limit or queue was declared in a way that cannot work."""


class UnknownLimit(DeclarationError):
    """A limit name that exists nowhere: not in code, file, catalogue or override."""


class InvalidSchedule(DeclarationError):
    """A schedule that cannot be used: its text, its time zone or one of its options."""


class ScheduleNotFound(HeadgateError):
    """No schedule of that name is in the store."""


class IsARate(DeclarationError):
    """A rate was used where something is held: a slot of it can be neither taken nor released."""


class UnknownTask(HeadgateError):
    """No such task in this app or in the catalogue of the store."""


class InvalidArguments(HeadgateError):
    """The arguments of a submit do not fit the task, or cannot be stored as JSON."""


class InvalidKey(HeadgateError):
    """A limit or fairness key that is not a JSON scalar, or is null."""


class TooWide(HeadgateError):
    """A job asks for more units than its limit has."""


class IdempotencyConflict(HeadgateError):
    """The idempotency key belongs to a job with another task or other arguments."""


class ConcurrencyLimitReached(HeadgateError):
    """A submission was one too many for a cap: nothing was stored.

    `count` of `cap` are there; `rule` says what is counted: `total` (jobs that are not over),
    `waiting` (those that do not run) or `period` (submitted within the period that ends at
    `until`). `existing` is the id of one that is counted.
    """

    def __init__(
        self,
        group: str,
        count: int,
        cap: int,
        *,
        rule: str = "total",
        existing: str | None = None,
        until: float | None = None,
    ) -> None:
        super().__init__(_too_many(group, count, cap, rule))
        self.group = group
        self.count = count
        self.cap = cap
        self.rule = rule
        self.existing = existing
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        """By its parts, not by its message: it may cross from one process to another."""
        make = partial(type(self), rule=self.rule, existing=self.existing, until=self.until)
        return make, (self.group, self.count, self.cap)


def _too_many(group: str, count: int, cap: int, rule: str) -> str:
    if rule == "period":
        return (
            f"not submitted: {group!r} takes {cap} per period and has {count} in this one. "
            "Submit again when the period is over"
        )
    if cap == 0:
        return f"not submitted: the cap of {group!r} is 0, which takes nothing new"
    what = "waiting" if rule == "waiting" else "waiting or running"
    return (
        f"not submitted: {count} of {group!r} are {what} and its cap is {cap}. "
        "Submit again when one of them is over, or choose another `when_full`"
    )


class CapNeedsCode(HeadgateError):
    """A capped task cannot be submitted by its name alone: what its cap counts is told by code
    that is not here, or by a catalogue that does not hold the task yet."""


class WrongConnection(HeadgateError):
    """A submit cannot go through the connection that was passed as `conn=`."""


class JobNotFound(HeadgateError):
    """No job with that id is in the store (it may have been pruned)."""


class JobFailed(HeadgateError):
    """`JobHandle.result()` on a job that failed: carries the remote error."""

    def __init__(
        self, message: str, *, reason: str = "", error_type: str = "", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.error_type = error_type
        self.remote_traceback = remote_traceback


class JobCancelled(HeadgateError):
    """`JobHandle.result()` on a job that was cancelled or expired."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class CommandFailed(HeadgateError):
    """A command ended with another exit code than 0, or could not be started.

    `code` is the exit code, 128 more than the number of the signal that ended it; 127 and 126
    tell that there is no such program, or none that may be run. `again`: a retry may help.
    """

    def __init__(self, message: str, code: int, *, again: bool = True) -> None:
        super().__init__(message)
        self.code = code
        self.again = again

    def __reduce__(self) -> tuple[object, ...]:
        """By its parts: it may cross from one process to another."""
        return partial(type(self), again=self.again), (str(self), self.code)


class WouldDeadlock(HeadgateError):
    """A job would wait for another job that needs a group the first one holds."""


class StaleAttempt(HeadgateError):
    """The attempt is no longer the running one: nothing was changed."""


class SlotLost(HeadgateError):
    """A slot that was held is held no more (its lease ended, or it was released)."""


class StoreError(HeadgateError):
    """The store could not do what was asked. Nothing was changed."""


class StoreBusy(StoreError):
    """Another process kept the store locked for too long."""


class StoreUnavailable(StoreError):
    """The store cannot be opened, read or written (missing, read-only, full, damaged)."""


class StoreInDoubt(StoreUnavailable):
    """The connection was lost while a commit was under way: it may have happened or not.
    Repeat the call with the same token or idempotency key."""


class SubmitConflict(StoreError):
    """The transaction is too old to see who holds the last places under a cap. Nothing is wrong
    and nothing was stored: roll the transaction back and run it again."""


class StoreVersion(StoreError):
    """The store was written by another version of Headgate, or never prepared for one."""


class Control(Exception):
    """What a job raises to say how its attempt ends."""


class Retry(Control):
    """End this attempt and try again after `delay` seconds. Counts as a retry.

    >>> raise Retry(delay=5)          # doctest: +SKIP
    """

    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry asked for")
        self.delay = delay
        self.reason = reason


class Snooze(Control):
    """End this attempt and run again after `delay` seconds, at a new place in line.

    >>> raise Snooze(60)              # doctest: +SKIP
    """

    def __init__(self, delay: float, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay} s")
        self.delay = delay
        self.reason = reason


class Cancel(Control):
    """End the job as cancelled.

    >>> raise Cancel("the invoice is paid")   # doctest: +SKIP
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "cancelled by its own code")
        self.reason = reason or "cancelled by its own code"
