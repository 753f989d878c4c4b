"""Short jobs under a small limit: how much of what the limit allows is used, and is it kept.

Jobs of 5 ms, two workers with room for 50 each, a limit of 10: at best 2,000 a second. A machine
on which 5 ms of sleep take longer has less to give: that is measured too, in turn with the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.bare import sleeping
from bench.fill import fill
from bench.fleet import workers
from bench.place import Place
from bench.table import rate, ratio, show
from bench.tasks import app
from bench.trace import Span, most_at_once, shares
from headgate.jobs import NewJob

SECONDS = 0.005
LIMIT = 10
TENANTS = 10
IDEAL = LIMIT / SECONDS
ROUNDS = 3
BARE = "sleeping, without a queue"


def measure(place: Place, kinds: list[tuple[NewJob, int]], loop: str) -> list[Span]:
    with place.store("short") as url:
        total = fill(url, kinds)
        options = ("--concurrency", "50", "--loop", loop)
        with workers(place.folder, url, *options, count=2, held=True) as fleet:
            fleet.go()
            fleet.wait(lambda: fleet.traces.count(0) >= total, "all jobs have run", 0.05)
            return fleet.traces.spans()


def bare(place: Place, jobs: int) -> list[Span]:
    """What the machine makes of as many sleeps, as many at once, without a queue: timers are late,
    and others use its processors."""
    return sleeping(place.folder, jobs, SECONDS, LIMIT).spans()


@dataclass
class Case:
    name: str
    measure: Callable[[], list[Span]]
    rates: list[float] = field(default_factory=list[float])
    took: list[float] = field(default_factory=list[float])
    most: int = 0
    shares: dict[int, float] = field(default_factory=dict[int, float])

    def round(self) -> None:
        spans = self.measure()
        # While everybody still has jobs waiting, and all workers are there.
        steady = spans[len(spans) // 10 : len(spans) * 8 // 10]
        self.rates.append(len(steady) / (steady[-1].began - steady[0].began))
        self.took.append(sum(span.ended - span.began for span in steady) / len(steady))
        self.most = max(self.most, most_at_once(spans))
        self.shares = shares(steady)


def run(place: Place) -> dict[str, float]:
    jobs = place.sized(10_000, 300)
    lane = [(app.tasks["brief"].call(SECONDS).new_job(), jobs)]
    threads = [(app.tasks["brief_in_thread"].call(SECONDS).new_job(), jobs)]
    tenants = [
        (app.tasks["brief_of"].call(i, SECONDS).new_job(), jobs // TENANTS) for i in range(TENANTS)
    ]
    control = Case(BARE, partial(bare, place, jobs))
    cases = [
        control,
        Case("one lane", partial(measure, place, lane, "auto")),
        Case("one lane, asyncio", partial(measure, place, lane, "asyncio")),
        Case("one lane, in threads", partial(measure, place, threads, "auto")),
        Case(f"{TENANTS} tenants", partial(measure, place, tenants, "auto")),
        Case(f"{TENANTS} tenants, asyncio", partial(measure, place, tenants, "asyncio")),
    ]
    if not place.full:
        cases = [case for case in cases if not case.name.endswith(", asyncio")]
    for _ in range(ROUNDS if place.full else 1):
        for case in cases:
            case.round()
    found: dict[str, float] = {}
    rows: list[list[str]] = []
    for case in cases:
        reached, took = statistics.median(case.rates), statistics.median(case.took)
        part = statistics.median(
            mine / base for mine, base in zip(case.rates, control.rates, strict=True)
        )
        found |= {case.name: reached / IDEAL, f"{case.name}, at once": case.most}
        rows.append([
            case.name, ratio(reached / IDEAL), ratio(part), ratio(reached * took / LIMIT),
            rate(reached), f"{took * 1e3:.2f} ms", str(case.most),
        ])  # fmt: skip
    show(
        [f"{SECONDS * 1e3:.0f} ms jobs, limit {LIMIT}", f"of {IDEAL:,.0f}/s", "of the first",
         "slots in use", "jobs/s", "a job took", "most at once"],
        rows,
    )  # fmt: skip
    for case in cases:
        if len(case.shares) > 1:
            parts = case.shares.values()
            found |= {"least share": min(parts), "greatest share": max(parts)}
            print(
                f"{case.name}, shares: {', '.join(f'{part:.1%}' for part in parts)}"
                f" (an equal one is {1 / TENANTS:.0%})",
                flush=True,
            )
    return found
