"""Who sleeps is woken, nobody is notified for nothing, and no ring is lost."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from headgate.errors import StoreError
from headgate.stores.postgres import bell as bells_module
from headgate.stores.postgres import schema
from headgate.stores.postgres.bell import Bells, PollingBell, ServerBell
from headgate.stores.postgres.database import Database
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    schema.settle(database)
    yield database
    database.close()


@pytest.fixture
def bells(database: Database) -> Iterator[Bells]:
    bells = Bells(database)
    yield bells
    bells.close()


@pytest.fixture
def other(postgres_url: str) -> Iterator[Bells]:
    """The same store in another process, as far as the server can tell."""
    database = Database(postgres_url)
    bells = Bells(database)
    yield bells
    bells.close()
    database.close()


def listen(bells: Bells, what: str = "work") -> ServerBell:
    bell = bells.listen(what)
    assert isinstance(bell, ServerBell)
    return bell


def ears(database: Database, what: str = "work") -> int:
    with database.read() as tx:
        return tx.value(
            "SELECT count(*) FROM headgate.ears"
            " WHERE what = ? AND ends > extract(epoch FROM clock_timestamp())", (what,)
        )  # fmt: skip


def ends(database: Database) -> float:
    """When the ear closes that is open for longest."""
    with database.read() as tx:
        return tx.value("SELECT max(ends) FROM headgate.ears")


def listeners(database: Database) -> list[int]:
    """The backends that listen to this schema's bells."""
    with database.read() as tx:
        found = tx.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'headgate' AND query ILIKE :mine",
            {"mine": f"%{database.schema}.ears%"},
        )
    return [row["pid"] for row in found]


def test_a_ring_is_heard_by_all_who_wait_and_only_by_them(bells: Bells, other: Bells) -> None:
    work, also, done = listen(bells), listen(other), listen(bells, "done")
    other.ring("work")
    assert work.wait(PATIENCE)
    assert also.wait(PATIENCE)
    assert not done.wait(0.1)
    assert not work.wait(0.05), "one ring, one waking"


def test_its_descriptor_is_readable(bells: Bells, other: Bells) -> None:
    bell = listen(bells)
    other.ring("work")
    ready, _, _ = select.select([bell.fileno()], [], [], 5)
    assert ready
    bell.drain()
    ready, _, _ = select.select([bell.fileno()], [], [], 0)
    assert not ready


def test_a_transaction_rings_when_it_commits_and_not_when_it_is_undone(
    bells: Bells, database: Database
) -> None:
    def undone() -> None:
        with database.write() as tx:
            tx.ring("work")
            tx.run("SELECT 1 / 0")

    bell = listen(bells)
    with pytest.raises(StoreError):
        undone()
    assert not bell.wait(0.1)
    with database.write() as tx:
        tx.ring("work")
        assert not bell.wait(0.1)
    assert bell.wait(PATIENCE)


def test_nobody_is_notified_while_nobody_listens(
    database: Database, bells: Bells, other: Bells
) -> None:
    with psycopg.connect(database.address.conninfo, autocommit=True) as spy:
        spy.execute(f'LISTEN "{database.schema}.bells"')
        other.ring("work")
        assert list(spy.notifies(timeout=0.2)) == []
        bell = listen(bells)
        other.ring("done")
        other.ring("work")
        assert [told.payload for told in spy.notifies(timeout=5, stop_after=1)] == ["work"]
        bell.close()


def test_a_ring_waits_for_no_disk_and_nothing_else_goes_without(
    database: Database, bells: Bells
) -> None:
    """A notification is committed, and heard only then; what was rung for is on disk by then."""
    listen(bells)
    wait_until(lambda: ears(database) == 1)
    shown = "SELECT current_setting('synchronous_commit')"
    with psycopg.connect(database.address.conninfo, autocommit=True) as session:
        (before,) = session.execute(shown).fetchone() or ()
        with session.transaction():
            session.execute(f"SELECT {database.schema}.ring('work')".encode())
            assert session.execute(shown).fetchone() == ("off",)
        assert session.execute(shown).fetchone() == (before,)
    assert before == "on"
    with database.write() as tx:
        tx.ring("work")
        assert tx.value(shown) == before, "rung behind the commit, not in it"
    with database.write() as tx:
        assert tx.value(shown) == before, "the session is as it was"


