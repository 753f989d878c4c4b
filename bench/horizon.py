"""A pinned horizon: how fast jobs run while another session keeps dead rows from going away.

A store without limits and one under a limit, full load on both throughout: first clean, then
pinned, then free again. Finished jobs are not kept, so that all tables are as small as they can be,
were they cleaned. Beside them, on the same server, a third that nobody pins: over a quarter of an
hour the machine itself becomes faster or slower, and what that one does meanwhile is what counts as
the clean rate. (A transaction keeps the dead rows of its own database only.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from psycopg import sql

from bench.fill import fill
from bench.fleet import Fleet, workers
from bench.place import Connection, Place, direct
from bench.table import rate, ratio, show
from bench.tasks import LIMITED, PLAIN, app
from headgate.jobs import NewJob
from headgate.limits import band_of, lane_of

Pinner = Callable[[Connection], None]
TASKS = {"no limit": "nothing", "limit 500": "wide"}
CONTROL = "not pinned"
BACKLOG = 20_000
CHUNK = 4000
WINDOW = 10.0
AFTER = 3
"""Windows in which the clean rate should be back."""
_stopped = threading.Event()


def idle_snapshot(connection: Connection) -> None:
    """Somebody began to read, and went for lunch."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT count(*) FROM pg_class")


def open_producer(connection: Connection) -> None:
    """A transaction that has submitted a job and does not end."""
    job = app.tasks["stamp"].call(0.0).new_job()
    connection.execute("BEGIN")
    insert(connection, job, 1)


