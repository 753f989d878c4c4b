"""What limits cost: the same jobs without, with a limit on all, on one task of a hundred, and
under a high one with many workers.

Each round is a store of its own; the rounds of what is compared take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from bench.fill import fill
from bench.fleet import Fleet, workers
from bench.ledger import Ledger, ledger
from bench.place import COUNTING, Place, serving
from bench.table import rate, ratio, show
from bench.tasks import LIMITED, MANY, PLAIN, app
from headgate.jobs import NewJob
from tests.postgres.server import system

ROUNDS = 3


@dataclass
class Case:
    name: str
    jobs: list[tuple[NewJob, int]]
    counter: int
    """Of which jobs the rate is asked for."""
    processes: int
    concurrency: int = 100
    cpu: list[float] = field(default_factory=list[float])
    """Of the workers, seconds for each job."""
    rates: list[float] = field(default_factory=list[float])
    costs: list[Ledger] = field(default_factory=list[Ledger])

    @contextmanager
    def at_work(self, place: Place) -> Generator[Fleet]:
        """A store full of these jobs, and workers that wait for their `go`. What it all cost is
        written down when every job has run."""
        with place.store("limits") as url:
            total = fill(url, self.jobs)
            before = ledger(url) if place.server is not None else None
            options = ("--processes", str(self.processes), "--concurrency", str(self.concurrency))
            with workers(place.folder, url, *options, held=True) as fleet:
                used = fleet.cpu_seconds()
                yield fleet
                fleet.wait(lambda: sum(fleet.traces.counts()) >= total, "all have run")
                self.cpu.append((fleet.cpu_seconds() - used) / total)
            if before is not None:
                self.costs.append(ledger(url).since(before, total))

    @property
    def counted(self) -> int:
        """How many jobs the rate is of."""
        return sum(n for job, n in self.jobs if self.counter == kind_of(job.task))

    def round(self, place: Place) -> None:
        with self.at_work(place) as fleet:
            fleet.go()
            self.rates.append(fleet.drained((self.counter,), self.counted))

    def forget_last(self) -> None:
        """The last round has no rate that means anything."""
        del self.cpu[-1:], self.costs[-1:]

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
    return tell(place, cases, {case.name: case.rate / cases[0].rate for case in cases})


def abreast(place: Place, first: Case, second: Case, rounds: int) -> dict[str, float]:
    """Both at the same time, each in a store of its own: what else the machine does is the same for
    both. Rates from when both are well under way until the first of them is nearly done; the
    ratio is the middle one of the rounds'."""
    cases = (first, second)
    if not place.full:  # so few jobs that one may be done before the other begins
        return compare(place, cases)
    again = rounds
    while len(first.rates) < rounds:
        with ExitStack() as stack:
            fleets: list[Fleet] = []
            for number, case in enumerate(cases):
                folder = place.folder / str(number)
                fleets.append(stack.enter_context(case.at_work(replace(place, folder=folder))))
            for fleet in fleets:
                fleet.go()
            measured = _measure(cases, fleets)
        if not measured:
            again -= 1
            if again < 0:
                raise RuntimeError(f"{first.name}: one is half done before the other begins")
            print("a round is made again: one was half done when the other began", flush=True)
            for case in cases:
                case.forget_last()
    ratios = [mine / base for mine, base in zip(second.rates, first.rates, strict=True)]
    print("ratio of each round:", " ".join(ratio(one) for one in sorted(ratios)), flush=True)
    return tell(place, cases, {first.name: 1.0, second.name: statistics.median(ratios)})


