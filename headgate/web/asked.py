"""What the fields of forms and addresses say, checked."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.requests import Request

from headgate.config import duration
from headgate.errors import DeclarationError
from headgate.jobs import STATES, JobFilter
from headgate.limits import check_group

LONGEST = 2000


def text(cells: Mapping[str, str], name: str) -> str:
    """A field as plain text; what no store can keep is refused."""
    value = cells.get(name, "").strip()
    if len(value) > LONGEST:
        raise DeclarationError(f"{name} has {len(value):,} characters, at most {LONGEST:,}")
    if "\0" in value or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise DeclarationError(f"{name} holds characters that are no text")
    return value


def required(cells: Mapping[str, str], name: str) -> str:
    value = text(cells, name)
    if not value:
        raise DeclarationError(f"{name} is empty: it must be said")
    return value


def whole(cells: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = text(cells, name)
    if not value and default is not None:
        return default
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise DeclarationError(f"{name}: {value[:40]!r} is no whole number")
    return int(value)


def units(cells: Mapping[str, str], name: str) -> int | None:
    """A limit: a whole number from 0, or "none" for unlimited."""
    value = required(cells, name).lower()
    return None if value in ("none", "unlimited") else whole({name: value}, name)


def span(cells: Mapping[str, str], name: str) -> float | None:
    value = text(cells, name)
    if not value:
        return None
    try:
        seconds = duration(value)
    except ValueError:
        seconds = None
    if seconds is None or not 0 < seconds < math.inf:
        raise DeclarationError(f"{name}: {value[:40]!r} is no span of time: write 30s, 15m or 2h")
    return seconds


def moment(cells: Mapping[str, str], name: str) -> float | None:
    """So long ago (`2h`), or a date and time (in UTC where it names no zone)."""
    value = text(cells, name)
    if not value:
        return None
    try:
        ago = duration(value)
    except ValueError:
        ago = None
    if ago is not None:
        return time.time() - min(ago, 1e11)
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise DeclarationError(
            f"{name}: {value[:40]!r} is no time: write 2h for so long ago, or 2026-07-30T14:00"
        ) from None


def job_filter(cells: Mapping[str, str]) -> JobFilter:
    state = text(cells, "state")
    if state and state not in STATES:
        raise DeclarationError(f"state: {state[:40]!r} is none of {', '.join(STATES)}")
    group = text(cells, "group")
    return JobFilter(
        states=frozenset(known for known in STATES if known == state),
        task=text(cells, "task") or None,
        queue=text(cells, "queue") or None,
        group=check_group(group) if group else None,
        since=moment(cells, "since"),
        until=moment(cells, "until"),
        text=text(cells, "text") or None,
    )


FILTER = ("state", "task", "queue", "group", "since", "until", "text")


def query(request: Request) -> dict[str, str]:
    return dict(request.query_params.items())
