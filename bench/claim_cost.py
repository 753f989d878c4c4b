"""What one claim costs, and that it does not grow with what waits.

Each case is a store of its own. The cases take turns, exchange by exchange, so that noise on
the machine falls on all of them alike; what counts is the ratio to the first of a table.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.fill import Kinds, fill
from bench.place import Place
from bench.table import ms, ratio, show
from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication, SlotRequest, Store
from headgate.turns import ClaimState

ROOM = 25
ROUNDS = 200
WARM = 10
LIMITS = {"tenant": 2, "shared": 10, "region": 2}
KNOWN = frozenset(("task", "other"))


@dataclass
class Case:
    name: str
    kinds: Kinds
    full: tuple[str, ...] = ()
    """Groups of which every unit is held by somebody else, for good."""
    refill: bool = False
    """Keep the number that waits: what a claim takes is submitted again, untimed."""
    store: Store | None = None
    fds: tuple[int, ...] = ()
    state: ClaimState = field(default_factory=ClaimState)
    finishes: list[Finish] = field(default_factory=list[Finish])
    times: list[float] = field(default_factory=list[float])
    jobs: int = 0

    def open(self, url: str) -> None:
        store = self.store = open_store(url)
        store.publish(Publication("bench", code=LIMITS))
        fill(url, self.kinds)
        for group in self.full:
            for i in range(LIMITS[group.partition("/")[0]]):
                taken = store.take_slot(SlotRequest(group, f"holder-{i}", "bench", 3600.0))
                assert taken is not None
        self.fds = store.register(NewWorker("w", "w", pid=os.getpid(), lease=3600.0)).fds

    def step(self) -> None:
        assert self.store is not None
        claim = Claim(ROOM, KNOWN, self.state)
        began = time.perf_counter()
        got = self.store.exchange(Exchange("w", self.finishes, claim=claim))
        self.times.append(time.perf_counter() - began)
        self.jobs += len(got.claimed)
        if self.refill:
            self.store.submit([NewJob("task") for _ in got.claimed])
        self.finishes = [Finish(c.token, "succeeded", result="null") for c in got.claimed]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        if self.store is not None:
            self.store.close()


def keyed(jobs: int, keys: int, task: str = "task", *more: Need) -> list[tuple[NewJob, int]]:
    return [
        (of_key(f"t{i:06}", task, *more), max(1, jobs // keys)) for i in range(max(1, keys))
    ]  # fmt: skip


def of_key(key: str, task: str = "task", *more: Need) -> NewJob:
    needs = Needs((Need("tenant", key), *more))
    return NewJob(task, needs=needs, turn=key, fair_limit="tenant")


def tables(sized: Callable[[int, int], int]) -> list[list[Case]]:
    few, million = sized(1000, 100), sized(1_000_000, 2000)
    some = sized(10_000, 1000)
    hot = Need("region", "hot")
    free = [
        (NewJob("other", needs=Needs((Need("tenant", f"z{i:03}"),)), turn=f"z{i:03}",
                fair_limit="tenant"), some // 100)
        for i in range(100)
    ]  # fmt: skip
    wide = [
        (NewJob("task", needs=Needs((Need("tenant", f"z{i:03}"), Need("region", f"c{i:03}"))),
                turn=f"z{i:03}", fair_limit="tenant"), some // 100)
        for i in range(100)
    ]  # fmt: skip
    return [
        [
            Case(f"{few:,} waiting", [(NewJob("task"), few)], refill=True),
            Case(f"{million:,} waiting", [(NewJob("task"), million)]),
            Case(f"{million:,} of an unknown task in front",
                 [(NewJob("a task that nobody knows"), million), (NewJob("task"), some)]),
        ],
        [
            Case("100 keys", keyed(some, 100)),
            Case(f"{million // 10:,} keys", keyed(million // 5, million // 10)),
            Case(f"{million:,} of a blocked key in front",
                 [(of_key("hot"), million), *keyed(some, 100)], full=("tenant/hot",)),
        ],
        [
            Case("100 free lanes", free),
            Case(f"… behind {million // 10:,} lanes under a full shared limit",
                 [*keyed(million // 10, million // 10, "task", Need("shared")), *free],
                 full=("shared",)),
        ],
        [
            Case("100 free lanes of two limits", wide),
            Case(f"… behind {million // 100:,} lanes crossed by a full key",
                 [*keyed(million // 100, million // 100, "task", hot), *wide],
                 full=("region/hot",)),
        ],
    ]  # fmt: skip


def run(place: Place) -> dict[str, float]:
    """Prints a table; returns each case's cost as a ratio to the first of its table."""
    ratios: dict[str, float] = {}
    rounds = place.sized(ROUNDS, 10)
    for table in tables(place.sized):
        with ExitStack() as stack:
            for case in table:
                case.open(stack.enter_context(place.store("claim")))
                stack.callback(case.close)
            for n in range(WARM + rounds):
                for case in table:
                    if n == WARM:
                        case.times.clear()
                        case.jobs = 0
                    case.step()
        base = statistics.median(table[0].times)
        rows: list[list[str]] = []
        for case in table:
            median = statistics.median(case.times)
            ratios[case.name] = median / base
            each = sum(case.times) / max(1, case.jobs)
            rows.append([
                case.name, ratio(median / base), ms(median),
                ms(statistics.quantiles(case.times, n=20)[18]), f"{case.jobs / rounds:.1f}",
                f"{each * 1e6:.0f} µs",
            ])  # fmt: skip
        show([f"finish and claim {ROOM}", "ratio", "p50", "p95", "jobs", "per job"], rows)
        print(flush=True)
    return ratios
