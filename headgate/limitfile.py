"""The words of operators on limits as a file, for review in version control.

One table for each group, one line for each word:

    ["tenant/acme"]
    limit = { value = 5, reason = "their migration", by = "op@web-1", at = 2026-07-30T12:00:00Z }
    weight = 3
    reason = "they pay for it"

`limit` is a whole number or "unlimited", `pause` is true, `weight` a whole number; each may be a
table with `value`, `reason`, `by`, `at` and `until`, or the value alone, with a `reason`, `by` or
`until` of the group beside it. What is written by `dump` is read back by `load` as the same.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast

from headgate.config import check_weight
from headgate.errors import ConfigError, HeadgateError
from headgate.limits import check_group, check_value
from headgate.stores.protocol import LimitChange, Word, Words

What = Literal["limit", "pause", "weight"]
WHATS: tuple[What, ...] = ("limit", "pause", "weight")
HEAD = """\
# What operators said about limits, over all that files and code declare.
# `headgate concurrency import FILE --dry-run` shows what it would change.
"""
_ABOUT = ("reason", "by", "at", "until")
_SAME = 0.001
"""Seconds by which times in a file and in a store may differ and be the same."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One word that the file has otherwise than the store."""

    group: str
    what: What
    old: Word | None
    new: Word | None

    def change(self, by: str) -> LimitChange:
        """What makes the store say it as the file does."""
        word = self.new
        if word is None:
            plain = LimitChange(self.group, by=by, reason="not in the file")
        else:
            plain = LimitChange(self.group, by=by, reason=word.reason, until=word.until, said=word)
        if self.what == "limit":
            value = None if word is None else word.value
            return replace(plain, value=value, set_value=word is not None, reset=word is None)
        if self.what == "pause":
            return replace(plain, paused=word is not None)
        weight = None if word is None else word.value
        return replace(plain, weight=weight, reset_weight=word is None)

    def __str__(self) -> str:
        if self.new is None:
            return f"- {self.group} {told(self.what, self.old)}"
        sign = "+" if self.old is None else "~"
        before = "" if self.old is None else f"{told(self.what, self.old)} -> "
        return f"{sign} {self.group} {before}{told(self.what, self.new)}"


def told(what: What, word: Word | None) -> str:
    """A word in short: `limit 5 until 2026-07-30T12:00:00+00:00 (their migration)`."""
    if word is None:
        return f"no {what}"
    value = "" if what == "pause" else " unlimited" if word.value is None else f" {word.value}"
    until = "" if word.until is None else f" until {_moment(word.until).isoformat()}"
    return f"{what}{value}{until}" + (f" ({word.reason})" if word.reason else "")


