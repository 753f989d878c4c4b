"""On which line a value stands. Looked up only when there is something to say about it.

The parsers of JSON and TOML keep no lines. JSON is read again as YAML, whose parser does. Of
TOML the lines are tried: the value stands where a beginning of the file that can be read ends
without it, and one line later with it. Where that finds nothing, nothing is said.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, cast

from headgate.configuration.problems import Path

_IN_MESSAGE = re.compile(r"\(at line (\d+),")
_MOST_TRIES = 200


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


def _in_toml(text: str, path: Path) -> int | None:
    names = [step for step in path if isinstance(step, str)]
    for end in range(len(names), 0, -1):
        line = _of_names(text.splitlines(keepends=True), names[:end])
        if line is not None:
            return line
    return None


def _of_names(rows: list[str], names: list[str]) -> int | None:
    tries = 0
    for number, row in enumerate(rows):
        if names[-1] not in row:
            continue
        tries += 1
        if tries > _MOST_TRIES:
            return None
        before = _read("".join(rows[:number]))
        if before is None or _holds(before, names):
            continue
        # A value may go on over several lines: until the beginning can be read again.
        for last in range(number + 1, min(len(rows), number + _MOST_TRIES) + 1):
            after = _read("".join(rows[:last]))
            if after is not None:
                if _holds(after, names):
                    return number + 1
                break
    return None


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _holds(data: object, names: list[str]) -> bool:
    for name in names:
        # A list of tables: the last one is under way.
        if isinstance(data, list) and data:
            data = cast("list[Any]", data)[-1]
        if not isinstance(data, dict) or name not in data:
            return False
        data = cast("dict[str, Any]", data)[name]
    return True
