"""Caps with processes that submit at once, that are killed in the middle of it, and under a cap
that changes meanwhile. What counts is counted by one look at the jobs themselves, never by what
the store keeps about places."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.jobs import CapUse, Finish, JobFilter, NewJob
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker, Store
from headgate.turns import ClaimState
from tests.exactness.submitters import group_of
from tests.stores import store_url

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("HEADGATE_PROOF") == "full"
SECONDS = 15.0 if FULL else 0.6
PATIENCE = 60.0

_ALIVE = """\
SELECT j.caps, r.job IS NOT NULL AS running FROM headgate.jobs j
LEFT JOIN headgate.finished f ON f.job = j.n
LEFT JOIN headgate.running r ON r.job = j.n
WHERE f.job IS NULL AND j.caps IS NOT NULL"""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """After every test all jobs are over, and all places free again."""
    store = open_store(store_url(request.param, tmp_path))
    yield store
    assert store.count(JobFilter(states=frozenset(("scheduled", "ready", "running")))) == 0
    for key in range(3):
        use = CapUse(group_of(key), max_total=3)
        got = store.submit([NewJob("last", caps=(use,)) for _ in range(4)])
        assert [one.refused is None for one in got] == [True] * 3 + [False]
    assert store.doctor() == []
    store.close()


class Submitters:
    """The processes of `submitters.py`."""

    def __init__(self, store: Store, count: int, cap: int, policy: str, keys: int) -> None:
        command = [sys.executable, "-m", "tests.exactness.submitters", store.url]
        self._process = subprocess.Popen(
            [*command, str(count), str(cap), policy, str(keys)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, command: str) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0


class Worker:
    """Runs what it gets for a moment, and stops what it is asked to stop."""

    def __init__(self, store: Store, longest: float = 0.02, room: int = 50) -> None:
        self._store = store
        self._room = room
        self._longest = longest
        self._dice = random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ended = Counter[str]()
        self.error: BaseException | None = None

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Work until nothing is left."""
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "jobs are left that never start or end"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        registration = self._store.register(
            NewWorker("w", "w", tasks=("task",), concurrency=50, lease=1e6)
        )
        bell = self._store.bell("work")
        state, running = ClaimState(), dict[int, float]()
        told = frozenset[int]()
        quiet = 0
        while not self._stop.is_set() or quiet < 3:
            now = time.monotonic()
            finishes = [Finish(token, "cancelled") for token in told & set(running)]
            finishes += [
                Finish(token, "succeeded")
                for token, ends in running.items()
                if ends <= now and token not in told
            ]
            claim = Claim(self._room - len(running), frozenset(("task",)), state)
            got = self._store.exchange(Exchange("w", finishes, claim=claim))
            for finish in finishes:
                del running[finish.token]
                self.ended[finish.outcome] += 1
            for claimed in got.claimed:
                running[claimed.token] = now + self._dice.uniform(0, self._longest)
            told = frozenset(token for token, _ in got.cancels)
            unfinished = frozenset(("scheduled", "ready", "running"))
            if self._stop.is_set():
                left = self._store.count(JobFilter(states=unfinished, task="task"), limit=1)
                quiet = 0 if running or left else quiet + 1
            bell.wait(0.002)
        bell.close()
        self._store.unregister("w")
        for fd in registration.fds:
            os.close(fd)


def alive(store: Any) -> tuple[Counter[str], Counter[str]]:
    """By group, in one look: the jobs that are not over, and those of them that run."""
    sql = _ALIVE if "postgres" in store.url else _ALIVE.replace("headgate.", "")
    total, running = Counter[str](), Counter[str]()
    with store._read() as tx:
        for row in tx.rows(sql):
            ((group, *_),) = json.loads(row["caps"])
            total[group] += 1
            running[group] += bool(row["running"])
    return total, running


@contextmanager
def submitting(
    store: Store, count: int, cap: int, policy: str = "reject", keys: int = 1
) -> Iterator[Submitters]:
    submitters = Submitters(store, count, cap, policy, keys)
    try:
        yield submitters
    finally:
        submitters.close()


def test_of_32_processes_five_get_in(store: Store) -> None:
    with submitting(store, 32, 5) as submitters:
        done = submitters.tell("once")
    assert (done["accepted"], done["refused"]) == (5, 27)
    assert alive(store)[0] == {group_of(0): 5}
    assert sum(event.data["count"] for event in store.events("cap_refused")) == 27
    with Worker(store):
        pass


def test_a_cap_that_is_lowered_and_raised_under_submits(store: Store) -> None:
    def watch(most: int) -> int:
        """Never more than that; the highest that was seen."""
        seen, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until or (seen < most and time.monotonic() < until + PATIENCE):
            count = alive(store)[0][group_of(0)]
            assert count <= most
            seen = max(seen, count)
        return seen

    with Worker(store), submitting(store, 6, 5) as submitters:
        submitters.tell("go")
        assert watch(5) == 5
        for _ in range(3 if FULL else 1):
            submitters.tell("cap 3")
            # From now on nobody gets in before those above the cap are gone.
            before = alive(store)[0][group_of(0)]
            deadline = time.monotonic() + PATIENCE
            while before > 3:
                count = alive(store)[0][group_of(0)]
                assert count <= before
                assert time.monotonic() < deadline
                before = count
            assert watch(3) == 3
            submitters.tell("cap 5")
            assert watch(5) == 5
        done = submitters.tell("stop")
    print(done)
    assert done["accepted"] > 5


@pytest.mark.parametrize("policy", ["reject", "skip", "replace", "cancel_running"])
def test_each_policy_with_submitters_killed_in_the_middle(store: Store, policy: str) -> None:
    cap = 2
    # Fewer than may be submitted run, so that some wait; long enough to be asked to stop.
    longest, room = (0.3, 50) if policy == "cancel_running" else (0.02, 3)

    def shown() -> bool:
        if policy == "replace":
            return bool(store.events("cap_replaced", limit=1))
        if policy == "cancel_running":
            return worker.ended["cancelled"] > 0 and bool(store.events("cap_cancelled", limit=1))
        return True

    with (
        Worker(store, longest, room) as worker,
        submitting(store, 4, cap, policy, keys=3) as submitters,
    ):
        submitters.tell("go")
        begun, looks, kills = time.monotonic(), 0, 0
        while time.monotonic() < begun + SECONDS or not shown():
            assert time.monotonic() < begun + SECONDS + PATIENCE
            if time.monotonic() > begun + 0.2 * kills:
                submitters.tell("kill")
                kills += 1
            looks += 1
            total, running = alive(store)
            # One successor waits, above the cap, for the end of what runs.
            successors = 1 if policy == "cancel_running" else 0
            assert all(count <= cap + successors for count in total.values()), total
            assert all(count <= cap for count in running.values()), running
        done = submitters.tell("stop")
    print(policy, done, dict(worker.ended), f"{looks} looks")
    assert done["killed"] > 1
    assert done["accepted"] > cap
