"""Values as people type them: spans and moments of time, limits. Each is a click callback."""

from __future__ import annotations

import time
from datetime import datetime

import click

SPANS = "30s, 15m, 2h or 3d"


def span(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Seconds, or `30s`, `15m`, `2h`, `3d`."""
    if text is None:
        return None
    seconds = _seconds(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no span of time: write seconds, {SPANS}")
    return seconds


def since(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A span before now, or a date and time; seconds since the epoch."""
    if text is None:
        return None
    seconds = _seconds(text)
    if seconds is not None:
        return time.time() - seconds
    return _moment(text, f"{SPANS} for so long ago, or 2026-07-30T14:00").timestamp()


def moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    """A date and time; local where it names no zone."""
    return None if text is None else _moment(text, "2026-07-30T14:00, or …T14:00+02:00")


def limit(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """A whole number from 0, or "none" for unlimited; None where nothing was said."""
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("none", "unlimited"):
        return "none"
    if not (word.isascii() and word.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a whole number from 0 nor 'none'")
    return int(word[:20])  # what is longer is refused for its size all the same


def _seconds(text: str) -> float | None:
    from headgate.config import duration

    try:
        return duration(text.strip())
    except ValueError:
        return None


def _moment(text: str, hint: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is no date and time: write {hint}") from None
