"""How templates say things: times, counts, links."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape

from headgate.codec import visible
from headgate.stores.protocol import EventRecord, LimitRecord, Word
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
    >>> ago(10, 40), ago(40, 10), ago(40.9, 40)
    ('30 s ago', 'in 30 s', '0.0 s ago')
    """
    # What pages show was read at several moments: what happened between them is not yet to come.
    return f"in {age(at - now)}" if at > now + 2.0 else f"{age(now - at)} ago"


def count(n: int, bounded: bool = False) -> str:
    """
    >>> count(1234), count(1000, True)
    ('1,234', '1,000+')
    """
    return f"{n:,}{'+' if bounded else ''}"


def pretty(value: Any) -> str:
    """Somebody's JSON, for people."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return cut(text)


class Raw(str):
    """Text that goes back to us as it is, as the value of a field."""

    __slots__ = ()


def plainly(value: Any) -> Any:
    """What a template says: text of others cannot turn round what stands beside it, or hide.

    >>> plainly("a\\tb\\x1b[2Jc"), plainly(Markup("<b>")), plainly(3)
    ('a\\tb\\\\x1b[2Jc', Markup('<b>'), 3)
    """
    if type(value) is not str or value.isprintable():
        return value
    return "\t".join(visible(part) for part in value.split("\t"))


def cut(text: str, longest: int = LONGEST) -> str:
    """
    >>> cut("a" * 70, 60) == "a" * 70, cut("abc" * 100, 3)
    (True, 'abc\\n… 297 more characters')
    """
    # No longer than what would be said of the rest.
    if len(text) <= longest + 20:
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
    return f"{by}{reason} ({ago(word.at, now)}{until})"


def limit_change(event: EventRecord) -> str:
    """What somebody changed about a limit, as a person would say it."""
    data = event.data
    told: list[str] = []
    if data.get("old") != data.get("new") or data.get("old_source") != data.get("new_source"):
        told.append(f"{_units(data.get('old'))} → {_units(data.get('new'))}")
        if data.get("new_source") not in (None, "override"):
            told.append(f"as declared by {data['new_source']}")
    if data.get("paused") != data.get("was_paused"):
        told.append("paused" if data.get("paused") else "resumed")
    known = ("old", "new", "old_source", "new_source", "paused", "was_paused", "reason")
    told += [f"{name} {value}" for name, value in data.items()
             if name not in known and value not in (None, "")]  # fmt: skip
    reason = f": {data['reason']}" if data.get("reason") else ""
    return f"{', '.join(told)}{reason}"


def _units(value: object) -> str:
    return "unlimited" if value is None else f"{value}"


_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def with_links(text: str, url: Callable[[str], str]) -> Markup:
    """Words in which the ids of jobs lead to their pages."""
    parts: list[Markup] = []
    place = 0
    text = plainly(text)
    for found in _ID.finditer(text):
        id = found[0]
        parts.append(escape(text[place : found.start()]))
        link = Markup('<a class="id" href="{}" title="{}">{}…{}</a>')
        parts.append(link.format(url(f"/jobs/{id}"), id, id[:8], id[-6:]))
        place = found.end()
    parts.append(escape(text[place:]))
    return Markup("").join(parts)


def event_kind(kind: str) -> str:
    """
    >>> event_kind("limit_changed")
    'limit changed'
    """
    return kind.replace("_", " ")


def query(params: Mapping[str, object]) -> str:
    cells = [(name, str(value)) for name, value in params.items() if value not in (None, "")]
    return f"?{urlencode(cells)}" if cells else ""
