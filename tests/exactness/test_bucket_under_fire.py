"""Two machines' worth of workers on a bucket, with everything that goes wrong at once: workers are
killed with all that belongs to them, the server is killed, requests fail, and answers are lost.

Where the machine is so busy that a lease cannot be renewed in time, a keeper ends its worker
before the lease ends, and what that had not told yet runs again, as promised. So a job may run
again if the process that ran it is gone, whoever ended it; who was not ended by this test has
said why.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checker import Kill
from headgate.execlog import now
from tests.bucket.proxy import Proxy, Weather
from tests.bucket.server import SeaweedFS, await_bucket
from tests.waiting import PATIENCE, wait_until

from . import scene
from .conftest import Fleet, opened
from .test_chaos import Chaos, alive, family

FULL = os.environ.get("HEADGATE_PROOF") == "full"
JOBS = 20_000 if FULL else 500
SECONDS = 300.0 if FULL else 6.0
LONGEST = 2 * SECONDS + 200
KILL_EVERY = 20.0 if FULL else 3.0
KILLS = 10 if FULL else 1
LOST_ANSWERS = 10 if FULL else 1
TREES = 4 if FULL else 2
AWAY = 2.0 if FULL else 1.0
"""Seconds for which the server is away, at least."""
OUTAGES = (80.0, 190.0) if FULL else (3.0,)
ROOM = 25
LEASE = 60 if FULL else 12
"""Longer than the server is away: what ends while it is must be told before the lease ends, or its
job runs once more."""
TOO_LATE = "lease was not renewed in time"
"""What a keeper, or its guard, says when it ends a worker for that."""
LOST = 1000
BACKLOG = 1500 if FULL else 200
WEATHER = Weather(errors=0.05, lost_writes=0.01) if FULL else Weather(errors=0.1, lost_writes=0.1)
"""A short run makes some 150 writes: the share is one of which surely some are lost."""
dice = random.Random(9)


class Deaths:
    """Sees which processes of the workers are gone, whoever ended them."""

    def __init__(self, fleet: Fleet) -> None:
        self.gone: dict[int, list[Kill]] = {}
        """By the process that was started: those below it, each between the last look at which it
        was there and the first at which it was not."""
        self._fleet = fleet
        self._last: dict[tuple[int, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            for process in list(self._fleet.processes):
                before = now()
                for pid in family(process.pid)[1:]:
                    self._last[process.pid, pid] = before
            for (guard, pid), last in list(self._last.items()):
                if not alive(pid):
                    del self._last[guard, pid]
                    self.gone.setdefault(guard, []).append(Kill(now(), pid=pid, sent=last))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class Place:
    def __init__(self, fleet: Fleet, server: SeaweedFS, proxy: Proxy, folder: Path) -> None:
        self.fleet = fleet
        self.server = server
        self.proxy = proxy
        self.deaths = Deaths(fleet)
        self._folder = folder
        self._chaos = Chaos(fleet)
        self._killed: set[int] = set()
        self._outputs: dict[int, Path] = {}

    def start(self) -> None:
        """One more worker, now on this machine, now on that one."""
        count = len(self._outputs)
        cache = self._folder / f"machine-{count % 2}"
        url = self.proxy.url(self.fleet.app.url.split("/")[3].split("?")[0], cache)
        output = self._folder / f"output-{count}"
        guard = self.fleet.start("--concurrency", str(ROOM), url=url, output=output)
        self._outputs[guard.pid] = output

    def tend(self) -> None:
        """As a supervisor does: another for each that has given up."""
        for guard in self.fleet.processes:
            if guard.poll() is not None and guard.pid not in self._killed:
                self._killed.add(guard.pid)
                self.start()

    def kill_one(self) -> None:
        """With all that belongs to it, and rather one that has something in its hands: nobody is
        left to tell, and the lease decides."""
        self.tend()  # all of them may have given up
        busy = {worker.pid for worker in self.fleet.store.workers() if worker.running}
        trees = [family(p.pid) for p in self.fleet.processes if p.poll() is None]
        tree = dice.choice([tree for tree in trees if busy.intersection(tree)] or trees)
        self._killed.add(tree[0])
        self._chaos.kill(tree, tree[1:])
        next(p for p in self.fleet.processes if p.pid == tree[0]).wait(PATIENCE)
        self.start()

    @property
    def kills(self) -> int:
        return self._chaos.count

    @property
    def rough(self) -> bool:
        """Has enough gone wrong?"""
        counts = self.proxy.counts
        return (
            self.kills >= KILLS and counts["answer"] > 10 and counts["lose_answer"] >= LOST_ANSWERS
        )

    def too_late(self) -> int:
        """Tell the checker of the processes that were ended because a lease was not renewed in
        time; how many there are. Others have not ended."""
        known = {kill.pid for kill in self.fleet.kills}
        found = 0
        for guard, gone in self.deaths.gone.items():
            if more := [kill for kill in gone if kill.pid not in known]:
                assert TOO_LATE in self._outputs[guard].read_text(), more
                self.fleet.kills += more
                found += len(more)
        return found

    def close(self) -> None:
        self.deaths.end()
        for output in self._outputs.values():
            print(output.read_text())

    def cut_off(self) -> None:
        # A real restart takes a quarter of a minute.
        (self.server.kill if FULL else self.proxy.stop)()
        time.sleep(AWAY)
        (self.server.start if FULL else self.proxy.resume)()
        await_bucket(self.server)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    server = SeaweedFS()
    proxy = Proxy(server)
    try:
        with opened(proxy.fresh(tmp_path / "test"), tmp_path, monkeypatch, LEASE) as fleet:
            place = Place(fleet, server, proxy, tmp_path)
            try:
                yield place
            finally:
                place.close()
    finally:
        proxy.close()
        server.close()


def feed(fleet: Fleet, count: int) -> None:
    more = {"max_lost": LOST}

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
    fleet.submit(calls, groups, lost=LOST)


@pytest.mark.timeout(1800 if FULL else 400)
def test_everything_at_once(place: Place) -> None:
    fleet = place.fleet
    feed(fleet, BACKLOG)
    for _ in range(TREES):
        place.start()
    place.proxy.rule = WEATHER
    began = time.monotonic()
    outages, next_kill = list(OUTAGES), KILL_EVERY

    def rough_enough() -> bool:
        nonlocal next_kill
        passed = time.monotonic() - began
        place.tend()
        if outages and passed > outages[0]:
            outages.pop(0)
            place.cut_off()
        if passed > next_kill:
            next_kill += KILL_EVERY
            place.kill_one()
        if len(fleet.jobs) - fleet.done() < BACKLOG:
            feed(fleet, BACKLOG // 3)
        return passed >= SECONDS and len(fleet.jobs) >= JOBS and not outages and place.rough

    wait_until(rough_enough, LONGEST, lambda: f"{place.kills} kills, {place.proxy.counts}")

    def all_done() -> bool:
        place.tend()
        return fleet.done() >= len(fleet.jobs)

    wait_until(all_done, 240 if FULL else 120, "all jobs have ended")
    took = time.monotonic() - began
    place.deaths.end()
    too_late = place.too_late()
    fleet.stop()
    # Those that were killed are there until their leases end.
    wait_until(lambda: fleet.store.sweep() and not fleet.store.workers(), why="all have left")
    report = fleet.judge(scene.LIMITS, room=None)
    print(
        f"{len(fleet.jobs)} jobs in {took:.0f} s, {place.kills} workers killed, {too_late}"
        f" processes ended for want of a lease, {dict(place.proxy.counts)}\n{report.text()}"
    )
    assert report.ok, report.text()
