"""What is wrong in a configuration, each with its place; all of it is told at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.errors import ConfigError

Path = tuple[str | int, ...]
"""From the root of a file to a value: names, and numbers inside lists."""

_BARE = re.compile(r"[A-Za-z0-9_@+:-]+")


def shown(path: Path) -> str:
    """
    >>> shown(("jobs", "backup", "command", 0)), shown(("jobs", "a.b", "schedule"))
    ('jobs.backup.command[0]', 'jobs."a.b".schedule')
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _BARE.fullmatch(step) else '"' + _printable(step) + '"'
            text += f".{name}" if text else name
    return text


def _printable(text: str) -> str:
    return text.encode("unicode_escape").decode().replace('"', '\\"')


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or (`warning`) that is not what somebody may think it is."""

    message: str
    path: Path = ()
    file: str = ""
    line: int | None = None
    warning: bool = False

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [place, shown(self.path), "warning" if self.warning else "", self.message]
        return ": ".join(part for part in parts if part)


class ConfigurationError(ConfigError):
    """A configuration that cannot be used: `problems` are all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in self.problems if not problem.warning]
        more = f" (and {len(errors) - 1} more: headgate config check)" if len(errors) > 1 else ""
        super().__init__(f"{errors[0] if errors else 'no problem'}{more}")


Locate = Callable[[Path], tuple[str, int | None]]


class Problems:
    """Collects them while a configuration is read; `locate` finds file and line of a path."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self.found: list[Problem] = []

    def add(self, path: Path, message: str) -> None:
        self._note(path, message, warning=False)

    def warn(self, path: Path, message: str) -> None:
        self._note(path, message, warning=True)

    def _note(self, path: Path, message: str, *, warning: bool) -> None:
        file, line = self._locate(path)
        self.found.append(Problem(message, path, file, line, warning))

    @property
    def fatal(self) -> bool:
        return any(not problem.warning for problem in self.found)

    def raise_if_fatal(self) -> None:
        if self.fatal:
            raise ConfigurationError(self.found)
