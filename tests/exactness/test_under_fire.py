"""Two machines' worth of workers on PostgreSQL, thousands of keys, and everything is shot at:
worker processes with kill -9, and the server's own processes that serve them."""

from __future__ import annotations

import os
import random
import threading
import time

import psycopg

from headgate.stores.postgres.url import parse

from . import scene
from .conftest import Fleet
from .test_chaos import Chaos, alive, family

FULL = os.environ.get("HEADGATE_PROOF") == "full"
KEYS = 10_000 if FULL else 400
JOBS = 30_000 if FULL else 1_500
PROCESSES = 4 if FULL else 2
SECONDS = 120.0 if FULL else 8.0
dice = random.Random(8)


TARGET = "target"
"""The application name of the workers' connections; the test's own are spared."""


def shoot(url: str) -> int:
    """End a few of the workers' connections, whatever they are in the middle of."""
    with psycopg.connect(parse(url).conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"
            " ORDER BY random() LIMIT 3) x",
            (TARGET,),
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_many_keys_under_fire(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start(
            *("--processes", str(PROCESSES), "--concurrency", "25"),
            url=f"{fleet.app.url}&application_name={TARGET}",
        )
    names = [f"k{dice.randrange(KEYS)}" for _ in range(JOBS)]
    more = {"max_lost": 1000}
    keyed, shared = scene.per_tenant.using(**more), scene.shared_async.using(**more)

    def submit() -> None:
        for begin in range(0, JOBS, 500):
            part = names[begin : begin + 500]
            fleet.submit(
                [keyed.call(name, dice.uniform(0.001, 0.02)) for name in part],
                [{f"tenant/{name}": 1} for name in part],
                turns=part,
            )
            count = len(part) // 5
            fleet.submit(
                [shared.call(dice.uniform(0.001, 0.02)) for _ in range(count)],
                [{"shared": 1}] * count,
            )

    submitting = threading.Thread(target=submit)
    submitting.start()
    chaos, cut = Chaos(fleet), 0
    ends = time.monotonic() + SECONDS
    while submitting.is_alive() or time.monotonic() < ends:
        time.sleep(dice.uniform(0.2, 0.6))
        cut += shoot(fleet.app.url)
        if dice.random() < 0.4:
            pids = [w.pid for w in fleet.store.workers() if alive(w.pid)]
            if pids:
                pid = dice.choice(pids)
                chaos.kill([pid], family(pid))
    submitting.join()
    fleet.wait_done(300 if FULL else 90)
    fleet.stop()
    report = fleet.judge(scene.LIMITS, room=2 * PROCESSES * 25)
    print(f"{chaos.count} processes killed, {cut} connections cut\n{report.text()}")
    assert report.ok, report.text()
    assert chaos.count >= 3
    assert cut >= 20
