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


def run(place: Place) -> dict[str, float]:
    samples, idle = place.sized(1000, 20), 30.0 * min(1.0, place.scale)
    rows: list[list[str]] = []
    found: dict[str, float] = {}
    with place.store("pickup") as url:
        with workers(place.folder, url, count=2) as fleet:
            for name, times in (
                ("submit to start, idle workers", submitted(fleet, samples)),
                ("release to the next start", released(fleet, max(20, samples // 4))),
            ):
                cuts = statistics.quantiles(times, n=100)
                rows.append([name, *(ms(cuts[i]) for i in (49, 94, 98)), str(len(times))])
                found |= {f"{name}, p{p}": cuts[p - 1] * 1e3 for p in (50, 95, 99)}
            cpu = idling(fleet, idle)
        with workers(place.folder, url, count=2) as fleet:
            gaps = handed_over(fleet, samples)
            cuts = statistics.quantiles(gaps, n=100)
            name = "end of a 1 ms job to the next, limit 1"
            rows.append([name, *(ms(cuts[i]) for i in (49, 94, 98)), str(len(gaps))])
            found |= {f"{name}, p{p}": cuts[p - 1] * 1e3 for p in (50, 95, 99)}
    show(["", "p50", "p95", "p99", "samples"], rows)
    print(f"idle: two workers with keepers and guards use {cpu:.2%} of a core over {idle:.0f} s")
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
