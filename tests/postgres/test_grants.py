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
from headgate.jobs import CapUse, Finish, JobFilter, NewJob, Retention, Routing
from headgate.stores import open_store
from headgate.stores.postgres import schema
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL
from headgate.stores.protocol import Claim, Exchange, NewWorker, SlotRequest
from headgate.turns import ClaimState
from tests.conformance.conftest import HandClock, Rig, need
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


# --- all that a program, a worker and an operator do, as such a role ------------------------------


@pytest.fixture
def rig(place: tuple[str, str], role: str) -> Iterator[Rig]:
    owner, worker = place
    with closing(Database(owner)) as database:
        schema.migrate(database, [role])
    clock = HandClock()
    with closing(open_store(worker, clock=clock)) as store:
        yield Rig(store, clock)
        assert store.doctor() == []


def test_jobs_are_submitted_run_and_kept_as_that_role(rig: Rig, place: tuple[str, str]) -> None:
    store = rig.store
    rig.declare(gpu=3)
    rig.submit(needs=need("gpu"))
    rig.submit(300, needs=need("gpu"))
    rig.submit(2, delay=5)
    (unrouted,) = rig.submit(routed=False)
    assert store.route([Routing(unrouted)]) == 1
    with psycopg.connect(place[1]) as caller:
        store.submit_with(caller, [NewJob("task") for _ in range(3)])
    caps = (CapUse("tenant/acme", max_total=1),)
    capped = store.submit([NewJob("task", caps=caps), NewJob("task", caps=caps)])
    assert [one.refused is None for one in capped] == [True, False]

    hand = rig.hand()
    rig.clock.advance(6)
    first, second, third = (c for c in hand.claim() if c.groups)
    assert store.release_groups(first.token)
    assert store.retake_groups(first.token)
    store.extend(first.token, 5)
    assert hand.end(first, "failed")
    assert store.retry(first.job).state == "ready"
    assert hand.end(second, "retry", delay=1)
    assert store.cancel(third.job, reason="no more").cancel_requested
    assert hand.end(third, "cancelled")
    (waiting, *_) = store.find(JobFilter(states=frozenset(["ready"])), limit=1)
    assert store.cancel(waiting.id).state == "cancelled"
    hand.end_all()

    store.register(NewWorker("mortal", "mortal", tasks=("task",), lease=5))
    claim = Claim(3, frozenset(["task"]), ClaimState())
    assert len(store.exchange(Exchange("mortal", claim=claim)).claimed) == 3
    rig.clock.advance(60)
    swept = store.sweep()
    assert (swept.lost_workers, swept.lost_attempts) == (("mortal",), 3)
    assert store.renew(hand.id)

    while claimed := hand.claim():
        hand.exchange([Finish(c.token, "succeeded") for c in claimed], room=0)
    ended = {state: store.count(JobFilter(states=frozenset([state]))) for state in STATES}
    assert ended == {"succeeded": 306, "cancelled": 2, "ready": 0, "running": 0, "scheduled": 0}
    assert store.prune(Retention(succeeded=0, cancelled=0)) == 308
    hand.leave()


STATES = ("succeeded", "cancelled", "ready", "running", "scheduled")


def test_limits_and_slots_are_handled_as_that_role(rig: Rig) -> None:
    store = rig.store
    rig.declare(gpu=1)
    rig.submit(5, needs=need("gpu"))
    hand = rig.hand()
    rig.set_limit("gpu", 2)
    assert len(hand.claim()) == 2
    rig.pause("gpu")
    hand.end_all()
    assert hand.claim() == []
    rig.pause("gpu", False)
    slot = store.take_slot(SlotRequest("gpu", "me", "here", lease=5))
    assert slot is not None
    assert store.extend_slot("gpu", slot.slot, slot.token, 5)
    assert len(hand.claim()) == 1
    assert store.drop_slot("gpu", slot.slot, slot.token)
    bell = store.bell("work")
    store.ring("work")
    bell.close()
    assert len(store.events("limit_changed")) == 3
    hand.end_all()


def test_the_store_is_kept_in_order_as_that_role(rig: Rig, place: tuple[str, str]) -> None:
    owner, worker = place
    rig.declare(gpu=2)
    rig.submit(40, needs=need("gpu"))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    parts = (
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'headgate.ready'::regclass"
    )  # fmt: skip
    with closing(Database(worker)) as database, psycopg.connect(owner, autocommit=True) as watch:

        def done(name: str, *params: object) -> object:
            ((answer,),) = (tuple(row) for row in database.call(getattr(SQL.compact, name), params))
            return answer

        assert done("switch_generation", 8), "a new one"
        assert done("switch_generation", 8), "which is used from now on"
        assert watch.execute(parts).fetchone() == (2,)
        for gen in (0, 1):
            assert done("retire_generations")
            assert done("move_generation", gen, 1000, 1000) == 38
            assert done("empty_generation", gen) not in ("locked", "rows")
            if not gen:
                assert done("switch_generation", 8), "back to the first"
        assert done("drop_generation", 1)
        assert done("renew_slots")
        assert watch.execute(parts).fetchone() == (1,)
        rig.store.compact()
        assert rig.store.doctor() == []
        watch.execute("TRUNCATE headgate.ready, headgate.running")
    assert {one.what for one in rig.store.doctor()} == {"jobs-nowhere", "holderless-slots"}
    assert all(one.repaired for one in rig.store.doctor(repair=True))
    hand.running.clear()
    assert len(hand.claim()) == 2
