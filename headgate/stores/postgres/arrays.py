"""Array parameters as texts: whatever they hold, the statement's types stay the same, so the
server keeps one plan for it."""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"'})


def numbers(values: Iterable[int | float | None]) -> str:
    """
    >>> numbers([1, None, 2.5])
    '{1,NULL,2.5}'
    """
    return "{" + ",".join("NULL" if v is None else repr(v) for v in values) + "}"


def texts(values: Iterable[str | None]) -> str:
    r"""
    >>> texts(["a", None, 'say "x"'])
    '{"a",NULL,"say \\"x\\""}'
    """
    return (
        "{" + ",".join("NULL" if v is None else f'"{v.translate(_ESCAPED)}"' for v in values) + "}"
    )


def flags(values: Iterable[bool]) -> str:
    """
    >>> flags([True, False])
    '{t,f}'
    """
    return "{" + ",".join("t" if v else "f" for v in values) + "}"
