"""What a claim costs in a bucket, by how much waits and for how many keys; and how large the ledger
gets. The bucket is in memory here: what is measured is the work, not the way."""

from __future__ import annotations

import json
import statistics
import tempfile
import time

from bench.place import Place
from bench.table import ms, ratio, show
from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects

CLAIMS, ROOM = 60, 25
LEDGER = "all/ledger.json"


def measure(waiting: int, keys: int) -> tuple[float, int, int]:
    """Median seconds of a claim and its giving back, the largest ledger on the way, and what all
    the other objects hold."""
    objects = MemoryObjects()
    with tempfile.TemporaryDirectory() as folder:
        store = BucketStore(f"s3://bench/all?cache={folder}", objects=objects)
        store.publish(Publication("bench", code={"tenant": 2}))
        largest = 0

        def look() -> None:
            nonlocal largest
            largest = max(largest, len(objects.held[LEDGER][0]))

        for start in range(0, waiting, 1000):
            store.submit(
                [
                    NewJob(
                        "task",
                        json.dumps({"n": n}),
                        needs=Needs((Need("tenant", str(n % keys)),)),
                        turn=str(n % keys),
                        fair_limit="tenant",
                    )
                    for n in range(start, min(waiting, start + 1000))
                ]
            )
            look()
        store.register(NewWorker("w", "w", tasks=("task",), concurrency=100, lease=1e6))
        state, times = ClaimState(), list[float]()
        for _ in range(CLAIMS):
            began = time.thread_time()
            claim = Claim(ROOM, frozenset(("task",)), state)
            got = store.exchange(Exchange("w", claim=claim))
            store.exchange(Exchange("w", [Finish(c.token, "returned") for c in got.claimed]))
            times.append(time.thread_time() - began)
            look()
        store.close()
    stored = sum(len(one[0]) for key, one in objects.held.items() if key != LEDGER)
    return statistics.median(times[10:]), largest, stored


def run(place: Place) -> dict[str, float]:
    few, many = place.sized(1000, 200), place.sized(100_000, 2000)
    cases = {
        f"{few:,} waiting, 100 keys": (few, 100),
        f"{many:,} waiting, 100 keys": (many, 100),
        f"{many:,} waiting, {many // 10:,} keys": (many, many // 10),
    }
    found = {name: measure(*case) for name, case in cases.items()}
    base = next(iter(found.values()))[0]
    show(
        [f"claim of {ROOM} and its return", "ratio", "processor", "largest ledger", "the rest"],
        [
            [name, ratio(took / base), ms(took), f"{largest / 1e3:,.0f} kB", f"{rest / 1e6:.1f} MB"]
            for name, (took, largest, rest) in found.items()
        ],
    )
    return {name: took / base for name, (took, _, _) in found.items()} | {
        "largest ledger": max(largest for _, largest, _ in found.values())
    }
