"""A session that holds an old snapshot keeps dead rows from being removed; claims do not mind,
and nothing is lost or done twice while the tables are left behind and emptied."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from headgate import App
from headgate.jobs import Finish, NewJob
from headgate.stores.postgres import compacting, dues, schema, trip, view
from headgate.stores.postgres.database import Database
from tests.conformance.conftest import Rig
from tests.postgres.load import LIMIT, Load, doctored, watching
from tests.postgres.server import OwnServer, Server

JOBS = 9000
PAGES = 1500
"""That a look may read, however many jobs have run since the horizon was pinned. Without
compacting it would be more by then, and would grow."""

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the size of a test: what takes ten thousand jobs and seconds otherwise."""
    monkeypatch.setattr(compacting, "GENERATION_ROWS", 1500)
    monkeypatch.setattr(compacting, "PINNED", 0.2)
    monkeypatch.setattr(compacting, "SETTLED", 1.0)
    monkeypatch.setattr(compacting, "EVERY", 0.1)
    monkeypatch.setattr(compacting, "EVERY_PINNED", 0.02)


@pytest.fixture
def load(empty_database: str) -> Iterator[Load]:
    load = Load(empty_database)
    yield load
    load.close()


@pytest.fixture
def pinner(empty_database: str, load: Load) -> Iterator[Connection]:
    with watching(empty_database) as connection:
        yield connection


def submit(connection: Connection, url: str, delay: float = 0.0) -> str:
    """One job, in the transaction of the caller."""
    app = App(url)

    @app.task
    def plain() -> None: ...

    return str(plain.using(conn=connection, delay=delay).submit().id)


def idle_snapshot(connection: Connection) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT count(*) FROM pg_class")


