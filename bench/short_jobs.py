"""Short jobs under a small limit: how much of what the limit allows is used, and is it kept.

Jobs of 5 ms, two workers with room for 50 each, a limit of 10: at best 2,000 a second.
"""

from __future__ import annotations

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


def measure(place: Place, kinds: list[tuple[NewJob, int]], loop: str) -> list[Span]:
    with place.store("short") as url:
        total = fill(url, kinds)
        options = ("--concurrency", "50", "--loop", loop)
        with workers(place.folder, url, *options, count=2, held=True) as fleet:
            fleet.go()
            fleet.wait(lambda: fleet.traces.count(0) >= total, "all jobs have run", 0.05)
            return fleet.traces.spans()


def run(place: Place) -> dict[str, float]:
    jobs = place.sized(30_000, 300)
    lane = [(app.tasks["brief"].call(SECONDS).new_job(), jobs)]
    threads = [(app.tasks["brief_in_thread"].call(SECONDS).new_job(), jobs)]
    tenants = [
        (app.tasks["brief_of"].call(i, SECONDS).new_job(), jobs // TENANTS) for i in range(TENANTS)
    ]
    found: dict[str, float] = {}
    rows: list[list[str]] = []
    told: list[str] = []
    for name, kinds, loop in (
        ("one lane", lane, "auto"),
        ("one lane, asyncio", lane, "asyncio"),
        ("one lane, in threads", threads, "auto"),
        (f"{TENANTS} tenants", tenants, "auto"),
        (f"{TENANTS} tenants, asyncio", tenants, "asyncio"),
    ):
        spans = measure(place, kinds, loop)
        # While everybody still has jobs waiting, and all workers are there.
        steady = spans[len(spans) // 10 : len(spans) * 8 // 10]
        reached = len(steady) / (steady[-1].began - steady[0].began)
        took = sum(span.ended - span.began for span in steady) / len(steady)
        most = most_at_once(spans)
        found |= {name: reached / IDEAL, f"{name}, at once": most}
        rows.append([
            name, ratio(reached / IDEAL), ratio(reached * took / LIMIT), rate(reached),
            f"{took * 1e3:.2f} ms", str(most),
        ])  # fmt: skip
        if kinds is tenants:
            parts = shares(steady)
            found |= {"least share": min(parts.values()), "greatest share": max(parts.values())}
            told.append(
                "shares: " + ", ".join(f"{part:.1%}" for part in parts.values())
                + f" (an equal one is {1 / TENANTS:.0%})"
            )  # fmt: skip
    show(
        [f"{SECONDS * 1e3:.0f} ms jobs, limit {LIMIT}", f"of {IDEAL:,.0f}/s", "slots in use",
         "jobs/s", "a job took", "most at once"],
        rows,
    )  # fmt: skip
    print("\n".join(told), flush=True)
    return found
