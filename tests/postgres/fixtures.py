"""Fixtures for whatever runs on PostgreSQL; a `conftest.py` imports what it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.pgbouncer import PgBouncer, bounce
from tests.postgres.server import OwnServer, Server, shared


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


@pytest.fixture(scope="session")
def pgbouncer(postgres: Server) -> Iterator[PgBouncer]:
    """PgBouncer in front of it. Where it is not installed, the tests that need it fail and say
    what to install: a run that could not look has not passed."""
    if not isinstance(postgres, OwnServer):
        pytest.fail("PgBouncer is put in front of a server of our own: unset HEADGATE_TEST_PG")
    try:
        with bounce(postgres) as bouncer:
            yield bouncer
    except RuntimeError as error:
        pytest.fail(str(error))


@pytest.fixture
def bounced_url(postgres: Server, pgbouncer: PgBouncer) -> str:
    """The url of an empty store of its own, by way of PgBouncer."""
    schema = postgres.fresh().rpartition("schema=")[2]
    return pgbouncer.url(schema=schema)
