"""Looking is cheap and never an error of the database, whatever is asked for.

What a listing reads does not grow with the number of jobs: as the server counted it, with
statistics and without.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from headgate.cli import root
from headgate.errors import InvalidArguments, JobNotFound
from headgate.jobs import Claimed, Finish, JobFilter, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.postgres.url import parse
from headgate.stores.protocol import (
    Claim,
    Exchange,
    NewWorker,
    Publication,
    Store,
    TaskSpec,
)
from headgate.turns import ClaimState
from tests.postgres.server import Server
from tests.waiting import wait_until
from tests.web.load import fill_postgres

NO_IDS = ["x", "", "a\0b", "é" * 40, "'; --", "ABCDEF00-0000-7000-8000-000000000001", "{0}"]
ENDED = 50_000
LINE = LATER = UNKNOWN = BEFORE = 30_000
HOLDERS, KEYS = 1000, 30_000
BOUND = 26_000
"""Rows, for one listing: the few things that it looks up of each of the 5,000 jobs that it looks
at. Every table that grows with what was submitted has more than that: to go through one of them
once is too much. That of attempts under way is not among them: no more run than workers have room
for, and to count them by queue and by worker they are all read."""
FEW = 8000
"""Rows, for what does not search: a page of groups, and a thousand of what is counted."""
QUEUES = 4 * 10_000 + 1000
"""Rows, for all queues of which one is long: what waits there is counted up to 10,000, twice, and
what is not due up to as many, with their jobs."""
FILTERS = {
    "all": "",
    "no such task": "--task nosuch",
    "a task that waits": "--task resize",
    "a group": "--group tenant/t77",
    "a queue": "--queue slow",
    "no such queue": "--queue other",
    "since": "--since 1h",
    "until": "--until 2h",
    **{state: f"--state {state}" for state in ("ready", "scheduled", "running")},
    **{state: f"--state {state}" for state in ("succeeded", "failed", "cancelled")},
    "ready, no such task": "--state ready --task nosuch",
    "ready, a task": "--state ready --task resize",
    "ready, a queue": "--state ready --queue slow",
    "ready, a group": "--state ready --group tenant/t77",
    "scheduled, no such task": "--state scheduled --task nosuch",
    "succeeded, no such task": "--state succeeded --task nosuch",
    "failed, a group": "--state failed --group tenant/t77",
    "all that wait": "--state ready --state scheduled --state running",
    "two that are over": "--state failed --state succeeded",
    "every filter": "--state ready --state succeeded --task nosuch --queue q --since 1d",
    "a long page": "--limit 3000",
}


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    store = open_store(postgres_url)
    yield store
    store.close()


@pytest.mark.parametrize("id", NO_IDS)
def test_a_text_that_is_no_id_is_the_id_of_no_job(store: Store, id: str) -> None:
    store.submit([NewJob("task")])
    assert store.job(id) is None
    assert store.attempts(id) == []
    assert store.find(JobFilter(ids=(id,))) == []
    assert store.find(JobFilter(), after=id) == []
    for act in (store.cancel, store.retry, store.why):
        with pytest.raises(JobNotFound):
            act(id)


def test_an_id_that_cannot_be_stored_is_refused(store: Store) -> None:
    for jobs in ([NewJob("task", id="mine")], [NewJob("task", id="mine") for _ in range(50)]):
        with pytest.raises(InvalidArguments, match="is not a UUID"):
            store.submit(jobs)
    assert store.count(JobFilter()) == 0


def test_pages_filters_and_bounded_counts(store: Store) -> None:
    ids = [done.id for done in store.submit([NewJob("task", queue="q") for _ in range(30)])]
    (late,) = store.submit([NewJob("other", delay=100)])
    assert store.cancel(ids[0]).state == "cancelled"
    first = store.find(JobFilter(task="task"), limit=20)
    rest = store.find(JobFilter(task="task"), limit=20, after=first[-1].id)
    assert [record.id for record in (*first, *rest)] == ids[::-1]
    states = {
        state: store.count(JobFilter(states=frozenset([state])))
        for state in ("scheduled", "ready", "running", "cancelled", "failed")
    }
    assert states == {"scheduled": 1, "ready": 29, "running": 0, "cancelled": 1, "failed": 0}
    both = JobFilter(states=frozenset(["scheduled", "cancelled"]))
    assert {record.id for record in store.find(both)} == {ids[0], late.id}
    assert store.count(JobFilter(), limit=7) == 7
    assert [record.id for record in store.find(JobFilter(ids=(ids[3], "x")))] == [ids[3]]
    assert {q.name: q.waiting for q in store.queues()} == {"q": 29, "default": 0}


# --- what is read -----------------------------------------------------------------------------


@dataclass
class Place:
    url: str
    store: Store
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def headgate(self, *args: str) -> str:
        done = CliRunner().invoke(root, ["--url", self.url, *args], prog_name="headgate")
        assert done.exit_code == 0, (args, done.output)
        return done.stdout

    def rows(self, *args: str) -> int:
        """What the command reads of all tables, as the server counted it."""
        before = self._read()
        self.headgate(*args)
        return self._read() - before

    def _read(self) -> int:
        # A session tells what it read at its end at the latest: so that of the command is over.
        sessions = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"
        )
        ours = f"%{parse(self.url).schema}%"
        wait_until(lambda: not self._one(sessions, ours), why="the sessions of the command end")
        return self._one(
            "SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)"
            " FROM pg_stat_user_tables WHERE schemaname = %s",
            parse(self.url).schema,
        )

    def _one(self, statement: str, *cells: Any) -> int:
        with psycopg.connect(parse(self.url).conninfo, autocommit=True) as db:
            row = db.execute(statement.encode(), cells).fetchone()
            assert row is not None
            return int(row[0])

    def value(self, statement: str) -> Any:
        """The first cell of its answer."""
        with psycopg.connect(parse(self.url).conninfo, autocommit=True) as db:
            row = db.execute(self._of_schema(statement)).fetchone()
            assert row is not None
            return row[0]

    def execute(self, statement: str, **cells: Any) -> None:
        with psycopg.connect(parse(self.url).conninfo, autocommit=True) as db:
            db.execute(self._of_schema(statement), cells)

    def _of_schema(self, statement: str) -> sql.Composed:
        schema = sql.Identifier(parse(self.url).schema)
        return sql.SQL(statement).format(s=schema)  # type: ignore[arg-type]


def of(task: str, key: str, **more: Any) -> NewJob:
    return NewJob(task, needs=Needs((Need("tenant", key),)), turn=key, fair_limit="tenant", **more)


def fill(place: Place) -> None:
    """A few of every state, and after them a great many that are over."""
    store = place.store
    tasks = (TaskSpec("mail"), TaskSpec("resize"))
    store.publish(Publication("here", tasks=tasks, code={"tenant": 2, "gpu": HOLDERS}))
    store.register(NewWorker("w", "w", pid=os.getpid(), tasks=("mail",), concurrency=99, lease=1e6))
    state = ClaimState()

    def claim(room: int) -> list[Claimed]:
        asked = Exchange("w", claim=Claim(room, frozenset(["mail"]), state))
        return list(store.exchange(asked).claimed)

    store.submit([NewJob("mail") for _ in range(20)])
    claimed = claim(20)
    ends = [Finish(c.token, "failed" if n % 2 else "succeeded") for n, c in enumerate(claimed[5:])]
    store.exchange(Exchange("w", ends))
    done = store.submit([of("mail", f"t{n}") for n in range(100)])
    store.cancel(done[0].id)
    place.ids["running"], place.ids["ready"] = claimed[0].job, done[77].id
    place.ids["resize"] = store.submit([NewJob("resize", queue="slow") for _ in range(30)])[0].id
    place.ids["scheduled"] = store.submit([NewJob("mail", delay=1e5) for _ in range(30)])[0].id
    place.ids["unrouted"] = store.submit([NewJob("later", routed=False)])[0].id
    needs = Needs((Need("gpu"),))
    place.ids["full"] = store.submit([NewJob("mail", needs=needs) for _ in range(10)])[0].id
    fill_postgres(place.url, ended=ENDED, hot=0, keys=0)
    for table in ("scheduled", "running", "slots", "attempts", "unrouted"):
        place.execute(f"ALTER TABLE {{s}}.{table} SET (autovacuum_enabled = false)")
    place.ids["succeeded"] = json.loads(place.headgate("jobs", "ls", "--json"))["jobs"][0]["id"]
    for group, count in (("gpu", HOLDERS), ("tenant/k", KEYS)):
        place.execute(
            "INSERT INTO {s}.slots (epoch, grp, slot, token, holder, worker, worker_name, units,"
            " since) SELECT {s}.epoch(), CASE WHEN %(keyed)s THEN %(grp)s || i ELSE %(grp)s END,"
            " CASE WHEN %(keyed)s THEN 0 ELSE i END, 1000000 + i, 'by hand', 'w', 'w', 1,"
            " %(now)s FROM generate_series(1, %(count)s) AS g (i)",
            grp=group, count=count, keyed="/" in group, now=time.time(),
        )  # fmt: skip


def fill_lines(place: Place) -> None:
    """Many that wait: in line, for their time, and for somebody who knows their task. And many
    attempts that failed."""
    fill_postgres(place.url, ended=0, hot=LINE, keys=0)
    place.ids["last"] = str(place.value("SELECT id FROM {s}.jobs ORDER BY n DESC LIMIT 1"))
    for kind, count in (("scheduled", LATER), ("unrouted", UNKNOWN)):
        place.execute(
            "INSERT INTO {s}.jobs (n, id, task, queue, priority, band, turn, lane, place, args,"
            " options, needs, created_at, max_lost) SELECT x.n + i, gen_random_uuid(), j.task,"
            " j.queue, j.priority, j.band, j.turn, j.lane, j.place, j.args, j.options, j.needs,"
            " j.created_at, j.max_lost FROM {s}.jobs j, generate_series(1, %(count)s) AS g (i),"
            " (SELECT max(n) AS n FROM {s}.jobs) AS x WHERE j.id = %(like)s",
            count=count, like=place.ids[kind],
        )  # fmt: skip
    place.execute(
        "INSERT INTO {s}.scheduled (run_at, job, attempt, keeps_place, reason)"
        " SELECT %(now)s + 1e5 + n, n, 0, false, '' FROM {s}.jobs ORDER BY n DESC"
        " LIMIT %(count)s OFFSET %(skip)s",
        count=LATER, skip=UNKNOWN, now=time.time(),
    )  # fmt: skip
    place.execute(
        "INSERT INTO {s}.unrouted (task, job) SELECT task, n FROM {s}.jobs ORDER BY n DESC"
        " LIMIT %(count)s",
        count=UNKNOWN,
    )
    place.execute(
        "INSERT INTO {s}.attempts (job, token, attempt, worker, started_at, ended_at, outcome,"
        " reason, slots) SELECT job, -job, 1, 'w', at - 2, at - 1, 'error', '', '[]'"
        " FROM {s}.finished LIMIT %(count)s",
        count=BEFORE,
    )


@pytest.fixture(scope="module", params=["without statistics", "with statistics", "long lines"])
def place(request: pytest.FixtureRequest, postgres: Server) -> Place:
    url = postgres.fresh()
    place = Place(url, open_store(url))
    fill(place)
    if request.param == "long lines":
        fill_lines(place)
    if request.param == "with statistics":
        for table in ("jobs", "ready", "scheduled", "running", "finished", "slots", "unrouted"):
            place.execute(f"ANALYZE {{s}}.{table}")
    place.store.close()  # what it read is told now, not in the middle of a test
    return place


def test_jobs_ls(place: Place) -> None:
    read = {name: place.rows("jobs", "ls", *flags.split()) for name, flags in FILTERS.items()}

    assert {name: rows for name, rows in read.items() if rows > BOUND} == {}


def test_the_rest(place: Place) -> None:
    asked = {f"why {state}": ("jobs", "why", id) for state, id in place.ids.items()}
    asked |= {f"show {state}": ("jobs", "show", id) for state, id in place.ids.items()}
    asked |= {
        "status": ("concurrency", "status"),
        "status gpu": ("concurrency", "status", "gpu"),
        "status tenant": ("concurrency", "status", "tenant"),
        "queues ls": ("queues", "ls"),
        "workers ls": ("workers", "ls"),
    }
    read = {name: place.rows(*args) for name, args in asked.items()}
    bounds = {"queues ls": QUEUES}

    assert {name: rows for name, rows in read.items() if rows > bounds.get(name, FEW)} == {}


def test_in_bulk(place: Place) -> None:
    """Of those in line each band says of what task they are. Those that wait for their time are
    all looked at, a page at a time; those that are over are not."""
    later: int = place.value("SELECT count(*) FROM {s}.scheduled")
    assert place.rows("jobs", "cancel", "--task", "nosuch", "--yes") < 3 * later + 1000


# --- groups -----------------------------------------------------------------------------------


def entries(place: Place) -> int:
    """What was read of all tables and of all indexes, as the server counted it."""
    place._read()  # when all have told
    schema = parse(place.url).schema
    return place._one(
        "SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE schemaname ="
        " %s) + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname ="
        " %s)", schema, schema,
    )  # fmt: skip


def with_keys(postgres: Server, count: int) -> Place:
    """So many keys of a limit that somebody holds, as many that nobody holds any more, and as many
    other groups whose value jobs brought along."""
    url = postgres.fresh()
    place = Place(url, open_store(url))
    place.store.publish(
        Publication("here", tasks=(TaskSpec("mail"),), code={"tenant": 2, "zoo": 1})
    )
    place.store.register(NewWorker("w", "w", pid=os.getpid(), tasks=("mail",), lease=1e6))
    for table in ("slots", "carried"):
        place.execute(f"ALTER TABLE {{s}}.{table} SET (autovacuum_enabled = false)")
    place.execute(
        "INSERT INTO {s}.slots (epoch, grp, slot, token, holder, worker, worker_name, units, since)"
        " SELECT {s}.epoch(), 'tenant/k' || lpad(i::text, 6, '0'), 0,"
        " CASE WHEN i %% 2 = 0 THEN 1000000 + i END, 'by hand', 'w', 'w', 1, %(now)s"
        " FROM generate_series(1, 2 * %(count)s) AS g (i)",
        count=count, now=time.time(),
    )  # fmt: skip
    place.execute(
        "INSERT INTO {s}.carried (grp, value, at) SELECT 'own-' || lpad(i::text, 6, '0'), 3,"
        " %(now)s FROM generate_series(1, %(count)s) AS g (i)",
        count=count, now=time.time(),
    )  # fmt: skip
    place.store.close()
    return place


@pytest.mark.parametrize("statistics", [False, True])
def test_what_is_read_of_groups_does_not_grow_with_their_number(
    postgres: Server, statistics: bool
) -> None:
    asked = {
        "status": ("concurrency", "status"),
        "in the middle": ("concurrency", "status", "--after", "tenant/k001000"),
        "many": ("concurrency", "status", "--limit", "1000"),
        "ls": ("concurrency", "ls"),
    }
    read: dict[str, list[int]] = {name: [] for name in asked}
    for count in (2000, 30_000):
        place = with_keys(postgres, count)
        if statistics:
            for table in ("slots", "carried"):
                place.execute(f"ANALYZE {{s}}.{table}")
        for name, args in asked.items():
            before = entries(place)
            place.headgate(*args)
            read[name].append(entries(place) - before)
    grown = {name: (few, many) for name, (few, many) in read.items() if many > 1.05 * few}
    assert grown == {}
    assert max(many for _, many in read.values()) < BOUND


def test_all_groups_are_found_a_page_at_a_time(postgres: Server) -> None:
    place = with_keys(postgres, 2000)
    found: list[str] = []
    after: list[str] = []
    while True:
        page = json.loads(place.headgate("concurrency", "status", "--json", *after))
        found += [one["group"] for one in page["groups"]]
        if page["after"] is None:
            break
        assert len(page["groups"]) <= 102
        after = ["--after", page["after"]]
    own = [f"own-{n:06}" for n in range(1, 2001)]
    keys = [f"tenant/k{n:06}" for n in range(2, 4001, 2)]
    assert sorted(found) == [*own, "tenant", *keys, "zoo"]
    told = place.headgate("concurrency", "status")
    assert [line.split()[0] for line in told.splitlines()[1:]] == [*own[:100], "tenant", "zoo"]
