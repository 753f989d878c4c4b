"""Fixtures for whatever runs on PostgreSQL; a `conftest.py` imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import pgbouncer
from tests.postgres.server import Server, shared


@pytest.fixture(scope="session")
def postgres() -> Server:
    """The server of this run."""
    return shared()


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """The url of an empty store of its own."""
    return postgres.fresh()


@pytest.fixture
def empty_database(postgres: Server) -> Iterator[str]:
    """The url of an empty database of its own."""
    with postgres.database() as url:
        yield url


@pytest.fixture
def bounced_url() -> str:
    """The url of an empty store of its own, by way of PgBouncer in transaction mode."""
    return pgbouncer.shared().fresh()
