"""Headgate: a job queue in which how many may run at once is exact, fair and free.

>>> from headgate import App, Limit, Worker
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.app import App
from headgate.backoff import Backoff
from headgate.context import Context, current
from headgate.errors import (
    Cancel,
    ConfigError,
    Control,
    DeclarationError,
    HeadgateError,
    IdempotencyConflict,
    InvalidArguments,
    InvalidKey,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Retry,
    SlotLost,
    Snooze,
    StaleAttempt,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    StoreVersion,
    TooWide,
    UnknownLimit,
    UnknownTask,
    WouldDeadlock,
)
from headgate.handle import JobHandle
from headgate.limits import Limit, OneOf
from headgate.slots import ConcurrencyStatus, Slot, SlotInfo
from headgate.tasks import Call, Task

if TYPE_CHECKING:
    from headgate.worker.embedded import Worker

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "Call",
    "Cancel",
    "ConcurrencyStatus",
    "ConfigError",
    "Context",
    "Control",
    "DeclarationError",
    "HeadgateError",
    "IdempotencyConflict",
    "InvalidArguments",
    "InvalidKey",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "Limit",
    "OneOf",
    "Retry",
    "Slot",
    "SlotInfo",
    "SlotLost",
    "Snooze",
    "StaleAttempt",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "StoreVersion",
    "Task",
    "TooWide",
    "UnknownLimit",
    "UnknownTask",
    "Worker",
    "WouldDeadlock",
    "__version__",
    "current",
]


def __getattr__(name: str) -> Any:
    # The worker is most of the code and no part of a program that only submits.
    if name == "Worker":
        from headgate.worker.embedded import Worker

        return Worker
    raise AttributeError(f"module 'headgate' has no attribute {name!r}")