def dump(words: Iterable[Words]) -> str:
    """The file, in the order of groups."""
    parts = [HEAD]
    for said in words:
        lines = [f"[{_key(said.group)}]"]
        for what in WHATS:
            word: Word | None = getattr(said, what)
            if word is not None:
                lines.append(f"{what} = {{ {', '.join(_cells(what, word))} }}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cells(what: What, word: Word) -> Iterable[str]:
    if what != "pause":
        yield 'value = "unlimited"' if word.value is None else f"value = {word.value}"
    yield f"reason = {_text(word.reason)}"
    yield f"by = {_text(word.by)}"
    yield f"at = {_moment(word.at).isoformat()}"
    if word.until is not None:
        yield f"until = {_moment(word.until).isoformat()}"


def _key(group: str) -> str:
    return (
        group
        if group.replace("-", "").replace("_", "").isalnum() and group.isascii()
        else _text(group)
    )


def _text(text: str) -> str:
    # TOML's texts are JSON's, but for one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


# --- read -------------------------------------------------------------------------------------


def load(text: str, name: str, *, by: str, now: float) -> list[Words]:
    """What a file says; `by` and `now` where it does not say who and when."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is no TOML: {error}") from error
    found: dict[str, Words] = {}
    for group, table in tables.items():
        try:
            said = _group(group, table, by, now)
        except (HeadgateError, ValueError, TypeError) as error:
            raise ConfigError(f"{name}: [{group}]: {error}") from error
        if said.group in found:
            raise ConfigError(f"{name}: [{group}] is there twice, as {said.group!r}")
        found[said.group] = said
    return list(found.values())


def _group(group: str, table: object, by: str, now: float) -> Words:
    if not isinstance(table, dict):
        raise TypeError(f"must be a table with {', '.join(WHATS)}, got {table!r}")
    cells = cast("dict[str, Any]", table)
    unknown = set(cells) - {*WHATS, *_ABOUT}
    if unknown:
        raise ValueError(
            f"{', '.join(sorted(unknown))}: not known; there are {', '.join((*WHATS, *_ABOUT))}"
        )
    beside = {cell: cells[cell] for cell in _ABOUT if cell in cells}
    words: dict[str, Word] = {}
    for what in WHATS:
        given = cells.get(what)
        if given is None or given is False:
            continue
        about = cast("dict[str, Any]", given) if isinstance(given, dict) else {"value": given}
        words[what] = _word(what, {**beside, **about}, group, by, now)
    if not words:
        raise ValueError(f"says nothing: write {', '.join(WHATS)}")
    return Words(check_group(group), **words)


def _word(what: What, cells: Mapping[str, Any], group: str, by: str, now: float) -> Word:
    unknown = set(cells) - {"value", *_ABOUT}
    if unknown:
        raise ValueError(f"{what}: {', '.join(sorted(unknown))} is not known")
    value: int | None = None
    if what == "limit":
        if "value" not in cells:
            raise ValueError('limit: a value is missing: a whole number, or "unlimited"')
        given = cells["value"]
        value = None if given == "unlimited" else check_value(given, group)
    elif what == "weight":
        value = check_weight(cells.get("value"))
    elif cells.get("value", True) is not True:
        raise ValueError(f"pause must be true, got {cells['value']!r}")
    reason = _string(cells, "reason", "")
    if what == "limit" and not reason.strip():
        raise ValueError("limit: a reason is missing: say why, for those who look later")
    at, until = _time(cells, "at"), _time(cells, "until")
    return Word(value, _string(cells, "by", by), reason, now if at is None else at, until)


def _string(cells: Mapping[str, Any], name: str, default: str) -> str:
    value = cells.get(name, default)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {value!r}")
    return value


def _time(cells: Mapping[str, Any], name: str) -> float | None:
    value = cells.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(
            f"{name} must be a time with its zone, as 2026-07-30T12:00:00Z, got {value}"
        )
    return value.timestamp()


# --- compare ----------------------------------------------------------------------------------


def compare(
    stored: Sequence[Words], file: Sequence[Words], *, now: float, exact: bool
) -> tuple[list[Difference], list[Difference]]:
    """What to change so that the store says what the file does; and what the file does not have,
    which is part of the first if it is to be `exact`. Words that have ended count for nothing."""
    before = {said.group: said for said in stored}
    after = {said.group: said for said in file}
    differences: list[Difference] = []
    besides: list[Difference] = []
    for group in sorted({*before, *after}):
        for what in WHATS:
            old: Word | None = getattr(before.get(group, Words(group)), what)
            new: Word | None = getattr(after.get(group, Words(group)), what)
            if new is not None and new.until is not None and new.until <= now:
                new = None
            if new is None and old is not None:
                besides.append(Difference(group, what, old, None))
            elif new is not None and not _same(old, new, now):
                differences.append(Difference(group, what, old, new))
    return (differences + besides, []) if exact else (differences, besides)


def _same(old: Word | None, new: Word, now: float) -> bool:
    if old is None or (old.value, old.reason) != (new.value, new.reason):
        return False
    if (old.until is None) != (new.until is None):
        return False
    if old.until is not None and new.until is not None and abs(old.until - new.until) > _SAME:
        return False
    # A file that does not say who and when repeats what is there, whoever said it.
    return new.at == now or (old.by == new.by and abs(old.at - new.at) <= _SAME)
