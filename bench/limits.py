"""What limits cost: the same jobs without, with a limit on all, on one task of a hundred, and
under a high one with many workers.

Each round is a store of its own; the rounds of what is compared take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.fill import fill
from bench.fleet import workers
from bench.ledger import Ledger, ledger
from bench.place import Place
from bench.table import rate, ratio, show
from bench.tasks import LIMITED, MANY, PLAIN, app
from headgate.jobs import NewJob

ROUNDS = 3


@dataclass
class Case:
    name: str
    jobs: list[tuple[NewJob, int]]
    counters: tuple[int, ...]
    """Of which jobs the rate is asked for."""
    processes: int
    concurrency: int = 100
    only: str = ""
    """How the names of the tasks begin whose rate is asked for."""
    cpu: list[float] = field(default_factory=list[float])
    """Of the workers, seconds for each job."""
    rates: list[float] = field(default_factory=list[float])
    costs: list[Ledger] = field(default_factory=list[Ledger])

    def round(self, place: Place) -> None:
        with place.store("limits") as url:
            total = fill(url, self.jobs)
            before = ledger(url) if place.server is not None else None
            options = ("--processes", str(self.processes), "--concurrency", str(self.concurrency))
            with workers(place.folder, url, *options, held=True) as fleet:
                used = fleet.cpu_seconds()
                fleet.go()
                wanted = sum(n for job, n in self.jobs if self.counters[0] == kind_of(job.task))
                if len(self.counters) > 1:
                    wanted = total
                self.rates.append(fleet.drained(self.counters, wanted, self.only))
                fleet.wait(lambda: sum(fleet.traces.counts()) >= total, "all have run")
                self.cpu.append((fleet.cpu_seconds() - used) / total)
            if before is not None:
                self.costs.append(ledger(url).since(before, total))

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def kind_of(task: str) -> int:
    return PLAIN if task == "nothing" or task.startswith("open-") else LIMITED


def of(task: str, jobs: int) -> list[tuple[NewJob, int]]:
    return [(app.tasks[task].call().new_job(), jobs)]


def hundred(jobs: int, last: str) -> list[tuple[NewJob, int]]:
    """Jobs of a hundred tasks: 99 without limits, and this one."""
    names = [*(f"open-{i:02}" for i in range(1, MANY)), last]
    return [(app.tasks[name].call().new_job(), max(1, jobs // MANY)) for name in names]


def compare(place: Place, cases: Sequence[Case], rounds: int = ROUNDS) -> dict[str, float]:
    """Rounds in turn; a table; each case's rate as a ratio to the first's."""
    for _ in range(rounds if place.full else 1):
        for case in cases:
            case.round(place)
    base = cases[0].rate
    titles = ["jobs that do nothing", "ratio", "jobs/s", "from", "to", "worker CPU/job"]
    if place.server is not None:
        titles += [f"{title}/job" for title in Ledger.titles()]
    rows: list[list[str]] = []
    for case in cases:
        row = [case.name, ratio(case.rate / base), rate(case.rate)]
        row += [rate(min(case.rates)), rate(max(case.rates))]
        row += [f"{statistics.median(case.cpu) * 1e6:.0f} µs"]
        if case.costs:
            middle = sorted(zip(case.rates, case.costs, strict=True), key=lambda pair: pair[0])
            row += middle[len(middle) // 2][1].cells()
        rows.append(row)
    show(titles, rows)
    return {case.name: case.rate / base for case in cases}


def baseline(place: Place) -> dict[str, float]:
    jobs = place.sized(60_000, 200)
    return compare(place, [
        Case("no limit, 1 worker process", of("nothing", jobs), (PLAIN,), 1),
        Case("no limit, 4 worker processes", of("nothing", jobs), (PLAIN,), 4),
    ])  # fmt: skip


def enabled(place: Place) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for processes in (1, 4):
        jobs = place.sized(60_000, 200)
        which = f"{processes} worker process{'es' if processes > 1 else ''}"
        ratios |= compare(place, [
            Case(f"no limit, {which}", of("nothing", jobs), (PLAIN,), processes),
            Case(f"limit 10 on all, {which}", of("limited", jobs), (LIMITED,), processes),
        ])  # fmt: skip
    return ratios


def mixed(place: Place) -> dict[str, float]:
    """What the same 99 tasks reach, whose jobs are counted in both cases, with as many of one
    more task beside them: that one without a limit, or with."""
    ratios: dict[str, float] = {}
    for processes in (1, 4):
        # So many that the time in which each process learns how long a hundred tasks take is a
        # small part.
        jobs = place.sized(60_000 * processes, 400)
        which = f"{processes} worker process{'es' if processes > 1 else ''}"
        ratios |= compare(place, [
            Case(f"99 unlimited tasks beside another, {which}",
                 hundred(jobs, "beside"), (PLAIN,), processes, only="open-"),
            Case(f"the same 99 beside one of limit 10, {which}",
                 hundred(jobs, "narrow"), (PLAIN,), processes, only="open-"),
        ], rounds=5)  # fmt: skip
    return ratios


def high(place: Place) -> dict[str, float]:
    jobs = place.sized(100_000, 500)
    return compare(place, [
        Case("no limit, 8 worker processes", of("nothing", jobs), (PLAIN,), 8),
        Case("limit 500 on all, 8 worker processes", of("wide", jobs), (LIMITED,), 8),
    ])  # fmt: skip
