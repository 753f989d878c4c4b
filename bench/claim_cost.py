"""What one claim costs, and that it does not grow with what waits.

Each case is a store of its own. The cases take turns, exchange by exchange, so that noise on
the machine falls on all of them alike; what counts is the ratio to the first.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headgate.claim import ClaimState
from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication, Store

ROOM = 25
ROUNDS = 200


@dataclass
class Case:
    name: str
    fill: Callable[[Store], None]
    store: Store | None = None
    refill: bool = False
    """Keep the number that waits: what a claim takes is submitted again, untimed."""
    fds: tuple[int, ...] = ()
    state: ClaimState = field(default_factory=ClaimState)
    finishes: list[Finish] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def open(self, folder: Path) -> None:
        self.store = open_store(f"sqlite:///{folder}/{self.name.replace(' ', '-')}.db")
        limits = {"tenant": 2, "shared": 10, "blocked": 1}
        self.store.publish(Publication("bench", code=limits))
        self.fill(self.store)
        self.fds = self.store.register(NewWorker("w", "w", pid=os.getpid())).fds

    def step(self) -> int:
        assert self.store is not None
        claim = Claim(ROOM, frozenset(("task", "other")), self.state)
        began = time.perf_counter()
        got = self.store.exchange(Exchange("w", self.finishes, claim=claim))
        self.times.append(time.perf_counter() - began)
        if self.refill:
            self.store.submit([NewJob("task") for _ in got.claimed])
        self.finishes = [Finish(c.token, "succeeded", result="null") for c in got.claimed]
        return len(got.claimed)

    def close(self) -> None:
        assert self.store is not None
        for fd in self.fds:
            os.close(fd)
        self.store.close()


def submit(store: Store, count: int, make: Callable[[int], NewJob]) -> None:
    for begin in range(0, count, 1000):
        store.submit([make(i) for i in range(begin, min(begin + 1000, count))])


def plain(count: int) -> Callable[[Store], None]:
    return lambda store: submit(store, count, lambda _: NewJob("task"))


def keyed(jobs: int, keys: int) -> Callable[[Store], None]:
    def job(i: int) -> NewJob:
        key = f"t{i % keys:06d}"
        needs = Needs((Need("tenant", key),))
        return NewJob("task", needs=needs, turn=key, fair_limit="tenant")

    return lambda store: submit(store, jobs, job)


def unknown_in_front(jobs: int) -> Callable[[Store], None]:
    def fill(store: Store) -> None:
        submit(store, jobs, lambda _: NewJob("a task that nobody knows"))
        submit(store, 10_000, lambda _: NewJob("task"))

    return fill


def blocked_key_in_front(jobs: int) -> Callable[[Store], None]:
    def fill(store: Store) -> None:
        hot = Needs((Need("tenant", "hot"),))
        submit(store, jobs, lambda _: NewJob("task", needs=hot, turn="hot", fair_limit="tenant"))
        keyed(10_000, 100)(store)

    return fill


def cases(scale: int) -> list[list[Case]]:
    million = 1_000_000 // scale
    return [
        [
            Case("1,000 waiting", plain(1000), refill=True),
            Case("100,000 waiting", plain(100_000 // scale)),
            Case("1,000,000 waiting", plain(million)),
            Case("1,000,000 of an unknown task in front", unknown_in_front(million)),
        ],
        [
            Case("100 keys", keyed(10_000, 100)),
            Case("100,000 keys", keyed(200_000 // scale, 100_000 // scale)),
            Case("1,000,000 of a blocked key in front", blocked_key_in_front(million)),
        ],
    ]


def run(folder: Path, scale: int = 1) -> dict[str, float]:
    """Prints a table; returns each case's cost as a ratio to the first of its table."""
    ratios: dict[str, float] = {}
    for table in cases(scale):
        for case in table:
            case.open(folder)
        for _ in range(10):
            for case in table:
                case.step()
        for case in table:
            case.times.clear()
        jobs = {case.name: 0 for case in table}
        for _ in range(ROUNDS):
            for case in table:
                jobs[case.name] += case.step()
        base = statistics.median(table[0].times)
        print(f"\n{'claim of ' + str(ROOM):45} {'median':>9} {'per job':>9} {'ratio':>6}")
        for case in table:
            median = statistics.median(case.times)
            ratios[case.name] = median / base
            each = sum(case.times) / max(1, jobs[case.name])
            print(
                f"{case.name:45} {median * 1e3:6.2f} ms {each * 1e6:6.0f} µs"
                f" {ratios[case.name]:6.2f}"
            )
            case.close()
    return ratios
