"""The schema is made, upgraded and refused as it should be, whoever does it and how often."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import psycopg
import pytest

from headgate.errors import StoreError, StoreUnavailable, StoreVersion
from headgate.jobs import Finish, NewJob
from headgate.stores.postgres import connection as connections
from headgate.stores.postgres import schema
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.store import PostgresStore
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication
from headgate.turns import ClaimState
from tests.conformance.conftest import need
from tests.postgres.release import next_release
from tests.postgres.server import Server

T = TypeVar("T")


@pytest.fixture
def database(empty_database: str) -> Iterator[Database]:
    database = Database(empty_database)
    yield database
    database.close()


def headgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_an_empty_database_just_works(database: Database) -> None:
    schema.settle(database)
    with database.read() as tx:
        assert tx.value("SELECT count(*) FROM headgate.jobs") == 0
        assert tx.value("SELECT version FROM headgate.migrations") == schema.VERSION


def at_once(many: int, do: Callable[[Database], T], url: str) -> list[T]:
    began = Barrier(many)

    def one(_: int) -> T:
        database = Database(url)
        try:
            began.wait()
            return do(database)
        finally:
            database.close()

    with ThreadPoolExecutor(many) as threads:
        return list(threads.map(one, range(many)))


def versions(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT version FROM headgate.migrations ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def test_many_at_once_make_it_once(empty_database: str) -> None:
    at_once(6, schema.settle, empty_database)
    assert versions(empty_database) == [schema.VERSION]


def test_another_schema_beside_it(empty_database: str) -> None:
    for name in ("headgate", "jobs_2"):
        database = Database(f"{empty_database}&schema={name}")
        schema.settle(database)
        with database.write() as tx:
            tx.run("INSERT INTO headgate.counters (name, value) VALUES (?, 1)", (name,))
            assert tx.value("SELECT count(*) FROM headgate.counters") == 2
        database.close()


def test_the_command(empty_database: str) -> None:
    first = headgate("migrate", "--url", empty_database)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"is now {schema.VERSION}" in first.stdout
    again = headgate("migrate", "--url", empty_database)
    assert "already" in again.stdout


def test_the_script_does_the_same(postgres: Server, empty_database: str) -> None:
    printed = headgate("migrate", "--sql", "--url", empty_database)
    assert printed.returncode == 0, printed.stderr
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
        with pytest.raises(psycopg.errors.RaiseException, match="begins at version 0"):
            connection.execute(printed.stdout.encode())
    database = Database(empty_database)
    schema.settle(database)
    assert schema.migrate(database).current
    database.close()


def test_a_newer_schema_is_refused(database: Database) -> None:
    schema.settle(database)
    with database.write() as tx:
        tx.run("INSERT INTO headgate.migrations (version, functions) VALUES (999, '')")
    for opening in (schema.settle, schema.migrate):
        with pytest.raises(StoreVersion, match=r"version 999.*upgrade this program"):
            opening(database)


def test_other_functions_are_refused_until_they_are_made_anew(database: Database) -> None:
    schema.settle(database)
    with database.write() as tx:
        tx.run("UPDATE headgate.migrations SET functions = 'those of another one'")
        tx.run("DROP FUNCTION headgate.ring")
    with pytest.raises(StoreVersion, match="functions in it are those of another release"):
        schema.settle(database)
    schema.migrate(database)
    schema.settle(database)


def test_a_worker_of_another_release_says_so_in_one_line(database: Database) -> None:
    schema.migrate(database)
    with database.write() as tx:
        tx.run("UPDATE headgate.migrations SET functions = 'those of another one'")
    url = database.url  # there is no password in it
    done = headgate("--url", url, "worker", "tests.worker.sample:app", "--processes", "2")
    says = (
        f"{url}: the schema headgate has version {schema.VERSION} like this Headgate, but the"
        " functions in it are those of another release; run `headgate migrate` of the release that"
        " all programs are to use"
    )
    assert (done.returncode, done.stderr) == (4, f"headgate worker: {says}\n")


def test_another_programs_schema_is_left_alone(database: Database) -> None:
    with database.session() as connection:
        connection.execute("CREATE SCHEMA headgate")
        connection.execute("CREATE TABLE headgate.theirs (n int)")
    with pytest.raises(StoreVersion, match="another program"):
        schema.settle(database)


def test_a_migration_that_fails_leaves_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "functions", lambda: ["CREATE FUNCTION headgate.broken() what"])
    with pytest.raises(StoreError):
        schema.settle(database)
    monkeypatch.undo()
    schema.settle(database)


def test_a_missing_schema_is_named(database: Database) -> None:
    with pytest.raises(StoreVersion, match="headgate migrate"), database.read():
        pass


def test_an_old_server_is_refused(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MINIMUM_VERSION", 990000)
    with pytest.raises(StoreVersion, match="needs 99 or newer"):
        schema.settle(Database(empty_database))


def test_a_database_that_is_not_there(postgres: Server) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere_at_all"):
        schema.settle(Database(postgres.url("nowhere_at_all")))


def test_a_command_that_only_looks_makes_nothing(empty_database: str) -> None:
    looked = headgate("jobs", "ls", "--url", empty_database)
    assert (looked.returncode, looked.stdout) == (4, "")
    assert "there is no store" in looked.stderr
    with psycopg.connect(empty_database) as connection:
        told = connection.execute("SELECT to_regnamespace('headgate')").fetchone()
    assert told == (None,)
    assert headgate("migrate", "--url", empty_database).returncode == 0
    assert headgate("jobs", "ls", "--url", empty_database).returncode == 0


def asking() -> Exchange:
    return Exchange("w", claim=Claim(10, frozenset(["task"]), ClaimState()))


@pytest.mark.parametrize("by", ["many at once", "the script"])
def test_the_next_version_keeps_what_is_there(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    old = schema.VERSION
    before = PostgresStore(empty_database)
    before.publish(Publication("test", code={"api": 1}))
    before.register(NewWorker("w", "w", tasks=("task",), lease=3600.0))
    jobs = [NewJob("task", needs=need("api")), NewJob("task", needs=need("api")), NewJob("task")]
    before.submit(jobs)
    running = before.exchange(
        Exchange("w", claim=Claim(10, frozenset(["task"]), ClaimState()))
    ).claimed
    assert {one.job for one in running} == {jobs[0].id, jobs[2].id}
    before.close()

    next_release(tmp_path, monkeypatch)
    with pytest.raises(StoreVersion, match=f"version {old}, older than .* run `headgate migrate`"):
        PostgresStore(empty_database)
    if by == "the script":
        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute(schema.script(since=old).encode())
            with pytest.raises(psycopg.errors.RaiseException, match=f"begins at version {old}"):
                connection.execute(schema.script(since=old).encode())
    else:
        found = at_once(6, lambda database: schema.migrate(database).version, empty_database)
        assert sorted(found) == [old] + [old + 1] * 5, "one did it, the others found it done"
    assert versions(empty_database) == [old, old + 1]

    after = PostgresStore(empty_database)
    ends = [Finish(one.token, "succeeded") for one in running]
    assert not after.exchange(Exchange("w", ends)).stale
    (last,) = after.exchange(
        Exchange("w", claim=Claim(10, frozenset(["task"]), ClaimState()))
    ).claimed
    assert last.job == jobs[1].id
    (slot,) = after.group("api")[1]
    assert slot.token == last.token
    after.close()
    with psycopg.connect(empty_database) as connection:
        told = connection.execute(
            "SELECT count(*), min(note), headgate.release() FROM headgate.jobs"
        ).fetchone()
    assert told == (3, "–", "next")

    monkeypatch.undo()
    with pytest.raises(StoreVersion, match="migrated by a newer one; upgrade this program"):
        PostgresStore(empty_database)
