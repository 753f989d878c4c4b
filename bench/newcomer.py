"""How long a newcomer waits while a hot tenant keeps all workers busy.

The same workers, once with a hot tenant of 1,000,000 jobs in line, once with one of 100; the
rounds take turns. Two workers with room for 10 each, jobs of 20 ms.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

from bench.fill import fill
from bench.fleet import Fleet, workers
from bench.place import Place
from bench.table import ms, ratio, show
from bench.tasks import PLAIN, app
from bench.trace import now
from headgate.jobs import NewJob

SECONDS = 0.02
FEW = 100


def hot(tenant: str = "hot") -> NewJob:
    return app.tasks["busy"].call(tenant, SECONDS).new_job()


def arrive(fleet: Fleet, tenant: str) -> None:
    """A newcomer submits one job, and it starts."""
    seen = fleet.traces.count(0)
    fleet.store.submit([app.tasks["busy"].call(tenant, 0.0, now()).new_job()])
    fleet.wait(lambda: fleet.traces.count(0) > seen, "the newcomer has started", 0.002)


def run(place: Place) -> dict[str, float]:
    many = place.sized(1_000_000, 2000)
    samples = place.sized(60, 3)
    rounds = 3 if place.full else 1
    names = (f"hot tenant with {many:,} jobs", f"hot tenant with {FEW} jobs")
    delays: dict[str, list[float]] = {name: [] for name in names}
    tenants = (f"new-{i}" for i in itertools.count())

    def sample(url: str, name: str, before: Callable[[Fleet], None]) -> None:
        with workers(place.folder, url, "--concurrency", "10", count=2) as fleet:
            fleet.wait(lambda: name != names[0] or fleet.traces.count(PLAIN) > 100, "all are busy")
            for i in range(samples):
                before(fleet)
                arrive(fleet, next(tenants))
                time.sleep(0.003 * (i % 7))  # not in step with the ends of the hot jobs
            delays[name] += [span.ended - span.began for span in fleet.traces.spans()]

    def saturate(fleet: Fleet) -> None:
        """A hundred jobs, of which some are running by now."""
        ran = fleet.traces.count(PLAIN)
        fleet.store.submit([hot() for _ in range(FEW)])
        fleet.wait(lambda: fleet.traces.count(PLAIN) >= ran + 20, "all are busy", 0.001)

    def settle(fleet: Fleet) -> None:
        ran = fleet.traces.count(PLAIN)
        if ran % FEW:
            wanted = ran + FEW - ran % FEW
            fleet.wait(lambda: fleet.traces.count(PLAIN) >= wanted, "the hundred are done", 0.002)
        saturate(fleet)

    with place.store("many") as crowded, place.store("few") as quiet:
        fill(crowded, [(hot(), many)])
        for _ in range(rounds):
            sample(crowded, names[0], lambda fleet: None)
            sample(quiet, names[1], settle)
    base = statistics.median(delays[names[1]])
    rows = [
        [name, ratio(statistics.median(delays[name]) / base), ms(statistics.median(delays[name])),
         ms(statistics.quantiles(delays[name], n=20)[18]), str(len(delays[name]))]
        for name in names
    ]  # fmt: skip
    show(["a newcomer waits behind a", "ratio", "p50", "p95", "samples"], rows)
    return {"ratio": statistics.median(delays[names[0]]) / base}
