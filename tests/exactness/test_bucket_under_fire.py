"""Two machines' worth of workers on a bucket, with everything that goes wrong at once: workers are
killed with all that belongs to them, the server is killed, requests fail, and answers are lost."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bucket.proxy import Proxy, Weather
from tests.bucket.server import SeaweedFS, await_bucket

from . import scene
from .conftest import Fleet, opened, wait_for
from .test_chaos import Chaos, family

FULL = os.environ.get("HEADGATE_PROOF") == "full"
JOBS = 20_000 if FULL else 500
SECONDS = 300.0 if FULL else 6.0
KILL_EVERY = 20.0 if FULL else 3.0
TREES = 4 if FULL else 2
OUTAGES = (80.0, 190.0) if FULL else (3.0,)
ROOM = 25
LEASE = 60 if FULL else 12
"""Longer than the server is away: what ends while it is must be told before the lease ends, or its
job runs once more."""
BACKLOG = 1500 if FULL else 200
WEATHER = Weather(errors=0.05, lost_writes=0.01) if FULL else Weather(errors=0.1, lost_writes=0.1)
"""A short run makes some 150 writes: the share is one of which surely some are lost."""
dice = random.Random(9)


class Place:
    def __init__(self, fleet: Fleet, server: SeaweedFS, proxy: Proxy, folder: Path) -> None:
        self.fleet = fleet
        self.server = server
        self.proxy = proxy
        self._folder = folder
        self._trees = 0
        self._chaos = Chaos(fleet)

    def start(self) -> None:
        """One more worker, now on this machine, now on that one."""
        self._trees += 1
        cache = self._folder / f"machine-{self._trees % 2}"
        url = self.proxy.url(self.fleet.app.url.split("/")[3].split("?")[0], cache)
        self.fleet.start("--concurrency", str(ROOM), url=url)

    def kill_one(self) -> None:
        """With all that belongs to it: nobody is left to tell, and the lease decides."""
        guard = dice.choice([p for p in self.fleet.processes if p.poll() is None])
        tree = family(guard.pid)
        self._chaos.kill(tree, tree[1:])
        guard.wait(20)
        self.start()

    @property
    def kills(self) -> int:
        return self._chaos.count

    def cut_off(self) -> None:
        if not FULL:  # a real restart takes a quarter of a minute
            self.proxy.stop()
            time.sleep(1.0)
            self.proxy.resume()
            return
        self.server.kill()
        time.sleep(2.0)
        self.server.start()
        await_bucket(self.server)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    server = SeaweedFS()
    proxy = Proxy(server)
    try:
        with opened(proxy.fresh(tmp_path / "test"), tmp_path, monkeypatch, LEASE) as fleet:
            yield Place(fleet, server, proxy, tmp_path)
    finally:
        proxy.close()
        server.close()


def feed(fleet: Fleet, count: int) -> None:
    more = {"max_lost": 1000}

    def seconds() -> float:
        return dice.uniform(0.001, 0.05)

    kinds = dice.choices(
        ("turn", "tenant", "shared", "narrow", "memory"), (60, 25, 9, 3, 3), k=count
    )
    calls, groups = [], []
    for kind in kinds:
        key = f"k{dice.randrange(100)}"
        if kind == "turn":
            calls.append(scene.plain_turn.using(**more).call(key, seconds()))
            groups.append({})
        elif kind == "tenant":
            calls.append(scene.per_tenant.using(**more).call(key, seconds()))
            groups.append({f"tenant/{key}": 1})
        elif kind == "shared":
            calls.append(scene.shared_sync.using(**more).call(seconds()))
            groups.append({"shared": 1})
        elif kind == "narrow":
            calls.append(scene.narrow.using(**more).call(seconds()))
            groups.append({"narrow": 1})
        else:
            calls.append(scene.hungry.using(**more).call(seconds()))
            groups.append({"memory": 3})
    fleet.submit(calls, groups)


def test_everything_at_once(place: Place) -> None:
    fleet = place.fleet
    feed(fleet, BACKLOG)
    for _ in range(TREES):
        place.start()
    place.proxy.rule = WEATHER
    began = time.monotonic()
    outages, next_kill = list(OUTAGES), KILL_EVERY
    while (passed := time.monotonic() - began) < SECONDS or len(fleet.jobs) < JOBS:
        if outages and passed > outages[0]:
            outages.pop(0)
            place.cut_off()
        if passed > next_kill:
            next_kill += KILL_EVERY
            place.kill_one()
        if len(fleet.jobs) - fleet.done() < BACKLOG:
            feed(fleet, BACKLOG // 3)
        time.sleep(0.2)
    fleet.wait_done(240 if FULL else 60)
    took = time.monotonic() - began
    fleet.stop()
    # Those that were killed are there until their leases end.
    wait_for(lambda: fleet.store.sweep() and not fleet.store.workers(), 60, "all have left")
    report = fleet.judge(scene.LIMITS, room=None)
    print(
        f"{len(fleet.jobs)} jobs in {took:.0f} s, {place.kills} workers killed,"
        f" {dict(place.proxy.counts)}\n{report.text()}"
    )
    assert report.ok, report.text()
    assert place.kills >= (10 if FULL else 1)
    assert place.proxy.counts["answer"] > 10
    assert place.proxy.counts["lose_answer"] > (10 if FULL else 0)