def _measure(cases: Sequence[Case], fleets: Sequence[Fleet]) -> bool:
    """False: they did not run side by side."""

    def counts() -> list[int]:
        return [fleet.traces.count(case.counter) for case, fleet in zip(cases, fleets, strict=True)]

    def part(share: float) -> list[bool]:
        return [n >= case.counted * share for n, case in zip(counts(), cases, strict=True)]

    watched = fleets[0]
    watched.wait(lambda: all(part(0.1)), "both are under way", 0.002)
    if any(part(0.5)):
        return False
    began, before = time.perf_counter(), counts()
    watched.wait(lambda: any(part(0.95)), "one of them is nearly done", 0.002)
    took, after = time.perf_counter() - began, counts()
    for case, n, was in zip(cases, after, before, strict=True):
        case.rates.append((n - was) / took)
    return True


def count_statements(place: Place, cases: Sequence[Case]) -> None:
    """Where the server does not count them: one more round of each on one that does. How many
    there are depends on the worker alone."""
    if not place.full or system() is None or any(cost.statements for cost in cases[0].costs):
        return
    with serving("system", COUNTING) as server:
        for case in cases:
            once = replace(case, cpu=[], rates=[], costs=[])
            once.round(replace(place, server=server))
            counted = once.costs[0].statements
            case.costs = [replace(cost, statements=counted) for cost in case.costs]


def tell(place: Place, cases: Sequence[Case], ratios: dict[str, float]) -> dict[str, float]:
    if place.server is not None:
        count_statements(place, cases)
    titles = ["jobs that do nothing", "ratio", "jobs/s", "from", "to", "worker CPU/job"]
    if place.server is not None:
        titles += [f"{title}/job" for title in Ledger.titles()]
    rows: list[list[str]] = []
    for case in cases:
        row = [case.name, ratio(ratios[case.name]), rate(case.rate)]
        row += [rate(min(case.rates)), rate(max(case.rates))]
        row += [f"{statistics.median(case.cpu) * 1e6:.0f} µs"]
        if case.costs:
            middle = sorted(zip(case.rates, case.costs, strict=True), key=lambda pair: pair[0])
            row += middle[len(middle) // 2][1].cells()
        rows.append(row)
    show(titles, rows)
    return ratios


def baseline(place: Place) -> dict[str, float]:
    jobs = place.sized(60_000, 200)
    return compare(place, [
        Case("no limit, 1 worker process", of("nothing", jobs), PLAIN, 1),
        Case("no limit, 4 worker processes", of("nothing", jobs), PLAIN, 4),
    ])  # fmt: skip


def enabled(place: Place) -> dict[str, float]:
    def cases(processes: int) -> tuple[Case, Case]:
        jobs = place.sized(60_000, 200)
        which = f"{processes} worker process{'es' if processes > 1 else ''}"
        return (
            Case(f"no limit, {which}", of("nothing", jobs), PLAIN, processes),
            Case(f"limit 10 on all, {which}", of("limited", jobs), LIMITED, processes),
        )

    # Eight processes side by side would tell who gets the processors first.
    return {**abreast(place, *cases(1), rounds=7), **compare(place, cases(4), rounds=5)}


def mixed(place: Place) -> dict[str, float]:
    """What the same 99 tasks reach, whose jobs are counted in both cases, with as many of one
    more task beside them: that one without a limit, or with."""
    ratios: dict[str, float] = {}
    for processes in (1, 4):
        # So many that the time in which each process learns how long a hundred tasks take is a
        # small part.
        jobs = place.sized(60_000 * processes, 400)
        which = f"{processes} worker process{'es' if processes > 1 else ''}"
        ratios |= abreast(
            place,
            Case(f"99 unlimited tasks beside another, {which}",
                 hundred(jobs, "beside"), PLAIN, processes),
            Case(f"the same 99 beside one of limit 10, {which}",
                 hundred(jobs, "narrow"), PLAIN, processes),
            rounds=7,
        )  # fmt: skip
    return ratios


def high(place: Place) -> dict[str, float]:
    jobs = place.sized(100_000, 500)
    return compare(place, [
        Case("no limit, 8 worker processes", of("nothing", jobs), PLAIN, 8),
        Case("limit 500 on all, 8 worker processes", of("wide", jobs), LIMITED, 8),
    ])  # fmt: skip
