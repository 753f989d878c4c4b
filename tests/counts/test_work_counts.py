"""What a submit, a claim with its finish, and an idle minute cost on each store.

These are counts and no times: one statement, request or page more fails on any machine. A change
that means to cost something else changes its line in `figures.py`; a failure shows the new line.

The store has done the same several times before it is counted: statements are prepared, plans are
made, caches are filled.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from headgate import App, OneOf, Worker
from headgate.calls import Call
from headgate.config import Config
from headgate.jobs import Finish
from headgate.stores import open_store
from headgate.stores.bucket.store import BucketStore
from headgate.stores.postgres import compacting, dues, view
from headgate.stores.postgres.url import Address, parse
from headgate.stores.protocol import SlotRecord, SlotRequest, Store
from tests.bucket.memory import MemoryObjects
from tests.conformance.conftest import Hand, HandClock, Rig
from tests.counts.figures import WORK
from tests.counts.meters import BucketMeter, Meter, PostgresMeter, SQLiteMeter
from tests.counts.virtual_time import VirtualTime
from tests.postgres import server

ROOM = 20
"""Jobs that the worker runs at once, and the value of every limit."""
TRIPS = 5
WARM = 8
"""Repetitions before the one that counts. PostgreSQL and psycopg keep a plan after the fifth."""
BYTES = {"sent", "received"}
ABOUT = 0.02
"""The part by which bytes may differ: random ids and measured times vary in their digits."""


class Bench:
    """An app on a store with a meter."""

    def __init__(self, kind: str, store: Store, meter: Meter, time: VirtualTime) -> None:
        self.kind = kind
        self.store = store
        self.meter = meter
        self.time = time
        self.app = app = App(store.url, config=Config(url=store.url))
        app._store = store
        api, host = app.limit("api", ROOM), app.limit("host", ROOM)
        tenant = app.limit("tenant", ROOM, key="tenant")

        @app.task
        async def free() -> None: ...

        @app.task(limits=[api])
        async def limited() -> None: ...

        @app.task(limits=[tenant])
        async def keyed(tenant: str) -> None: ...

        @app.task(limits=[api, tenant])
        async def twice(tenant: str) -> None: ...

        @app.task(limits=[OneOf(api, host)])
        async def either() -> None: ...

        self.calls: dict[str, Call[None]] = {
            "under no limit": free.call(),
            "under a limit": limited.call(),
            "under a limit with a key": keyed.call("acme"),
            "under both limits": twice.call("acme"),
            "under one of two limits": either.call(),
        }
        store.publish(app.publication("test"))

    def worker(self) -> Hand:
        return Rig(self.store, HandClock()).hand(tasks=list(self.app.tasks))

    def check(self, work: str, counts: Mapping[str, int]) -> None:
        words = WORK[work][self.kind].replace(",", "").split()
        expected = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        about = {name: pytest.approx(expected[name], rel=ABOUT) for name in BYTES & expected.keys()}
        found = {name: counts[name] for name in self.meter.names}
        line = ", ".join(f"{name} {count}" for name, count in found.items())
        assert found == {**expected, **about}, f'{work}: "{self.kind}": "{line}",'


@pytest.fixture(params=["sqlite", "postgres", "bucket"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setattr(socket, "gethostname", lambda: "host")  # entries of the ledger name it
    time = VirtualTime(monkeypatch)
    with ExitStack() as stack:
        if request.param == "bucket":
            objects = MemoryObjects()
            meter: Meter = BucketMeter(objects)
            store: Store = BucketStore(f"s3://tests/all?cache={tmp_path}", objects=objects)
        elif request.param == "sqlite":
            meter = SQLiteMeter(tmp_path / "jobs.db", monkeypatch)
            store = open_store(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
        else:
            # Another version of the server has other plans.
            url = server.shared("bundled").fresh(options="-c synchronous_commit=off")
            meter = PostgresMeter(url, monkeypatch)
            store = open_store(url)
            stack.enter_context(_steady(parse(url), time, monkeypatch))
        bench = Bench(request.param, store, meter, time)
        stack.callback(bench.app.close)
        stack.callback(time.end)
        yield bench
        assert store.doctor() == []


@contextmanager
def _steady(address: Address, time: VirtualTime, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server in virtual time, and nothing that depends on how fast it is or who else uses it."""
    for module in (dues, view):
        patch.setattr(module, "SLOW", math.inf)
    patch.setattr(compacting, "PINNED", math.inf)
    schema = address.schema
    with psycopg.connect(address.conninfo, autocommit=True) as console:

        def set_clock() -> None:
            microseconds = round(time.wall * 1e6)
            console.execute("SELECT setval(%s, %s)", (f"{schema}.virtual_time", microseconds))

        console.execute(
            f"""
            CREATE SEQUENCE {schema}.virtual_time;
            CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS float8 LANGUAGE sql VOLATILE
            AS 'SELECT last_value / 1e6::float8 FROM {schema}.virtual_time'
            """
        )
        tables = "SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = %s"
        for (table,) in console.execute(f"{tables}::regnamespace", (schema,)).fetchall():
            # New statistics would change plans in the middle of a test.
            console.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        time.on_change = set_clock
        set_clock()
        yield


