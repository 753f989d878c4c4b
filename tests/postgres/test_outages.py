"""Running workers and a server that goes, comes back, or cannot be reached: nothing is lost,
nothing runs twice at once, and nobody has to help."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from headgate.handle import JobHandle
from headgate.stores.postgres import schema
from headgate.stores.postgres.database import Database
from tests.postgres import pgbouncer
from tests.postgres.proxy import Proxy
from tests.postgres.release import next_release
from tests.postgres.server import OwnServer, binaries
from tests.waiting import wait_until
from tests.worker import sample
from tests.worker.site import Site, Tree, opened

LEASE = 5.0
LEASE_SECONDS = "HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS"
SHORT_LEASE = {LEASE_SECONDS: str(LEASE)}

FULL = os.environ.get("HEADGATE_PROOF") == "full"
ENDS = [signal.SIGKILL, signal.SIGINT] if FULL else [signal.SIGKILL]
"""Of a pooler: in the middle of transactions, and, in the full form, between them."""
MANY = 12
"""Connections: as many as a worker of two processes needs, and some more."""


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """One of our own: it is stopped and started."""
    server = OwnServer(binaries())
    server.start()
    yield server
    server.close()


@pytest.fixture
def site(server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if server.process is None:
        server.start()
    server.run("DROP DATABASE IF EXISTS work WITH (FORCE)", "CREATE DATABASE work")
    with opened(Site(tmp_path, server.tcp_url("work")), monkeypatch) as site:
        yield site


def busy(site: Site, count: int = 80, **env: str) -> list[JobHandle[int]]:
    """A worker in the middle of many jobs, one at a time through the gate."""
    jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(count)])
    site.start("--processes", "2", "--concurrency", "5", **env)
    site.wait_for("gate-in", count=10)
    return jobs


def check_all_done_once(site: Site, jobs: list[JobHandle[int]]) -> None:
    for job in jobs:
        record = site.until_done(job.id)
        assert (record.state, record.attempt) == ("succeeded", 1)
    inside = 0
    for event in site.events():
        inside += {"gate-in": 1, "gate-out": -1}.get(event["event"], 0)
        assert inside <= 1
    assert len(site.events("gate-in")) == len(jobs)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "crash"])
def test_the_server_is_restarted(server: OwnServer, site: Site, how: signal.Signals) -> None:
    jobs = busy(site)
    server.stop(how)
    wait_until(lambda: "the store refused a round trip" in site.trees[0].output())
    server.start()
    check_all_done_once(site, jobs)
    assert "the store answers again" in site.trees[0].output()
    assert site.trees[0].stop() == 0


def test_there_is_no_connection_to_be_had_for_a_while(server: OwnServer, site: Site) -> None:
    jobs = busy(site)
    server.run(
        "ALTER DATABASE work ALLOW_CONNECTIONS false",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'work'",
    )
    wait_until(lambda: "not currently accepting connections" in site.trees[0].output())
    server.run("ALTER DATABASE work ALLOW_CONNECTIONS true")
    check_all_done_once(site, jobs)
    assert "the store answers again" in site.trees[0].output()
    assert site.trees[0].stop() == 0


def test_others_have_all_connections_for_a_while(server: OwnServer, site: Site) -> None:
    """The worker loses its own, and each that it opens is refused until some of theirs end. It has
    few places for them: none may be lost with one that could not be opened."""
    server.run("CREATE ROLE narrow LOGIN")
    site.app.store.groups()  # it is made by somebody who may
    server.run(schema.grants("headgate", "narrow"), database="work")
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(psycopg.connect(server.url("work", user="narrow")))
        url = server.tcp_url("work", user="narrow") + "?pool=3"
        jobs = busy(site, 300, HEADGATE_URL=url)
        server.run(
            f"ALTER ROLE narrow CONNECTION LIMIT {MANY}",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = 'narrow' AND application_name = 'headgate'",
        )
        # The fifth time in a row is told again, by each of the processes.
        wait_until(lambda: site.trees[0].output().count("the server has no connection left") >= 6)
        assert len(site.events("gate-in")) < len(jobs), "it is in the middle of them"
    check_all_done_once(site, jobs)
    assert "the store answers again" in site.trees[0].output()
    assert site.trees[0].stop() == 0


@pytest.mark.parametrize("how", ENDS, ids=lambda how: how.name)
def test_a_pooler_is_restarted(server: OwnServer, site: Site, how: signal.Signals) -> None:
    """The worker reaches the server through nothing else."""
    bouncer = pgbouncer.PgBouncer(server, pgbouncer.installed())
    try:
        bouncer.start()
        jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(700)])
        tree = site.start(
            "--processes", "2", "--concurrency", "5", HEADGATE_URL=bouncer.url("work")
        )
        for round_ in range(10):
            site.wait_for("gate-in", count=20 + 50 * round_)
            assert len(site.events("gate-in")) < len(jobs), "it is in the middle of them"
            bouncer.stop(how)
            bouncer.start()
        check_all_done_once(site, jobs)
        assert tree.stop() == 0
    finally:
        bouncer.close()


def test_another_release_migrates_under_a_running_worker(server: OwnServer, site: Site) -> None:
    """It can tell nothing by functions that are not there: it says so, and keeps what it has."""
    jobs = busy(site)
    with psycopg.connect(server.url("work"), autocommit=True) as admin:
        admin.execute("ALTER FUNCTION headgate.act RENAME TO act_of_another_release")
        wait_until(lambda: "not of this version" in site.trees[0].output())
        admin.execute("ALTER FUNCTION headgate.act_of_another_release RENAME TO act")
    check_all_done_once(site, jobs)
    assert site.trees[0].stop() == 0


def test_a_worker_of_an_earlier_release_is_granted_nothing_any_more(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it could call all functions. What it runs it may end, and its word is taken."""
    for _ in range(2):  # one of them has nothing to do
        site.start("--concurrency", "5")
    site.ready(2)
    running = sample.wait_async.submit()
    site.wait_for("running")
    next_release(tmp_path, monkeypatch)
    database = Database(site.url)
    schema.migrate(database)
    database.close()
    late = site.app.submit_many([sample.add.call(1, 1), sample.touch_gate.call(1)])
    said = "migrated to version 2 of another release"
    wait_until(lambda: all(said in tree.output() for tree in site.trees))
    site.go()
    assert site.until_done(running.id).state == "succeeded"
    assert [site.job(job.id).state for job in late] == ["ready", "ready"]
    assert [tree.stop() for tree in site.trees] == [0, 0]


