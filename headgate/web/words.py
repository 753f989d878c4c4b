"""How templates say things: times, counts, links."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from headgate.codec import visible
from headgate.stores.protocol import LimitRecord, Word
from headgate.why import age, pace

LONGEST = 20_000
"""Characters of arguments, results and errors that a page shows."""


def iso(at: float) -> str:
    """
    >>> iso(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at: float, now: float) -> str:
    """
    >>> ago(10, 40), ago(40, 10)
    ('30 s ago', 'in 30 s')
    """
    return f"in {age(at - now)}" if at > now + 0.05 else f"{age(now - at)} ago"


def count(n: int, bounded: bool = False) -> str:
    """
    >>> count(1234), count(1000, True)
    ('1,234', '1,000+')
    """
    return f"{n:,}{'+' if bounded else ''}"


def pretty(value: Any) -> str:
    """Somebody's JSON, for people."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return cut(visible(text))


def cut(text: str, longest: int = LONGEST) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n… {len(text) - longest:,} more characters"


def limit_value(limit: LimitRecord) -> str:
    if limit.source == "none":
        return "not declared"
    if limit.pace is not None:
        return pace(limit)
    return "unlimited" if limit.value is None else f"{limit.value:,}"


def said(word: Word, now: float) -> str:
    """By whom, why, when, until when."""
    by = f"by {word.by}" if word.by else "by an operator"
    reason = f": {word.reason}" if word.reason else ""
    until = f", until {stamp(word.until)}" if word.until is not None else ""
    return visible(f"{by}{reason} ({ago(word.at, now)}{until})")


def event_kind(kind: str) -> str:
    """
    >>> event_kind("limit_changed")
    'limit changed'
    """
    return kind.replace("_", " ")


def query(params: Mapping[str, object]) -> str:
    cells = [(name, str(value)) for name, value in params.items() if value not in (None, "")]
    return f"?{urlencode(cells)}" if cells else ""