def test_submit(bench: Bench) -> None:
    for work, calls in {
        "submit a job": [bench.calls["under no limit"]],
        "submit a job under a limit with a key": [bench.calls["under a limit with a key"]],
        "submit 100 jobs": [bench.calls["under no limit"]] * 100,
    }.items():
        for _ in range(WARM):
            bench.app.submit_many(calls)
        with bench.meter.counting() as counts:
            bench.app.submit_many(calls)
        bench.check(work, counts)


@pytest.mark.parametrize("needs", ["under no limit", "under a limit", "under a limit with a key"])
def test_one_job(bench: Bench, needs: str) -> None:
    """An idle worker starts the only job, and finds nothing else when it ends."""
    worker = bench.worker()

    def run() -> None:
        (claimed,) = worker.exchange(room=ROOM).claimed
        if worker.state.emptied:  # as in the claimer: there is nothing to ask for
            worker.end(claimed, result="null")
        else:
            end = Finish(claimed.token, "succeeded", result="null")
            assert not worker.exchange([end], room=ROOM, fresh=False).claimed

    for _ in range(WARM):
        bench.app.submit_call(bench.calls[needs])
        run()
    bench.app.submit_call(bench.calls[needs])
    with bench.meter.counting() as counts:
        run()
    bench.check(f"claim and finish a job {needs}", counts)
    worker.leave()


@pytest.mark.parametrize(
    "needs",
    [
        "under no limit",
        "under a limit",
        "under a limit with a key",
        "under both limits",
        "under one of two limits",
    ],
)
def test_busy_worker(bench: Bench, needs: str) -> None:
    """Each round trip reports the jobs that ended and claims as many."""
    worker, task = bench.worker(), bench.calls[needs].task.name
    bench.app.submit_many([bench.calls[needs]] * (WARM + TRIPS) * ROOM)

    def round_trip(room: int = ROOM) -> None:
        ends = [Finish(token, "succeeded", result="null") for token in worker.running]
        short = {task: 0.001}  # a full limit has room again soon, so its lanes are looked at
        got = worker.exchange(ends, room=room, again=True, fresh=False, ahead=short)
        assert len(got.claimed) == room
        assert not got.stale

    for _ in range(WARM):
        round_trip()
    with bench.meter.counting() as counts:
        for _ in range(TRIPS):
            round_trip()
    bench.check(f"5 times, finish 20 jobs and claim 20 {needs}", counts)
    with bench.meter.counting() as counts:
        round_trip(room=0)
    bench.check(f"finish 20 jobs {needs}", counts)
    worker.leave()


def test_slot_by_hand(bench: Bench) -> None:
    def take() -> SlotRecord:
        slot = bench.store.take_slot(SlotRequest("api", "me", "here", lease=30.0))
        assert slot is not None
        return slot

    def extend(slot: SlotRecord) -> None:
        assert bench.store.extend_slot("api", slot.slot, slot.token, 5)

    def give_back(slot: SlotRecord) -> None:
        assert bench.store.drop_slot("api", slot.slot, slot.token)

    for _ in range(WARM):
        slot = take()
        extend(slot)
        give_back(slot)
    with bench.meter.counting() as counts:
        slot = take()
    bench.check("take a slot", counts)
    with bench.meter.counting() as counts:
        extend(slot)
    bench.check("extend a slot", counts)
    with bench.meter.counting() as counts:
        give_back(slot)
    bench.check("give a slot back", counts)


def test_idle_minute(bench: Bench) -> None:
    """A worker in this process has all loops that a process of `headgate worker` has: claims,
    sweeps, pruning, schedules, the lease, and listening for wake-ups."""

    async def main() -> None:
        worker = Worker(bench.app, "worker")
        running = asyncio.create_task(worker.arun())
        await bench.time.passes(120.5)
        with bench.meter.counting() as counts:
            await bench.time.passes(60)
        worker.stop()
        await running
        bench.check("an idle minute", counts)

    bench.time.run(main())
