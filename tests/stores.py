"""The stores that tests run on, by name: each makes the url of an empty one."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.lacking import lacking


def store_url(store: str, folder: Path, *, quick: bool = False) -> str:
    """`sqlite`, `memory`, `postgres`, `postgres-system` (the machine's own version of it),
    `pgbouncer` or `bucket-server`. `quick`: for tests in which nothing crashes, commits need not
    reach the disk."""
    if store == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    if store == "memory":
        return "sqlite:///:memory:"
    if store == "bucket-server":
        from tests.bucket import server as objects

        return objects.shared().fresh(folder)
    from tests.postgres import pgbouncer, server

    if store == "pgbouncer":
        _new_sessions()
        return pgbouncer.shared().fresh()
    options = {"options": "-c synchronous_commit=off"} if quick else {}
    if store == "postgres-system":
        _need_system_postgres()
        return server.shared("system").fresh(**options)
    return server.shared().fresh(**options)


def _new_sessions() -> None:
    """What was cached of the stores before costs a session time at every change of a schema: one
    that has served fifty of them is five times as slow."""
    from tests.postgres import pgbouncer

    url = pgbouncer.shared().url("pgbouncer")
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as console:
        console.execute("RECONNECT")


def _need_system_postgres() -> None:
    from tests.postgres.server import system

    if system() is None:
        lacking(
            "there is no PostgreSQL in /usr/lib/postgresql, so nothing was shown of another version"
            " than the bundled one: install Debian's package `postgresql`"
        )


def on_both(
    metafunc: pytest.Metafunc,
    fixture: str,
    names: frozenset[str],
    bucket: frozenset[str] = frozenset(),
    pooled: frozenset[str] = frozenset(),
    system: frozenset[str] = frozenset(),
) -> None:
    """Run the tests of these names on PostgreSQL too, and some on a bucket or through PgBouncer, in
    a proof all of them, some on the machine's own version of PostgreSQL; the fixture makes its url
    from the parameter."""
    name = metafunc.function.__name__
    if fixture in metafunc.fixturenames and name in names:
        stores = ["sqlite", "postgres"]
        full = os.environ.get("HEADGATE_PROOF") == "full"
        if name in bucket or full:
            stores.append("bucket-server")
        if name in pooled or full:
            stores.append("pgbouncer")
        if name in system:
            stores.append("postgres-system")
        metafunc.parametrize(fixture, stores, indirect=True)
