"""A release after this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.stores.postgres import schema


def next_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this program one of the next version: a column more, a function more."""
    scripts = folder / "sql"
    shutil.copytree(schema._FOLDER, scripts)
    number = schema.VERSION + 1
    (scripts / f"schema_{number}.sql").write_text(
        "ALTER TABLE headgate.jobs ADD COLUMN note text NOT NULL DEFAULT '–';\n"
    )
    (scripts / "zz_functions.sql").write_text(
        "CREATE FUNCTION headgate.release() RETURNS text LANGUAGE sql AS $$ SELECT 'next' $$;\n"
    )
    monkeypatch.setattr(schema, "_FOLDER", scripts)
    monkeypatch.setattr(schema, "VERSION", number)
