"""Statements as they are written, `:name` and `?`, in the form that the server takes: `$1`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.errors import StoreError

Params = Mapping[str, Any] | Sequence[Any]

# What is not a parameter comes first: texts, names, comments, bodies and casts hold : and ? too.
_TOKEN = re.compile(
    r"""
      [eE]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | --[^\n]*
    | /\*.*?\*/
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | ::
    | (?<![\w:]):(?P<name>[a-zA-Z_]\w*)
    | (?P<mark>\?)
    """,
    re.VERBOSE | re.DOTALL,
)
_SCHEMA = re.compile(r"\bheadgate\.")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the server's form, and where its parameters come from."""

    text: bytes
    names: tuple[str, ...]
    """Of the parameters $1, $2, … when they have names; each stands here once."""
    marks: int
    """How many there are when they have none."""

    def bind(self, params: Params) -> Sequence[Any] | None:
        """The parameters in the order of the server; None when there are none."""
        if isinstance(params, Mapping):
            try:
                return [params[name] for name in self.names] or None
            except KeyError as error:
                raise StoreError(f"the statement has no value for :{error.args[0]}") from None
        if len(params) != self.marks:
            raise StoreError(f"the statement takes {self.marks} values, {len(params)} were given")
        return params or None


def prepare(sql: str, schema: str = "headgate") -> Statement:
    """
    >>> prepare("SELECT :a::int, ':b', :a FROM headgate.jobs", "jobs").text
    b"SELECT $1::int, ':b', $1 FROM jobs.jobs"
    >>> prepare("SELECT * FROM t WHERE a = ? AND b = ?").text
    b'SELECT * FROM t WHERE a = $1 AND b = $2'
    """
    names: dict[str, int] = {}
    marks = 0

    def numbered(found: re.Match[str]) -> str:
        nonlocal marks
        if name := found["name"]:
            return f"${names.setdefault(name, len(names) + 1)}"
        if found["mark"]:
            marks += 1
            return f"${marks}"
        return found[0]

    text = _TOKEN.sub(numbered, sql)
    if names and marks:
        raise StoreError("a statement has parameters with names or without, not both")
    return Statement(named(text, schema).encode(), tuple(names), marks)


def named(sql: str, schema: str) -> str:
    """The same SQL for a schema of another name."""
    return sql if schema == "headgate" else _SCHEMA.sub(f"{schema}.", sql)