def dump(connection: Connection) -> None:
    """As pg_dump does: one snapshot, and a lock on every table."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'headgate' ORDER BY 1"
    ).fetchall()
    for (name,) in tables:
        table = sql.Identifier("headgate", str(name))
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table))
    for (name,) in tables:
        table = sql.Identifier("headgate", str(name))
        connection.execute(sql.SQL("SELECT count(*) FROM {}").format(table))


PINNERS: dict[str, Pinner] = {
    "idle snapshot": idle_snapshot,
    "open producer": open_producer,
    "dump": dump,
}


def insert(connection: Connection, job: NewJob, count: int) -> None:
    """Submit the same job many times, at the least cost to the machine."""
    connection.execute(
        "WITH new AS (SELECT nextval('headgate.places') AS n FROM generate_series(1, %(count)s)),"
        " body AS (INSERT INTO headgate.jobs (n, id, task, queue, priority, band, turn, lane,"
        "  place, args, options, needs, created_at, max_lost)"
        # As jobs are named everywhere: by their time, so that new names stand side by side.
        "  SELECT n, (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')"
        "   || '70008' || lpad(to_hex(n), 15, '0'))::uuid,"
        "  %(task)s, %(queue)s, 0, %(band)s, '', %(lane)s, n,"
        "  %(args)s, %(options)s, %(needs)s, extract(epoch FROM clock_timestamp()), 3 FROM new)"
        " INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt,"
        "  since, gen) SELECT %(queue)s, 0, %(band)s, '', %(lane)s, n, n, 0,"
        "  extract(epoch FROM clock_timestamp()), (SELECT headgate.generation()) FROM new",
        {
            "count": count, "task": job.task, "queue": job.queue,
            "band": band_of(job.task, job.needs, job.fair_limit), "lane": lane_of(job.needs),
            "args": job.args, "options": job.options, "needs": job.needs.to_json(),
        },
    )  # fmt: skip


@contextmanager
def supplied(fleet: Fleet, job: NewJob, counter: int) -> Generator[None]:
    """Keep the backlog up, whatever the rate."""
    stop = threading.Event()
    troubles: list[Exception] = []

    def produce() -> None:
        sent = BACKLOG
        try:
            with direct(fleet.url) as connection:
                while not stop.is_set():
                    if sent - fleet.traces.count(counter) < BACKLOG:
                        insert(connection, job, CHUNK)
                        sent += CHUNK
                    else:
                        stop.wait(0.01)
        except Exception as error:
            troubles.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if troubles:
        raise troubles[0]


@dataclass(frozen=True, slots=True)
class Phase:
    """Rates, window by window."""

    rates: list[float]
    window: float

    @property
    def mean(self) -> float:
        return sum(self.rates) / len(self.rates)

    @property
    def minutes(self) -> list[float]:
        """The rate over every minute (over all of it, when it is shorter)."""
        n = min(len(self.rates), max(1, round(60 / self.window)))
        return [sum(self.rates[i : i + n]) / n for i in range(len(self.rates) - n + 1)]


@dataclass(frozen=True, slots=True)
class Course:
    clean: Phase
    pinned: Phase
    after: Phase

    @property
    def shares(self) -> Shares:
        """All of it as parts of the clean rate."""

        def parts(rates: list[float]) -> list[float]:
            return [one / self.clean.mean for one in rates]

        return Shares(
            self.pinned.mean / self.clean.mean,
            parts(self.pinned.minutes),
            parts(self.after.rates[:AFTER]),
        )

    def told(self) -> str:
        phases = {"clean": self.clean, "pinned": self.pinned, "after": self.after}
        return f"jobs/s every {self.clean.window:.0f} s; " + "; ".join(
            f"{name}: " + " ".join(f"{one:.0f}" for one in phase.rates)
            for name, phase in phases.items()
        )


@dataclass(frozen=True, slots=True)
class Shares:
    mean: float
    minutes: list[float]
    after: list[float]

    def beside(self, control: Shares) -> Shares:
        """As parts of what became of the control meanwhile."""

        def parts(mine: list[float], others: list[float]) -> list[float]:
            return [one / other for one, other in zip(mine, others, strict=True)]

        return Shares(
            self.mean / control.mean,
            parts(self.minutes, control.minutes),
            parts(self.after, control.after),
        )

    def cells(self) -> list[str]:
        return [
            ratio(self.mean), ratio(min(self.minutes)), " ".join(ratio(one) for one in self.after)
        ]  # fmt: skip


def measure(fleet: Fleet, counter: int, seconds: float, window: float) -> Phase:
    rates: list[float] = []
    count, began = fleet.traces.count(counter), time.perf_counter()
    for _ in range(max(1, round(seconds / window))):
        if _stopped.wait(window):
            raise RuntimeError("the benchmark was stopped")
        after, ended = fleet.traces.count(counter), time.perf_counter()
        rates.append((after - count) / (ended - began))
        count, began = after, ended
    return Phase(rates, window)


def case(place: Place, task: str, pin: Pinner | None, together: threading.Barrier) -> Course:
    pinned = place.minutes * 60
    around = min(60.0, max(pinned / 2, 1.0))
    window = min(WINDOW, around / 2)
    job = app.tasks[task].call().new_job()
    counter = PLAIN if task == "nothing" else LIMITED
    with place.store("horizon") as url:
        fill(url, [(job, BACKLOG)])
        options = ("--concurrency", "100")
        keep = {"HEADGATE_RETENTION_SUCCEEDED": "0"}
        with (
            workers(place.folder, url, *options, env=keep) as fleet,
            supplied(fleet, job, counter),
        ):
            fleet.wait(lambda: fleet.traces.count(counter) > 1000, "all are at work")
            together.wait()
            measure(fleet, counter, window, window)
            clean = measure(fleet, counter, around, window)
            with direct(url) as connection:
                if pin is not None:
                    pin(connection)
                together.wait()
                under = measure(fleet, counter, pinned, window)
            together.wait()
            course = Course(clean, under, measure(fleet, counter, around, window))
            together.wait()  # who is done first must not make room for the others
    return course


def side_by_side(place: Place, pin: Pinner) -> dict[str, Course]:
    """Without limits, under one, and the control, at the same time, each in a store of its own:
    what the machine does meanwhile is the same for all."""
    cases = {limit: (task, pin) for limit, task in TASKS.items()}
    cases |= {CONTROL: (TASKS["no limit"], None)}
    together = threading.Barrier(len(cases))

    def one(name: str, task: str, pin: Pinner | None) -> Course:
        folder = place.folder / name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        try:
            return case(replace(place, folder=folder), task, pin, together)
        except BaseException:
            stop()
            raise

    def stop() -> None:
        """The threads end, and what they have started with them."""
        _stopped.set()
        together.abort()

    with ThreadPoolExecutor(len(cases)) as threads:
        found = {name: threads.submit(one, name, *what) for name, what in cases.items()}
        try:
            return {name: future.result() for name, future in found.items()}
        except BaseException:  # this process is told to stop, too
            stop()
            raise


def run(place: Place) -> dict[str, float]:
    found: dict[str, float] = {}
    rows: list[list[str]] = []
    for kind in place.pinned_by or PINNERS:
        courses = side_by_side(place, PINNERS[kind])
        control = courses[CONTROL].shares
        for limit, course in courses.items():
            name = f"{kind}, {limit}"
            print(f"{name}: {course.told()}", flush=True)
            shares = course.shares.beside(control)
            rows.append([name, *shares.cells(), *course.shares.cells(), rate(course.clean.mean)])
            if limit != CONTROL:
                found |= {
                    name: shares.mean,
                    f"{name}, worst minute": min(shares.minutes),
                    f"{name}, after": shares.after[-1],
                }
    show(
        [f"pinned for {place.minutes * 60:.0f} s", "beside not pinned", "worst minute",
         "afterwards", "of the rate before", "worst minute", "afterwards", "before"],
        rows,
    )  # fmt: skip
    return found
