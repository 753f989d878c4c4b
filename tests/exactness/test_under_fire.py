"""Two machines' worth of workers on PostgreSQL, thousands of keys, twenty of them with half of all
work, and everything is shot at: worker processes with kill -9, and the server's own processes that
serve them."""

from __future__ import annotations

import os
import random
import threading
import time

import psycopg

from headgate.stores.postgres.url import parse

from . import scene
from .conftest import Fleet
from .peaks import peaks
from .test_chaos import Chaos

FULL = os.environ.get("HEADGATE_PROOF") == "full"
KEYS = 10_000 if FULL else 400
JOBS = 30_000 if FULL else 4_000
PART = 500
PROCESSES = 4 if FULL else 2
SECONDS = 120.0 if FULL else 8.0
HOT = [f"hot{n}" for n in range(20)]
"""Half of the jobs are of these: there is always somebody who waits for each of them."""
KILLS, CUT = 3, 20
"""Processes and connections, at least."""
LOST = 1000
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
    names = [dice.choice((dice.choice(HOT), f"k{dice.randrange(KEYS)}")) for _ in range(JOBS)]
    more = {"max_lost": LOST}
    keyed, shared = scene.per_tenant.using(**more), scene.shared_async.using(**more)

    def submit() -> None:
        """Little by little, so that there is work for as long as there is fire."""
        for begin in range(0, JOBS, PART):
            time.sleep(max(0.0, ends - SECONDS * (1 - begin / JOBS) - time.monotonic()))
            part = names[begin : begin + PART]
            fleet.submit(
                [keyed.call(name, dice.uniform(0.001, 0.02)) for name in part],
                [{f"tenant/{name}": 1} for name in part],
                turns=part,
                lost=LOST,
            )
            count = len(part) // 5
            fleet.submit(
                [shared.call(dice.uniform(0.001, 0.02)) for _ in range(count)],
                [{"shared": 1}] * count,
                lost=LOST,
            )

    ends = time.monotonic() + SECONDS
    submitting = threading.Thread(target=submit)
    submitting.start()
    chaos, cut = Chaos(fleet), 0
    while submitting.is_alive() or time.monotonic() < ends or chaos.count < KILLS or cut < CUT:
        time.sleep(dice.uniform(0.2, 0.6))
        cut += shoot(fleet.app.url)
        if not chaos.count or dice.random() < 0.4:
            chaos.kill_at_work()
    submitting.join()
    fleet.wait_done(300 if FULL else 90)
    fleet.stop()
    report = fleet.judge(scene.LIMITS, room=2 * PROCESSES * 25)
    most = peaks(report)
    full = [key for key in HOT if most[f"tenant/{key}"] == scene.LIMITS["tenant"]]
    print(
        f"{chaos.count} processes killed, {cut} connections cut, {len(full)} hot keys were full\n"
        f"{report.text()}"
    )
    assert report.ok, report.text()
    # Limits that are never reached cannot be passed: nothing would have been proved.
    assert len(full) >= len(HOT) // 2
    assert most["shared"] == scene.LIMITS["shared"]
    assert report.explained, "some attempt was killed in the middle"
    assert chaos.count >= KILLS
    assert cut >= CUT