def test_its_backends_are_killed_again_and_again(server: OwnServer, site: Site) -> None:
    jobs = busy(site)
    stop = threading.Event()

    def kill() -> None:
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            while not stop.wait(0.15):
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = 'work' AND application_name = 'headgate'"
                )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        wait_until(lambda: len(site.events("gate-out")) >= 60)
    finally:
        stop.set()
        killer.join()
    check_all_done_once(site, jobs)
    assert site.trees[0].stop() == 0


def test_a_dead_wire_ends_a_worker_before_its_slots_are_given_away(
    server: OwnServer, site: Site
) -> None:
    """Nothing tells it that the server cannot be reached any more, but its lease is not
    renewed: it stops by itself, and only then does another get its slot."""
    proxy = Proxy(server.tcp)
    try:
        job = sample.nest.submit()
        cut_off = site.start(HEADGATE_URL=server.tcp_url("work", proxy.port), **SHORT_LEASE)
        site.wait_for("nested")
        other = site.start("--name", "other", **SHORT_LEASE)
        site.ready(2)
        proxy.dead = True
        again = site.wait_for("again", seconds=LEASE * 4)[0]
        assert again["alive"] == [], "it lived when its slot was granted"
        assert site.until_done(job.id).attempt == 2
        proxy.dead = False
        cut_off.signal(signal.SIGTERM)
        cut_off.signal(signal.SIGTERM)
        cut_off.wait()
        assert other.stop() == 0
    finally:
        proxy.close()


def leases_left(server: OwnServer) -> tuple[float, float]:
    """Seconds until the first lease ends, and until the last does, if nobody renews them."""
    with server.admin("work") as admin:
        found = admin.execute(
            "SELECT min(left_), max(left_) FROM ("
            " SELECT ends - extract(epoch FROM clock_timestamp())::float8 AS left_"
            " FROM headgate.leases WHERE NOT dead) AS leases"
        ).fetchone()
    assert found is not None
    return found[0], found[1]  # type: ignore[return-value]


def hears(server: OwnServer, tree: Tree) -> bool:
    """Is it known that the one process of this worker waits to be rung?"""
    (worker,) = tree.processes()
    with server.admin("work") as admin:
        found = admin.execute(
            "SELECT 1 FROM headgate.ears WHERE what = 'work' AND listener LIKE %s"
            " AND ends > extract(epoch FROM clock_timestamp())", (f"%:{worker}:%",)
        ).fetchone()  # fmt: skip
    return found is not None


def test_a_wire_that_is_dead_for_a_while(server: OwnServer, site: Site) -> None:
    """What is sent vanishes, and nothing says so. It leads to the server again before a worker has
    to stop: who was busy goes on, who listened hears again, and no lease has ended."""
    lease = 10.0
    proxy = Proxy(server.tcp)
    url = server.tcp_url("work", proxy.port) + "?connect_timeout=2"
    try:
        at_work, idle = (
            site.start_module(
                "tests.postgres.impatient", json.dumps(options),
                HEADGATE_URL=url, **{LEASE_SECONDS: str(lease)},
            )
            for options in (
                {"processes": 2, "concurrency": 5, "queues": ["default"]},
                {"queues": ["other"]},
            )
        )  # fmt: skip
        site.ready(3)
        wait_until(lambda: leases_left(server)[0] > lease * 0.85, why="all have just renewed")
        jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(400)])
        site.wait_for("gate-in", count=10)
        wait_until(lambda: hears(server, idle))
        proxy.dead = True
        late = lease * 2 / 3 - 0.1
        wait_until(lambda: leases_left(server)[1] < late, why="no keeper could renew a lease")
        assert len(site.events("gate-in")) < len(jobs), "it is in the middle of them"
        proxy.dead = False
        check_all_done_once(site, jobs)
        told = at_work.output()
        assert "did not answer in time" in told
        assert "the store answers again" in told
        wait_until(lambda: "the connection for wake-ups was lost" in idle.output())
        wait_until(lambda: hears(server, idle))
        job = sample.add.using(queue="other").submit(1, 1)
        record = site.until_done(job.id)
        assert (record.state, record.attempt) == ("succeeded", 1)
        assert [tree.stop() for tree in (at_work, idle)] == [0, 0]
    finally:
        proxy.close()


def test_a_death_that_nobody_sees_ends_with_the_lease(site: Site) -> None:
    job = sample.nest.submit()
    tree = site.start(**SHORT_LEASE)
    site.wait_for("nested")
    other = site.start("--name", "other", **SHORT_LEASE)
    site.ready(2)
    (worker,) = tree.processes()
    pids = (worker, tree.keeper(), tree.guard.pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # frozen first: none sees another die
        for pid in pids:
            os.kill(pid, number)
    tree.wait()
    again = site.wait_for("again", seconds=LEASE * 3)[0]
    assert again["alive"] == []
    assert site.until_done(job.id).attempt == 2
    assert other.stop() == 0
