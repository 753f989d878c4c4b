"""The role that works needs no right to make or change tables."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from headgate.errors import StoreError, StoreVersion
from headgate.stores.postgres import schema
from headgate.stores.postgres.database import Database
from tests.postgres.server import Server


@pytest.fixture
def role(postgres: Server) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"headgate_role_{secrets.token_hex(4)}"
    postgres.run(f"CREATE ROLE {name} LOGIN PASSWORD 'p4ss@word'")
    yield name
    with postgres.admin() as connection:
        connection.execute(f"DROP ROLE IF EXISTS {name}")


@pytest.fixture
def place(postgres: Server, empty_database: str, role: str) -> Iterator[tuple[str, str]]:
    """(url of the owner, url of the role)"""
    name = urlsplit(empty_database).path.removeprefix("/")
    yield empty_database, postgres.url(name, user=role)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {role}")


def test_a_role_that_may_not_create_is_told_what_to_do(place: tuple[str, str]) -> None:
    told = pytest.raises(StoreVersion, match="headgate migrate --grant")
    with closing(Database(place[1])) as database, told:
        schema.settle(database)


def test_a_role_without_grants_is_told_where_they_are(place: tuple[str, str]) -> None:
    owner, worker = place
    with closing(Database(owner)) as database:
        schema.settle(database)
    told = pytest.raises(StoreError, match=r"docs/postgres\.md")
    with closing(Database(worker)) as database, told:
        schema.settle(database)


def test_granted_it_does_everything_but_ddl(place: tuple[str, str], role: str) -> None:
    owner, worker = place
    command = [sys.executable, "-m", "headgate", "migrate", "--url", owner, "--grant", role]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with closing(Database(worker)) as database:
        schema.settle(database)
        with database.write() as tx:
            assert len(tx.numbers("token", 2)) == 2
            tx.lock(["a", "b"])
            for table in tx.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'headgate'"):
                tx.rows(f"SELECT * FROM headgate.{table[0]}")
                tx.run(f"DELETE FROM headgate.{table[0]} WHERE false")
            tx.ring("work")
        with pytest.raises(StoreError, match="may not do that"), database.write() as tx:
            tx.run("CREATE TABLE headgate.more (n int)")


def test_what_a_later_migration_makes_is_granted_too(place: tuple[str, str], role: str) -> None:
    owner, worker = place
    with closing(Database(owner)) as database:
        schema.migrate(database, [role])
        with database.write() as tx:
            tx.run("CREATE TABLE headgate.later (n int)")
            tx.run("UPDATE headgate.migrations SET functions = ''")
        schema.migrate(database)
    with closing(Database(worker)) as database, database.write() as tx:
        tx.run("INSERT INTO headgate.later VALUES (1)")
        tx.lock(["a"])
