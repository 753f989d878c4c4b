"""Headgate: a job queue in which how many may run at once is exact, fair and free.

>>> from headgate import App, Limit, Worker
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.backoff import Backoff
    from headgate.calls import Call
    from headgate.caps import Cap
    from headgate.context import Context, current
    from headgate.errors import (
        Cancel,
        CapNeedsCode,
        CommandFailed,
        ConcurrencyLimitReached,
        ConfigError,
        Control,
        DeclarationError,
        HeadgateError,
        IdempotencyConflict,
        InvalidArguments,
        InvalidKey,
        InvalidSchedule,
        IsARate,
        JobCancelled,
        JobFailed,
        JobNotFound,
        Retry,
        ScheduleNotFound,
        SlotLost,
        Snooze,
        StaleAttempt,
        StoreBusy,
        StoreError,
        StoreUnavailable,
        StoreVersion,
        SubmitConflict,
        TooWide,
        UnknownLimit,
        UnknownTask,
        WouldDeadlock,
        WrongConnection,
    )
    from headgate.handle import JobHandle
    from headgate.jobclass import Aborted, Job
    from headgate.jobs import Refusal
    from headgate.limits import Limit, OneOf
    from headgate.rates import Rate
    from headgate.schedules.schedule import Schedule
    from headgate.slots import ConcurrencyStatus, Slot, SlotInfo
    from headgate.tasks import Task
    from headgate.worker.embedded import Worker

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "App",
    "Backoff",
    "Call",
    "Cancel",
    "Cap",
    "CapNeedsCode",
    "CommandFailed",
    "ConcurrencyLimitReached",
    "ConcurrencyStatus",
    "ConfigError",
    "Context",
    "Control",
    "DeclarationError",
    "HeadgateError",
    "IdempotencyConflict",
    "InvalidArguments",
    "InvalidKey",
    "InvalidSchedule",
    "IsARate",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "Limit",
    "OneOf",
    "Rate",
    "Refusal",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "Slot",
    "SlotInfo",
    "SlotLost",
    "Snooze",
    "StaleAttempt",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "StoreVersion",
    "SubmitConflict",
    "Task",
    "TooWide",
    "UnknownLimit",
    "UnknownTask",
    "Worker",
    "WouldDeadlock",
    "WrongConnection",
    "__version__",
    "current",
]


_HOMES = {
    "app": ("App",),
    "backoff": ("Backoff",),
    "calls": ("Call",),
    "caps": ("Cap",),
    "context": ("Context", "current"),
    "errors": (
        "Cancel",
        "CapNeedsCode",
        "CommandFailed",
        "ConcurrencyLimitReached",
        "ConfigError",
        "Control",
        "DeclarationError",
        "HeadgateError",
        "IdempotencyConflict",
        "InvalidArguments",
        "InvalidKey",
        "InvalidSchedule",
        "IsARate",
        "JobCancelled",
        "JobFailed",
        "JobNotFound",
        "Retry",
        "ScheduleNotFound",
        "SlotLost",
        "Snooze",
        "StaleAttempt",
        "StoreBusy",
        "StoreError",
        "StoreUnavailable",
        "StoreVersion",
        "SubmitConflict",
        "TooWide",
        "UnknownLimit",
        "UnknownTask",
        "WouldDeadlock",
        "WrongConnection",
    ),
    "handle": ("JobHandle",),
    "jobclass": ("Aborted", "Job"),
    "jobs": ("Refusal",),
    "limits": ("Limit", "OneOf"),
    "rates": ("Rate",),
    "schedules.schedule": ("Schedule",),
    "slots": ("ConcurrencyStatus", "Slot", "SlotInfo"),
    "tasks": ("Task",),
    "worker.embedded": ("Worker",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # What a program does not use it does not load: the command line starts in a fraction of
    # the time, and a program that only submits never sees the worker.
    if name not in _HOME:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    value = getattr(import_module(f"headgate.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
