"""From submit to start with idle workers, from a release to the next start, and what idling
costs."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Sequence

from bench.fleet import Fleet, cpu_seconds, family, workers
from bench.place import Place
from bench.table import ms, show
from bench.tasks import app
from bench.trace import now
from headgate.stores.protocol import SlotRequest

WARM = 20
POINTS = (50, 95, 99)


def run(place: Place) -> dict[str, float]:
    samples, idle = place.sized(1000, 20), 30.0 * min(1.0, place.scale)
    measured: dict[str, Sequence[float]] = {}
    with place.store("pickup") as url:
        with workers(place.folder, url, count=2) as fleet:
            measured["submit to start, idle workers"] = submitted(fleet, samples)
            measured["release to the next start"] = released(fleet, max(20, samples // 4))
            cpu = idling(fleet, idle)
        with workers(place.folder, url, "--loop", "asyncio", count=2) as fleet:
            measured["submit to start, idle workers, asyncio"] = submitted(fleet, samples)
        with workers(place.folder, url, count=2) as fleet:
            measured["end of a 1 ms job to the next, limit 1"] = handed_over(fleet, samples)
    cuts = {name: statistics.quantiles(times, n=100) for name, times in measured.items()}
    show(
        ["", "p50", "p95", "p99", "samples"],
        [
            [name, *(ms(cut[p - 1]) for p in POINTS), str(len(measured[name]))]
            for name, cut in cuts.items()
        ],
    )
    print(f"idle: two workers with keepers and guards use {cpu:.2%} of a core over {idle:.0f} s")
    found = {f"{name}, p{p}": cut[p - 1] * 1e3 for name, cut in cuts.items() for p in POINTS}
    return {**found, "idle": cpu}


def submitted(fleet: Fleet, samples: int) -> Sequence[float]:
    for i in range(WARM + samples):
        fleet.store.submit([app.tasks["stamp"].call(now()).new_job()])
        if i < WARM:
            fleet.wait(lambda i=i: fleet.traces.count(0) > i, "it has started", 0.001)
        time.sleep(0.005 + 0.001 * (i % 5))
    fleet.wait(lambda: fleet.traces.count(0) >= WARM + samples, "all have started")
    return [span.ended - span.began for span in fleet.traces.spans()[WARM:]]


def released(fleet: Fleet, samples: int) -> Sequence[float]:
    """A slot held by hand keeps a job waiting; when it is dropped, the job starts."""
    store, times = fleet.store, list[float]()
    for i in range(samples):
        seen = fleet.traces.count(0)
        slot = None
        while slot is None:
            slot = store.take_slot(SlotRequest("one_by_one", f"bench-{i}", "bench", 60.0))
        store.submit([app.tasks["one_by_one"].call(0.0).new_job()])
        time.sleep(0.02 + 0.001 * (i % 7))  # the workers find it full and go to sleep
        dropped = now()
        store.drop_slot(slot.group, slot.slot, slot.token)
        fleet.wait(lambda n=seen: fleet.traces.count(0) > n, "the next has started", 0.001)
        times.append(fleet.traces.spans()[-1].began - dropped)
    return times


def handed_over(fleet: Fleet, samples: int) -> Sequence[float]:
    """Many jobs under a limit of 1: the time between them."""
    fleet.store.submit([app.tasks["one_by_one"].call(0.001).new_job() for _ in range(samples)])
    fleet.wait(lambda: fleet.traces.count(0) >= samples, "all have run")
    spans = fleet.traces.spans()
    return [after.began - before.ended for before, after in itertools.pairwise(spans)]


def idling(fleet: Fleet, seconds: float) -> float:
    time.sleep(min(2.0, seconds))
    mine = [pid for process in fleet.processes for pid in family(process.pid)]
    assert os.getpid() not in mine
    before = cpu_seconds(mine)
    time.sleep(seconds)
    return (cpu_seconds(mine) - before) / seconds
