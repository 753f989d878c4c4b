"""With a million jobs in line a round trip reads a handful of rows, whatever the statistics say.

Two kinds of evidence: the plan of every statement inside the round trip as `auto_explain` saw it
run, on the system's server, if it has that module; and what the server counted, on the bundled
one, which is of another version: in the short form with fewer jobs where the first kind is had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from bench.fill import fill
from bench.fleet import workers
from bench.place import direct
from bench.plans import HOT, Explained, available, faults, parsed
from bench.tasks import app
from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication, SlotRequest, Store
from headgate.turns import ClaimState
from headgate.worker.board import STARTS
from tests.lacking import lacking
from tests.postgres.server import OwnServer, binaries

ROWS = 1_000_000
FEWER = 100_000
ROOM = 25
STEPS = 6
BOUND = 3000
"""Rows that one step of one statement may read."""
TASKS = frozenset(("plain", "keyed", "shut", "narrow"))
FULL = os.environ.get("HEADGATE_PROOF") == "full"
LIMITS = {"tenant": 2, "shared": 10, "narrow": 10}


def kinds(rows: int) -> Iterator[tuple[NewJob, int]]:
    """One long lane; many short ones; a full band; a hot key that is full; an unknown task."""
    yield NewJob("plain"), rows * 3 // 10
    yield NewJob("a task that nobody knows"), rows // 10
    yield NewJob("narrow", needs=Needs((Need("narrow"),))), rows // 10
    yield of_tenant("keyed", "hot"), rows * 3 // 10
    for i in range(10_000):
        yield of_tenant("keyed", f"t{i}"), rows // 100_000
        yield of_tenant("shut", f"t{i}", Need("shared")), rows // 100_000


def of_tenant(task: str, key: str, *more: Need) -> NewJob:
    needs = Needs((Need("tenant", key), *more))
    return NewJob(task, needs=needs, turn=key, fair_limit="tenant")


@dataclass
class Line:
    """A store with all that in it, and a worker that goes through it."""

    server: OwnServer
    url: str
    explained: Explained | None
    state: ClaimState = field(default_factory=ClaimState)
    finishes: list[Finish] = field(default_factory=list[Finish])

    def work(self) -> int:
        """Some round trips, in connections of their own; how many jobs were claimed."""
        store, claimed = open_store(self.url), 0
        try:
            for _ in range(STEPS):
                claimed += self._claim(store)
            # The next one is idle: it tells nothing, and looks in a way of its own.
            store.exchange(Exchange("w", self.finishes))
            self.finishes = []
            claimed += self._claim(store)
        finally:
            store.close()
        return claimed

    def _claim(self, store: Store) -> int:
        claim = Claim(ROOM, TASKS, self.state)
        got = store.exchange(Exchange("w", self.finishes, claim=claim))
        self.finishes = [Finish(c.token, "succeeded", result="null") for c in got.claimed]
        return len(got.claimed)

    def execute(self, *statements: str) -> None:
        with direct(self.url) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def with_plans() -> Path:
    """The binaries of a server that shows its plans."""
    found = available()
    if found is None:
        lacking(
            "no PostgreSQL of /usr/lib/postgresql has auto_explain, and nothing else shows a single"
            " statement: install Debian's package `postgresql`"
        )
    return found


@pytest.fixture(scope="module", params=["explained", "counted"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    explained: bool = request.param == "explained"
    found = with_plans() if explained else binaries("bundled")
    short = not explained and available() is not None and not FULL
    rows = FEWER if short else ROWS
    settings = {"autovacuum": "off", "shared_buffers": "256MB", "max_wal_size": "4GB"}
    server = OwnServer(found, settings)
    try:
        server.start()
        server.run("CREATE DATABASE plans TEMPLATE template0")
        url = server.url("plans")
        store = open_store(url)
        # What is known of the tables from now on was true when they were empty.
        with direct(url) as connection:
            connection.execute("ANALYZE")
        assert fill(url, kinds(rows), analyze=False) == rows
        prepare(store)
        store.close()
        yield Line(server, url, Explained(server, url) if explained else None)
    finally:
        server.close()


def prepare(store: Store) -> None:
    store.publish(Publication("test", code=LIMITS))
    store.register(NewWorker("w", "w", pid=os.getpid(), lease=3600.0))
    for group, units in (("tenant/hot", 2), ("shared", 10)):
        for i in range(units):
            assert store.take_slot(SlotRequest(group, f"{group}-{i}", "test", 3600.0))


NO_STATISTICS = (
    "SET allow_system_table_mods = on;"
    " DELETE FROM pg_statistic WHERE starelid IN"
    "  (SELECT oid FROM pg_class WHERE relnamespace = 'headgate'::regnamespace);"
    " UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0"
    "  WHERE relnamespace = 'headgate'::regnamespace AND relkind IN ('r', 'i')"
)
NONE_ALIVE = (
    "SET allow_system_table_mods = on;"
    " UPDATE pg_class SET relpages = 1000, reltuples = 0"
    "  WHERE relnamespace = 'headgate'::regnamespace AND relkind IN ('r', 'i')"
)
"""As a vacuum leaves it that took so long that all which lived when it began has gone: the planner
takes any index for one page, whole, however many dead rows are in it."""
STATISTICS = {
    "stale": (),
    "none": (NO_STATISTICS,),
    "none alive": (NONE_ALIVE,),
    "fresh": ("ANALYZE",),
}


PLAN_MODE = """
    DO $$ DECLARE f regprocedure; BEGIN
        FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'headgate'::regnamespace
                 AND 'plan_cache_mode=' = ANY (SELECT left(c, 16) FROM unnest(p.proconfig) c)
        LOOP EXECUTE format('ALTER FUNCTION %s SET plan_cache_mode = {}', f); END LOOP;
    END $$
