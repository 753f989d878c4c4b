"""The options of one submission: what `using(...)` and `app.submit(...)` accept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, cast

from headgate.errors import DeclarationError
from headgate.limits import Key, check_group, check_name, check_value

if TYPE_CHECKING:
    from headgate.caps import Cap

LOWEST, HIGHEST = -100, 100
MAX_IDEMPOTENCY_KEY = 512


class Options(TypedDict, total=False):
    """Each may be given for one submission; it wins over the task's own."""

    queue: str
    priority: int
    delay: float | timedelta
    run_at: datetime
    retries: int
    timeout: float | timedelta | None
    expires: float | timedelta | None
    idempotency_key: str
    max_lost: int
    concurrency_group: str
    concurrency_limit: int | None
    caps: Sequence[Cap]
    """Beside the task's own; one of the same name stands in its place."""
    unique_for: float | timedelta | None
    unique_key: Key
    conn: object
    """A connection of the caller's: the job is stored in its transaction."""


STORED = frozenset(
    ("queue", "priority", "retries", "timeout", "expires", "max_lost", "concurrency_group")
)
"""The options that the worker may need: they travel with the job."""


def check_options(options: Mapping[str, object]) -> Options:
    """The options, each checked and in its plain form (seconds, not timedeltas)."""
    known = Options.__annotations__
    if unknown := [name for name in options if name not in known]:
        raise DeclarationError(
            f"unknown option {unknown[0]!r}: known are {', '.join(sorted(known))}"
        )
    if "delay" in options and "run_at" in options:
        raise DeclarationError("delay and run_at exclude each other: give one of them")
    return cast("Options", {name: _CHECKS[name](value) for name, value in options.items()})


def stored_options(options: Options) -> str:
    """What travels with the job, as JSON: only what was set."""
    kept = {name: value for name, value in options.items() if name in STORED}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else "{}"


def read_options(text: str) -> Options:
    """The other way round; what a newer program may have added is left alone."""
    if text == "{}":
        return {}
    read = cast("dict[str, object]", json.loads(text))
    return check_options({name: value for name, value in read.items() if name in STORED})


# --- one check per option ---------------------------------------------------------------


def check_whole(value: object, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DeclarationError(f"{what} must be a whole number from {low} to {high}, got {value!r}")
    return value


def check_priority(value: object) -> int:
    """An integer from -100 to 100; lower goes first."""
    return check_whole(value, "priority", LOWEST, HIGHEST)


def check_retries(value: object) -> int:
    return check_whole(value, "retries", 0, 1_000_000)


def check_max_lost(value: object) -> int:
    return check_whole(value, "max_lost", 0, 1_000_000)


MAX_SECONDS = 100 * 365 * 86400.0
"""A moment further away than that cannot be shown as a date everywhere."""


def seconds(value: object, what: str, *, above: bool) -> float:
    """Seconds from a number or a timedelta; `above`: zero is not enough."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise DeclarationError(f"{what} must be seconds or a timedelta, got {value!r}")
    if not math.isfinite(number) or number < 0 or (above and number == 0):
        bound = "above 0" if above else "at least 0"
        raise DeclarationError(f"{what} must be {bound}, got {value!r}")
    if number > MAX_SECONDS:
        raise DeclarationError(f"{what} must be at most 100 years, got {value!r}")
    return number


def check_timeout(value: object) -> float | None:
    return None if value is None else seconds(value, "timeout", above=True)


def check_expires(value: object) -> float | None:
    return None if value is None else seconds(value, "expires", above=True)


def check_delay(value: object) -> float:
    return seconds(value, "delay", above=False)


def check_run_at(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise DeclarationError(f"run_at must be an aware datetime, got {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise DeclarationError(
            f"run_at {value.isoformat()} has no time zone: nobody can tell which moment it is."
            " Use datetime.now(timezone.utc), or .replace(tzinfo=…)"
        )
    return value


def check_idempotency_key(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_IDEMPOTENCY_KEY:
        got = f"{len(value)} characters" if isinstance(value, str) else repr(value)
        raise DeclarationError(
            f"idempotency_key must be a text of 1 to {MAX_IDEMPOTENCY_KEY} characters, got {got}"
        )
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise DeclarationError("idempotency_key holds a NUL or a lone surrogate: leave it out")
    return value


def check_queue(value: object) -> str:
    return check_name(value, "queue")


def check_concurrency_limit(value: object) -> int | None:
    return check_value(value, "concurrency_limit")


def _check_caps(value: object) -> object:
    from headgate.caps import check_caps  # which needs the checks of this module

    return check_caps(value)


def check_unique_for(value: object) -> float | None:
    return None if value is None else seconds(value, "unique_for", above=True)


def check_unique_key(value: object) -> object:
    if value is not None and not callable(value) and not isinstance(value, str):
        raise DeclarationError(
            f"unique_key must be the name of an argument or a callable, got {value!r}"
        )
    return value


def check_conn(value: object) -> object:
    return value  # the store knows what it can use


_CHECKS: dict[str, Any] = {
    "queue": check_queue,
    "priority": check_priority,
    "delay": check_delay,
    "run_at": check_run_at,
    "retries": check_retries,
    "timeout": check_timeout,
    "expires": check_expires,
    "idempotency_key": check_idempotency_key,
    "max_lost": check_max_lost,
    "concurrency_group": check_group,
    "concurrency_limit": check_concurrency_limit,
    "caps": _check_caps,
    "unique_for": check_unique_for,
    "unique_key": check_unique_key,
    "conn": check_conn,
}
