"""Array parameters as texts: whatever they hold, the statement's types stay the same, so the
server keeps one plan for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_SHORT = 64
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"'})


def numbers(values: Iterable[int | float | None]) -> str:
    """
    >>> numbers([1, None, 2.5])
    '{1,NULL,2.5}'
    """
    found = list(values)
    if None in found:
        return "{" + ",".join("NULL" if v is None else repr(v) for v in found) + "}"
    return "{" + ",".join(map(repr, found)) + "}"


def texts(values: Iterable[str | None]) -> str:
    r"""
    >>> texts(["a", None, 'say "x"'])
    '{"a",NULL,"say \\"x\\""}'
    """
    found = list(values)
    if found and found.count(found[0]) == len(found):  # as most columns of most round trips are
        return "{" + ",".join([_cell(found[0])] * len(found)) + "}"
    return "{" + ",".join(map(_cell, found)) + "}"


def _cell(value: str | None) -> str:
    # Most are the same few words, time and again: states, reasons, empty results.
    return _quoted(value) if value is None or len(value) < _SHORT else _quote(value)


def _quote(value: str | None) -> str:
    return "NULL" if value is None else f'"{value.translate(_ESCAPED)}"'


_quoted = lru_cache(1024)(_quote)


def flags(values: Iterable[bool]) -> str:
    """
    >>> flags([True, False])
    '{t,f}'
    """
    return "{" + ",".join(["t" if v else "f" for v in values]) + "}"