def tables(connection: Connection) -> list[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'headgate'")
    return [str(name) for (name,) in rows]


def dump(connection: Connection) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    for name in tables(connection):
        connection.execute(f"LOCK TABLE headgate.{name} IN ACCESS SHARE MODE".encode())
    for name in tables(connection):
        connection.execute(f"SELECT count(*) FROM headgate.{name}".encode())


def whole(load: Load) -> None:
    """Every job ran once, and the limit was kept."""
    assert set(load.ran) == load.submitted
    assert max(load.ran.values()) == 1
    assert 0 < load.most_held <= LIMIT
    assert doctored(load.store) == []


def compacted(load: Load) -> None:
    """The load goes on until then: how many jobs that takes, the machine decides."""
    load.wait(lambda: load.switches >= 3 and load.epochs >= 2, "it is compacted")


def test_an_idle_snapshot_does_not_matter(load: Load, pinner: Connection) -> None:
    with load.running():
        load.work_off(500)
        idle_snapshot(pinner)
        load.work_off(JOBS)
        compacted(load)
        assert load.look() < PAGES
        # All that was left behind could be emptied: they go round.
        assert len(load.generations) <= 5
        pinner.rollback()
        load.work_off(500)
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_an_open_producer_does_not_matter_and_loses_nothing(load: Load, pinner: Connection) -> None:
    with load.running():
        load.work_off(500)
        pinner.execute("BEGIN")
        held = submit(pinner, load.url)
        load.work_off(JOBS)
        compacted(load)
        assert load.look() < PAGES
        assert held not in load.ran
        pinner.commit()
        load.submitted.add(held)
        load.wait(lambda: held in load.ran, "what was held back has run")
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_what_nobody_can_empty_is_seldom_looked_at(load: Load, pinner: Connection) -> None:
    """All that died in a generation is read to see that nothing is left in it."""
    scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'ready_0'"
    with load.running():
        load.work_off(500)
        pinner.execute("BEGIN")
        submit(pinner, load.url)
        load.work_off(JOBS // 2)
        # It has run empty, and what is tried in vain is tried less and less.
        load.wait(lambda: load.value("SELECT count(*) FROM headgate.ready_0") == 0, "empty")
        looks = load.compactions
        load.wait(lambda: load.compactions >= looks + 150, "it is tried in vain")
        before = load.value(scans)
        load.wait(lambda: load.compactions >= looks + 300, "there are more looks")
        assert load.value(scans) - before < 30
        pinner.rollback()
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_a_dump_does_not_matter(load: Load, pinner: Connection) -> None:
    with load.running():
        load.work_off(500)
        dump(pinner)
        load.work_off(JOBS)
        # The first cannot be emptied now, and is not used any more.
        compacted(load)
        assert load.look() < PAGES
        # What the dump sees is what there was, to the row.
        assert load.value("SELECT count(*) FROM headgate.jobs") > 0
        seen = pinner.execute(
            "SELECT (SELECT count(*) FROM headgate.jobs), (SELECT count(*) FROM headgate.ready),"
            " (SELECT count(*) FROM headgate.running),"
            " (SELECT count(*) FROM headgate.slots WHERE token IS NOT NULL)"
        ).fetchone()
        assert seen is not None
        jobs, ready, running, held = (int(str(n)) for n in seen)
        assert jobs == ready + running
        assert held <= min(LIMIT, running)
        pinner.rollback()
        load.work_off(500)
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_a_generation_stays_as_long_as_somebody_may_choose_it(
    load: Load, pinner: Connection
) -> None:
    """A caller in REPEATABLE READ sees the current generation of long ago, and may use it."""
    with load.running():
        load.work_off(300)
        with watching(load.url) as other:
            idle_snapshot(other)
            load.wait(lambda: load.switches >= 1, "another generation is current")
            idle_snapshot(pinner)
            other.rollback()
        load.work_off(JOBS // 2)
        id = submit(pinner, load.url)
        load.work_off(JOBS // 2)
        pinner.commit()
        load.submitted.add(id)
        load.wait(lambda: id in load.ran, "it has run")
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_what_cannot_run_does_not_keep_a_generation(load: Load, pinner: Connection) -> None:
    waiting = load.store.submit([NewJob("nobody") for _ in range(30)])
    with load.running():
        load.work_off(500)
        idle_snapshot(pinner)
        load.work_off(JOBS)
        where = "SELECT gen FROM headgate.ready WHERE band LIKE '%nobody%' GROUP BY gen"
        for _ in range(2):
            gen = load.value(where)
            load.wait(lambda gen=gen: load.value(where) != gen, "they have moved on")
        assert load.value("SELECT count(*) FROM headgate.ready WHERE band LIKE '%nobody%'") == 30
        for one in waiting:
            # Found, wherever it is moved to just now.
            assert load.store.cancel(one.id).state == "cancelled"
        pinner.rollback()
        load.drain()
        load.wait(lambda: load.generations == [0], "one generation again")
    whole(load)


def test_a_role_without_ddl_compacts(postgres: Server, empty_database: str) -> None:
    role = f"headgate_role_{secrets.token_hex(4)}"
    postgres.run(f"CREATE ROLE {role} LOGIN")
    try:
        with closing(Database(empty_database)) as database:
            schema.migrate(database, [role])
        load = Load(postgres.url(urlsplit(empty_database).path.removeprefix("/"), user=role))
        try:
            with watching(empty_database) as pinner, load.running():
                idle_snapshot(pinner)
                load.work_off(JOBS // 2)
                load.wait(lambda: load.switches >= 2 and load.epochs >= 1, "it was compacted")
                pinner.rollback()
                load.drain()
                load.wait(lambda: load.generations == [0], "one generation again")
            whole(load)
        finally:
            load.close()
    finally:
        postgres.run(f"DROP OWNED BY {role}", database=urlsplit(empty_database).path[1:])
        postgres.run(f"DROP ROLE {role}")


def dump_to(file: Path, server: Server, url: str, *options: str) -> None:
    if not isinstance(server, OwnServer):
        pytest.skip("pg_dump of the same version is known for our own server only")
    command = [server.bin / "pg_dump", "-Fc", "-n", "headgate", *options, "-f", file, url]
    subprocess.run(command, check=True, timeout=60)


@contextmanager
def restored_from(file: Path, server: Server) -> Generator[str]:
    assert isinstance(server, OwnServer)
    with server.database() as url:
        command = [server.bin / "pg_restore", "--exit-on-error", "-d", url, file]
        subprocess.run(command, check=True, timeout=60)
        with watching(url) as connection:
            connection.execute("UPDATE headgate.leases SET ends = 0")  # nobody of then lives
        yield url


def test_a_dump_of_a_store_at_work_is_restored_whole(
    load: Load, postgres: Server, pinner: Connection, tmp_path: Path
) -> None:
    file = tmp_path / "dump"
    with load.running():
        idle_snapshot(pinner)
        load.wait(lambda: load.switches >= 2, "it is compacted")
        before = set(load.submitted)
        dump_to(file, postgres, load.url)
        waited = before - set(load.ran)
        pinner.rollback()
        load.drain()
    whole(load)
    with restored_from(file, postgres) as url, closing(Load(url)) as restored:
        restored.store.doctor(repair=True)
        rows = restored.watch.execute("SELECT id::text FROM headgate.jobs").fetchall()
        restored.submitted = {str(id) for (id,) in rows}
        assert waited <= restored.submitted
        with restored.running():
            restored.drain()
        assert set(restored.ran) == restored.submitted
        assert doctored(restored.store) == []


def test_a_dump_that_saw_emptied_tables_is_mended(
    load: Load, postgres: Server, pinner: Connection, tmp_path: Path
) -> None:
    """The worst that a dump can meet: it looks at a moment after which the generation of then was
    emptied. Of the jobs that waited in it the dump has the bodies, and no place in line."""
    file = tmp_path / "dump"
    with load.running():
        load.work_off(300)
        idle_snapshot(pinner)
        (snapshot,) = pinner.execute("SELECT pg_export_snapshot()").fetchone() or ("",)

        def seen(what: str) -> set[str]:
            """By another, and for a moment: who has read a table keeps it from being emptied."""
            with watching(load.url) as other, other.transaction():
                other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                other.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
                return {str(id) for (id,) in other.execute(what.encode())}

        in_line = "SELECT j.id FROM headgate.jobs j JOIN headgate.ready r ON r.job = j.n"
        then, waiting = seen("SELECT id FROM headgate.jobs"), seen(in_line)
        assert waiting
        load.wait(lambda: load.switches >= 3, "it is compacted")
        load.wait(lambda: not seen(in_line), "the line of then is gone")
        dump_to(file, postgres, load.url, f"--snapshot={snapshot}")
        pinner.rollback()
        load.drain()
    whole(load)
    with restored_from(file, postgres) as url:
        found = doctor(url)
        assert not found["ok"]
        lost = {one["what"]: one["detail"] for one in found["troubles"]}
        assert lost["jobs-nowhere"].endswith(f": {len(waiting)}"), lost
        assert all(one["repaired"] for one in doctor(url, "--repair")["troubles"])
        assert doctor(url)["troubles"] == []
        with closing(Load(url)) as restored:
            restored.submitted = set(then)
            with restored.running(producing=False):
                restored.drain()
            assert restored.ran == Counter(then), "every job of then ran, and once"
            assert doctored(restored.store) == []


def doctor(url: str, *options: str) -> dict[str, Any]:
    """What the command says; it ends with 1 as long as trouble is left."""
    command = [sys.executable, "-m", "headgate", "--url", url, "--json", "doctor", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["ok"] else 1), done.stderr
    return told


def test_who_looks_only_near_still_finds_what_is_new(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if dead rows stood in the way all the time."""
    monkeypatch.setattr(view, "SLOW", -1.0)
    monkeypatch.setattr(view, "NEAR_TIMES", 1e9)
    monkeypatch.setattr(view, "NEAR_LONGEST", 0.3)
    with load.running():
        load.work_off(1000)
        (urgent,) = load.store.submit([NewJob("plain", queue="a", priority=-100)])
        load.submitted.add(urgent.id)
        load.wait(lambda: urgent.id in load.ran, "it was found")
        load.work_off(1000)
        load.drain()
    whole(load)


def passed_over(load: Load, since: str) -> int:
    """Pages read to find what is due first."""
    plan = load.value(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT run_at FROM headgate.scheduled"
        f" WHERE run_at >= {since} ORDER BY run_at LIMIT 1"
    )[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_what_was_due_long_ago_is_not_passed_over_in_every_look(
    load: Load, pinner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it took long each time, with a horizon that keeps it all."""
    monkeypatch.setattr(dues, "SLOW", -1.0)
    monkeypatch.setattr(dues, "PART", 1e9)
    monkeypatch.setattr(dues, "LONGEST", 0.5)
    with load.running():
        load.work_off(200)
        idle_snapshot(pinner)
        for _ in range(10):
            jobs = [NewJob("plain", delay=0.05) for _ in range(400)]
            load.submitted |= {one.id for one in load.store.submit(jobs)}
            load.wait(lambda: load.value("SELECT count(*) FROM headgate.scheduled") == 0, "due")
        assert passed_over(load, "0") > 20 > passed_over(load, "extract(epoch FROM now())")
        # A transaction that took longer than its job's delay.
        with watching(load.url) as late:
            late.execute("BEGIN")
            held = submit(late, load.url, delay=0.05)
            load.work_off(300)
            (soon,) = load.store.submit([NewJob("plain", delay=0.05)])
            load.submitted.add(soon.id)
            load.wait(lambda: soon.id in load.ran, "what is new has run")
            late.commit()
        load.submitted.add(held)
        load.wait(lambda: held in load.ran, "what came late has run")
        pinner.rollback()
        load.drain()
    whole(load)


@pytest.mark.parametrize("news", [False, True])
def test_what_is_new_is_seen_behind_a_round_trip(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, news: bool
) -> None:
    """Where it takes long to come to the first job, a look begins where the last one did, and sees
    nothing that is new before it. Who has heard of something new looks at all there is."""
    monkeypatch.setattr(view, "SLOW", 0.0)
    monkeypatch.setattr(view, "NEAR_TIMES", 1e6)
    monkeypatch.setattr(trip, "VIEW_AGE", 1e6)
    rig.submit(5, task="task")
    hand = rig.hand()
    (first,) = hand.exchange(room=1, again=True).claimed
    late = rig.submit(task="other")  # a band before that of the others
    end = [Finish(first.token, "succeeded")]
    hand.exchange(end, room=1, again=True, fresh=False, news=news)
    seen = hand.state.view
    assert isinstance(seen, view.View)
    assert any("other" in band for _, _, band in seen.seen.bands) == news
    assert rig.state(late[0]) == "ready"
