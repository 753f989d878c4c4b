"""On which line a value stands. Looked up only when there is something to say about it.

The parsers of JSON and TOML keep no lines. JSON is read again as YAML, whose parser does. TOML is
read again statement by statement, each of which can be read by itself.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, cast

from headgate.configuration.problems import Path

_IN_MESSAGE = re.compile(r"\(at line (\d+),")
_MOST_ROWS = 500
_ROW = re.compile(r"[^\n]*\n|[^\n]+")
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]|-?[A-Za-z]+')
"""Of JSON: a text and whether it is a key, a bracket, a bare word."""


def in_message(message: str, text: str) -> int | None:
    """The line that a message of the TOML parser names."""
    if "(at end of document)" in message:
        return text.count("\n") + 1
    found = _IN_MESSAGE.search(message)
    return int(found[1]) if found else None


def find(kind: str, text: str, path: Path) -> int | None:
    """The line of the value at `path`, or of the nearest table around it that can be found."""
    if kind == "toml":
        return _in_toml(text, path)
    try:
        from headgate.configuration import yamlfile
    except ImportError:
        return None  # PyYAML is an extra, and JSON is read without it

    # JSON allows tabs between its tokens, YAML does not; inside JSON's texts there are none.
    return yamlfile.line_of(text.replace("\t", " ") if kind == "json" else text, path)


def of_second_key(text: str) -> int | None:
    """In JSON, the line of the first key that its table has already."""
    tables: list[set[str]] = []
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in ("{", "["):
            tables.append(set())
        elif token in ("}", "]"):
            tables.pop()
        elif found[2] is not None:
            key = cast("str", json.loads(found[1]))
            if key in tables[-1]:
                return text.count("\n", 0, found.start()) + 1
            tables[-1].add(key)
    return None


def of_bare_word(text: str, word: str) -> int | None:
    """In JSON, the first line on which it stands outside of texts."""
    for found in _TOKEN.finditer(text):
        if found[0] == word:
            return text.count("\n", 0, found.start()) + 1
    return None


def _in_toml(text: str, path: Path) -> int | None:
    index = _toml_index(text)
    names = tuple(step for step in path if isinstance(step, str))
    for end in range(len(names), 0, -1):
        if names[:end] in index:
            return index[names[:end]]
    return None


@functools.lru_cache(maxsize=4)
def _toml_index(text: str) -> dict[tuple[str, ...], int]:
    """The line of every name in a file that can be read."""
    found: dict[tuple[str, ...], int] = {}
    rows = _ROW.findall(text)
    table: tuple[str, ...] = ()
    first = 0
    while first < len(rows):
        last, said = _statement(rows, first)
        if rows[first].lstrip().startswith("["):
            table = _header(said)
            _note(found, table, first + 1)
        else:
            for path in _paths(said):
                _note(found, (*table, *path), first + 1)
        first = last
    return found


def _statement(rows: list[str], first: int) -> tuple[int, dict[str, Any]]:
    """The next statement and where the one after it begins: a value may go on over lines, until
    what there is of it can be read."""
    for last in range(first + 1, min(len(rows), first + _MOST_ROWS) + 1):
        try:
            return last, tomllib.loads("".join(rows[first:last]))
        except (ValueError, RecursionError):
            continue
    return first + 1, {}


def _header(said: object) -> tuple[str, ...]:
    names: list[str] = []
    while said:
        if isinstance(said, list):
            said = cast("list[Any]", said)[0]
        elif isinstance(said, dict):
            name, said = next(iter(cast("dict[str, Any]", said).items()))
            names.append(name)
    return tuple(names)


def _paths(said: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in said.items():
        yield (name,)
        if isinstance(value, dict):
            for path in _paths(cast("dict[str, Any]", value)):
                yield (name, *path)


def _note(found: dict[tuple[str, ...], int], path: tuple[str, ...], line: int) -> None:
    """The first that speaks of it; a table that is only implied stands where that does."""
    for end in range(1, len(path) + 1):
        found.setdefault(path[:end], line)