"""
"""The functions of a claim choose plans that hold for any values; those for the values at hand must
be no worse, whoever's server decides that one day."""


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("statistics", STATISTICS)
def test_a_round_trip_reads_a_handful_of_rows(line: Line, statistics: str, mode: str) -> None:
    line.execute(*STATISTICS[statistics], PLAN_MODE.format(mode))
    before = read(line.url)
    if line.explained is None:
        claimed = line.work()
    else:
        claimed, entries = line.explained.watch(line.work)
        plans = [plan for plan in parsed(entries) if plan.hot]
        assert len(plans) > STEPS * 3, "the statements inside the functions were seen"
        found = [f"{fault}: {plan.statement}" for plan in plans for fault in faults(plan, BOUND)]
        assert found == []
    # One of them may begin near the end of what its look saw, and is short then.
    assert claimed >= (STEPS + 1) * ROOM * 4 // 5, "a full claim nearly each time"
    scans, rows = (after - was for after, was in zip(read(line.url), before, strict=True))
    assert scans == 0, "some table was read from end to end"
    assert rows < (STEPS + 1) * BOUND


ASKED = STARTS + 500
"""Rows of a claim that asks for as many jobs as a worker ever does: where round trips are slow."""


@pytest.mark.parametrize("line", ["explained"], indirect=True)
@pytest.mark.parametrize("statistics", STATISTICS)
def test_reserved_jobs_that_go_back_are_found_by_their_tokens(line: Line, statistics: str) -> None:
    line.execute(*STATISTICS[statistics])
    returned: list[Finish] = []

    def give_back() -> None:
        store = open_store(line.url)
        try:
            claim = Claim(
                ROOM, frozenset(("narrow",)), ClaimState(), ahead={"narrow": 0.001}, ahead_room=ROOM
            )
            got = store.exchange(Exchange("w", line.finishes, claim=claim))
            line.finishes = []
            returned.extend(Finish(c.token, "returned") for c in got.claimed if c.reserved)
            ended = [Finish(c.token, "succeeded") for c in got.claimed if not c.reserved]
            store.exchange(Exchange("w", [*ended, *returned]))
        finally:
            store.close()

    assert line.explained is not None
    _, entries = line.explained.watch(give_back)
    plans = [plan for plan in parsed(entries) if plan.hot and "p_tokens" in plan.statement]
    assert returned
    assert plans
    assert [f"{fault}: {p.statement}" for p in plans for fault in faults(p, BOUND)] == []


@pytest.mark.parametrize("line", ["explained"], indirect=True)
@pytest.mark.parametrize("statistics", ["stale", "none alive"])
@pytest.mark.parametrize("task", ["nothing", "wide", "twice"])
def test_no_statement_of_a_real_worker_reads_much(
    line: Line, task: str, statistics: str, tmp_path: Path
) -> None:
    """With short jobs, so that most are reserved ahead and run in the slots of others."""
    jobs = 600 if task == "twice" else 2 * ASKED
    with line.server.database() as url:
        fill(url, [(app.tasks[task].call().new_job(), jobs)], analyze=statistics != "stale")
        with direct(url) as connection:
            for statement in STATISTICS[statistics]:
                connection.execute(statement.encode())

        def work() -> None:
            with workers(tmp_path, url, "--concurrency", "100") as fleet:
                fleet.wait(lambda: sum(fleet.traces.counts()) >= jobs, "all have run")

        _, entries = Explained(line.server, url).watch(work)
    plans = [plan for plan in parsed(entries) if plan.hot]
    if task != "twice":
        assert any("p_token" in plan.statement for plan in plans), "some were reserved ahead"
    found = {f"{fault}: {plan.statement}" for plan in plans for fault in faults(plan, ASKED)}
    # Beside the round trips some statements look through a whole table. Its pages, unlike its rows,
    # are never misjudged: they do that where there are few.
    small = tuple(f"reads all of {table}:" for table in HOT)
    assert {fault for fault in found if not fault.startswith(small)} == set()


def read(url: str) -> tuple[int, int]:
    """Sequential scans of the tables that grow, and rows that were read of them, so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT sum(seq_scan), sum(seq_tup_read + coalesce(idx_tup_fetch, 0))"
            " FROM pg_stat_user_tables WHERE schemaname = 'headgate' AND relname ~ %s",
            (f"^({'|'.join(HOT)})(_[0-9]+)?$",),
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
