"""The stores that tests run on, by name: each makes the url of an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest


def store_url(store: str, folder: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    if store == "memory":
        return "sqlite:///:memory:"
    from tests.postgres.server import shared

    return shared().fresh()


def on_both(metafunc: pytest.Metafunc, fixture: str, names: frozenset[str]) -> None:
    """Run the tests of these names on PostgreSQL too; the fixture makes its url from the
    parameter."""
    if fixture in metafunc.fixturenames and metafunc.function.__name__ in names:
        metafunc.parametrize(fixture, ["sqlite", "postgres"], indirect=True)
