"""SQL kept in `.sql` files, each statement under a line `-- name: …`."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_FOLDER = Path(__file__).parent / "sql"


class Queries:
    """The statements of one file, by name."""

    def __init__(self, file: str) -> None:
        parts = _NAME.split((_FOLDER / f"{file}.sql").read_text())
        self._file = file
        self._sql = {
            name: text.strip().rstrip(";")
            for name, text in zip(parts[1::2], parts[2::2], strict=True)
        }

    def __getattr__(self, name: str) -> str:
        try:
            return self._sql[name]
        except KeyError:
            raise AttributeError(f"{self._file}.sql has no statement named {name}") from None


def script(file: str) -> str:
    """A whole file, as a script."""
    return (_FOLDER / f"{file}.sql").read_text()
