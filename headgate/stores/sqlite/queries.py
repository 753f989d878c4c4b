"""The SQL of this dialect."""

from __future__ import annotations

from pathlib import Path

from headgate.stores.relational.queries import Sql, Statements

SQL = Sql(Path(__file__).parent / "sql")


def Queries(file: str) -> Statements:
    """The statements of one file, by name."""
    return getattr(SQL, file)


def script(file: str) -> str:
    """A whole file, as a script."""
    return SQL.script(file)
