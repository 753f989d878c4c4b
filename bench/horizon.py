"""A pinned horizon: how fast jobs run while another session keeps dead rows from going away.

A store without limits and one under a limit, full load on both throughout: first clean, then
pinned, then free again. Finished jobs are not kept, so that all tables are as small as they can be,
were they cleaned.
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
TASKS = {"nothing": "no limit", "wide": "limit 500"}
BACKLOG = 20_000
CHUNK = 4000
WINDOW = 10.0
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
    def worst_minute(self) -> float:
        """The lowest rate over a minute (over all of it, when it is shorter)."""
        n = min(len(self.rates), max(1, round(60 / self.window)))
        sums = [sum(self.rates[i : i + n]) for i in range(len(self.rates) - n + 1)]
        return min(sums) / n

    @property
    def last(self) -> float:
        return self.rates[-1]


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


def case(place: Place, task: str, pin: Pinner) -> tuple[Phase, Phase, Phase]:
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
            measure(fleet, counter, window, window)
            clean = measure(fleet, counter, around, window)
            with direct(url) as connection:
                pin(connection)
                under = measure(fleet, counter, pinned, window)
            after = measure(fleet, counter, around, window)
    return clean, under, after


def both(place: Place, pin: Pinner) -> dict[str, tuple[Phase, Phase, Phase]]:
    """Without limits and under one, at the same time, each in a store of its own: what the machine
    does meanwhile is the same for both."""

    def one(task: str) -> tuple[Phase, Phase, Phase]:
        folder = place.folder / task
        folder.mkdir(exist_ok=True)
        return case(replace(place, folder=folder), task, pin)

    with ThreadPoolExecutor(len(TASKS)) as threads:
        found = {limit: threads.submit(one, task) for task, limit in TASKS.items()}
        try:
            return {limit: future.result() for limit, future in found.items()}
        except BaseException:
            _stopped.set()  # the other thread ends too, and what it has started with it
            raise


def run(place: Place) -> dict[str, float]:
    found: dict[str, float] = {}
    rows: list[list[str]] = []
    for kind, pin in PINNERS.items():
        for limit, (clean, under, after) in both(place, pin).items():
            name = f"{kind}, {limit}"
            found |= {
                name: under.mean / clean.mean,
                f"{name}, worst minute": under.worst_minute / clean.mean,
                f"{name}, after": after.last / clean.mean,
            }
            rows.append([
                name, ratio(under.mean / clean.mean), ratio(under.worst_minute / clean.mean),
                ratio(under.last / clean.mean), ratio(after.last / clean.mean), rate(clean.mean),
                rate(under.mean),
            ])  # fmt: skip
            every = [*clean.rates, *under.rates, *after.rates]
            print(
                f"{name}: jobs/s every {clean.window:.0f} s, clean {len(clean.rates)}, pinned"
                f" {len(under.rates)}, after {len(after.rates)}: "
                + " ".join(f"{one:,.0f}" for one in every),
                flush=True,
            )
    show(
        [f"pinned for {place.minutes * 60:.0f} s", "ratio", "worst minute", "at its end", "after",
         "clean", "pinned"],
        rows,
    )  # fmt: skip
    return found
