"""SQL kept in `.sql` files, each statement under a line `-- name: …`.

Parameters are written `:name` or `?` in every dialect.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Statements:
    """The statements of one file, by name."""

    def __init__(self, path: Path) -> None:
        parts = _NAME.split(path.read_text())
        self._path = path
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            # As plain attributes: an operation asks for some of them at every call.
            setattr(self, name, _bare(text))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


class Sql:
    """All files of one dialect: `sql.finish.running` is a statement of `finish.sql`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, file: str) -> Statements:
        if file.startswith("_"):
            raise AttributeError(file)
        statements = Statements(self._folder / f"{file}.sql")
        setattr(self, file, statements)
        return statements

    def script(self, file: str) -> str:
        """A whole file, as a script."""
        return (self._folder / f"{file}.sql").read_text()


def _bare(text: str) -> str:
    """A statement without the comment lines before the next one, and without its semicolon."""
    lines = text.strip().splitlines()
    while lines and (not lines[-1].strip() or lines[-1].startswith("--")):
        lines.pop()
    return "\n".join(lines).rstrip().rstrip(";")