def test_a_busy_listeners_ear_closes_and_opens_again(
    database: Database, bells: Bells, other: Bells
) -> None:
    bell = listen(bells)
    assert ears(database) == 1
    bell.awake(busy=True)
    wait_until(lambda: ears(database) == 0)
    other.ring("work")
    assert not bell.wait(0.1), "nobody notified it"
    bell.awake(busy=False)
    assert bell.wait(PATIENCE), "it may have missed a ring, so it rings once by itself"
    assert ears(database) == 1
    other.ring("work")
    assert bell.wait(PATIENCE)


def test_an_open_ear_stays_open(
    database: Database, bells: Bells, other: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells_module, "RENEW", 0.2)
    monkeypatch.setattr(bells_module, "EAR", PATIENCE)
    bell = listen(bells)
    first = ends(database)
    renewed = {first}

    def again_and_again() -> bool:
        assert ears(database) == 1
        renewed.add(ends(database))
        return len(renewed) > 5

    wait_until(again_and_again, why="it is renewed")
    assert min(renewed) == first
    assert not bell.wait(0), "renewed in time, so it never had to ring by itself"


def test_no_ring_is_lost_between_looking_and_sleeping(database: Database) -> None:
    """Who opens its ear and then looks finds what was committed, or is woken: whatever the
    moment of the commit. Without the safety poll, which would hide a loss."""
    lost = 0
    for n in range(60):
        bells = Bells(database)
        started = threading.Event()

        def write(n: int = n, started: threading.Event = started) -> None:
            with database.write() as tx:
                tx.run("INSERT INTO headgate.counters VALUES (?, 1)", (f"n{n}",))
                started.set()
                time.sleep((n % 12) * 0.001)
                tx.ring("work")

        writer = threading.Thread(target=write)
        writer.start()
        started.wait()
        bell = listen(bells)
        with database.read() as tx:
            seen = tx.value("SELECT 1 FROM headgate.counters WHERE name = ?", (f"n{n}",))
        lost += not (seen or bell.wait(PATIENCE))
        writer.join()
        bells.close()
    assert lost == 0


def test_a_lost_connection_is_replaced_and_everybody_looks(
    database: Database, bells: Bells, other: Bells
) -> None:
    bell = listen(bells)
    with psycopg.connect(database.address.conninfo, autocommit=True) as admin:
        for pid in listeners(database):
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert bell.wait(PATIENCE), "what rang meanwhile was not heard"
    wait_until(lambda: ears(database) == 1)
    other.ring("work")
    assert bell.wait(PATIENCE)


def test_the_connection_goes_when_nobody_listens_any_more(
    database: Database, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells_module, "LINGER", 0.2)
    bell = listen(bells)
    thread = bells._thread
    assert thread is not None
    bell.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert ears(database) == 0
    again = listen(bells)
    bells.ring("work")
    assert again.wait(PATIENCE)


def test_without_listening_one_polls(postgres_url: str) -> None:
    database = Database(f"{postgres_url}&listen=off")
    schema.settle(database)
    bells = Bells(database)
    bell = bells.listen("work")
    assert isinstance(bell, PollingBell)
    assert bell.fileno() is None
    assert bell.wait(PATIENCE), "worth a look, each time"
    bells.ring("work")
    bells.close()
    database.close()


def test_a_forked_child_listens_for_itself(bells: Bells, other: Bells) -> None:
    bell = listen(bells)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine = bells.listen("done")
            os.write(write, b"ready")
            heard = mine.wait(PATIENCE)
            os._exit(0 if heard else 1)
        except BaseException:
            os._exit(2)
    assert os.read(read, 5) == b"ready"
    other.ring("done")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    other.ring("work")
    assert bell.wait(PATIENCE), "the parent's own was not disturbed"


def test_a_bell_that_does_not_exist(bells: Bells) -> None:
    with pytest.raises(ValueError, match="no bell 'tea'"):
        bells.listen("tea")
