"""One table of a configuration, taken apart key by key; every problem is noted, none raised."""

from __future__ import annotations

import difflib
import math
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from headgate.config import duration
from headgate.configuration.problems import Path, Problems
from headgate.configuration.reading import kind_of
from headgate.errors import HeadgateError

T = TypeVar("T")

MAX_SECONDS = 10 * 366 * 86400.0
_VARIABLE = re.compile(r"[^=\0]+")


class Wrong(ValueError):
    """What a reader of values says; it becomes a problem with its place."""


class Section:
    """A table at a path. A key that was read is taken out; what is left in the end is unknown."""

    def __init__(self, content: object, path: Path, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self.left: dict[str, Any] = {}
        if isinstance(content, dict):
            self.left = dict(cast("dict[str, Any]", content))
        else:
            problems.add(path, f"must be a table, got {kind_of(content)}")

    def section(self, key: str) -> Section:
        given = self.left.pop(key, None)  # null: nothing stands below its name
        return Section({} if given is None else given, (*self.path, key), self.problems)

    def take(self, key: str, read: Callable[[object], T], default: T) -> T:
        """The value of `key` as `read` gives it; null means: not said."""
        value = self.left.pop(key, None)
        if value is None:
            return default
        return self.checked((*self.path, key), lambda: read(value), default)

    def has(self, key: str) -> bool:
        return self.left.get(key) is not None

    def checked(self, path: Path, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except (Wrong, HeadgateError) as error:
            self.problems.add(path, str(error))
            return default

    def items(self, key: str) -> list[tuple[str, object]]:
        """The tables inside a table, by name."""
        return list(self.section(key).left.items())

    def ignore(self, keys: Iterable[str], why: str) -> None:
        """Keys that are known and mean nothing here: said, so that nobody relies on them."""
        for key in keys:
            if key in self.left:
                self.left.pop(key)
                self.problems.warn((*self.path, key), why)

    def done(self, known: Iterable[str], *, strict: bool) -> None:
        """Whatever is left is unknown: an error in our own format, where it is a mistake; a
        warning in dsari's, which passes over it."""
        names = sorted(known)
        tell = self.problems.add if strict else self.problems.warn
        for key in self.left:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(names)}"
            tell((*self.path, key), f"unknown key{hint}")


# --- one reader per kind of value -------------------------------------------------------------


def text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Wrong(f"must be a text that is not empty, got {kind_of(value)}")
    return value


def path(value: object) -> str:
    """A path; ~ and ~user are homes, of users that there are."""
    try:
        return str(pathlib.Path(text(value)).expanduser())
    except RuntimeError:
        raise Wrong(f"{kind_of(value)}: there is no such user, or it has no home") from None


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, got {kind_of(value)}")
    return value


def seconds(value: object) -> float:
    """A length of time: seconds, or a text such as 90s, 30m, 12h, 7d."""
    if isinstance(value, bool):
        raise Wrong(f"must be seconds or a text like '30m', got {kind_of(value)}")
    try:
        found = duration(value)
    except (ValueError, OverflowError):
        found = math.inf
    if found is None or not 0 <= found <= MAX_SECONDS:
        raise Wrong(
            "must be seconds from 0 to ten years, or a text like '90s', '30m', '12h', got"
            f" {kind_of(value)}"
        )
    return found


def positive_seconds(value: object) -> float:
    found = seconds(value)
    if found <= 0:
        raise Wrong("must be more than 0 seconds: leave it out for no bound")
    return found


def whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise Wrong(f"must be a whole number from {least} to {most}, got {kind_of(value)}")
        return value

    return read


def one_word_of(*words: str) -> Callable[[object], Any]:
    def read(value: object) -> str:
        if value not in words:
            told = ", ".join(repr(word) for word in words)
            raise Wrong(f"must be one of {told}, got {kind_of(value)}")
        return cast("str", value)

    return read


def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Wrong(f"must be a list of texts, got {kind_of(value)}")
    for item in cast("list[object]", value):
        if not isinstance(item, str):
            raise Wrong(f"must hold only texts, got {kind_of(item)}")
    return tuple(cast("list[str]", value))


def environment(section: Section, key: str) -> dict[str, str]:
    """Variables: numbers and booleans become the text that a shell script would write."""
    found: dict[str, str] = {}
    inner = section.section(key) if section.has(key) else None
    section.left.pop(key, None)
    if inner is None:
        return found
    for name, value in inner.left.items():
        place = (*inner.path, name)
        if not _VARIABLE.fullmatch(name):
            inner.problems.add(place, "the name of a variable is not empty and holds no '='")
        elif isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            inner.problems.add(place, f"must be a text or a number, got {kind_of(value)}")
    return found
