"""Fixtures for whatever runs on PostgreSQL; a `conftest.py` imports what it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.postgres.server import Server, serve


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of this session."""
    with serve(os.environ.get("HEADGATE_TEST_PG", "bundled")) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """The url of an empty store of its own."""
    with postgres.schema() as url:
        yield url


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[str]:
    """The url of an empty database of its own."""
    with postgres.database() as url:
        yield url
