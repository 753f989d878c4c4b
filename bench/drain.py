"""How fast worker processes drain jobs that do nothing; on PostgreSQL beside a peer."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
from collections.abc import Callable
from functools import partial

from bench.fill import fill
from bench.fleet import ROOT, Drain, workers
from bench.peers import PGQUEUER, python_with
from bench.place import Place, direct, plain
from bench.table import rate, ratio, show
from bench.tasks import LIMITED, PLAIN, app
from bench.trace import FOLDER, Traces

ROUNDS = 3
CONCURRENCY = 100
PGQUEUER_BATCH = int(os.environ.get("HEADGATE_BENCH_PGQUEUER_BATCH", "300"))
"""Its default is 10, to be raised for short jobs, says its documentation. Of 10, 50, 100, 300 and
1,000 this was its fastest in both of two rounds."""


def own(place: Place, task: str, jobs: int, processes: int, loop: str = "auto") -> float:
    with place.store("drain") as url:
        total = fill(url, [(app.tasks[task].call().new_job(), jobs)])
        options = ("--concurrency", str(CONCURRENCY), "--processes", str(processes))
        with workers(place.folder, url, *options, "--loop", loop, held=True) as fleet:
            fleet.go()
            return fleet.drained((PLAIN, LIMITED), total)


def pgqueuer(place: Place, jobs: int, processes: int) -> float:
    python = python_with(PGQUEUER)
    assert place.server is not None
    traces = Traces(place.folder)
    traces.clear()
    env = {**os.environ, FOLDER: str(place.folder)}
    with place.store("pgqueuer") as url:
        script = [str(python), "bench/peer_pgqueuer.py"]
        subprocess.run([*script, "fill", plain(url), str(jobs)], cwd=ROOT, env=env, check=True)
        command = [*script, "work", plain(url), str(PGQUEUER_BATCH)]
        running = [
            subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
            for _ in range(processes)
        ]
        try:
            with direct(url) as connection:

                def idle() -> bool:
                    return connection.execute("SELECT 1 FROM pgqueuer LIMIT 1").fetchone() is None

                return Drain(traces, running, idle).rate((PLAIN,), jobs)
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(place: Place) -> dict[str, float]:
    jobs = place.sized(100_000 if place.server else 20_000, 200)
    cases: dict[str, Callable[[], float]] = {
        "headgate, 1 process": partial(own, place, "nothing", jobs, 1),
        "headgate, 2 processes": partial(own, place, "nothing", jobs, 2),
        "headgate, limit 10, 1 process": partial(own, place, "limited", max(100, jobs // 4), 1),
    }
    if place.full:
        cases |= {
            "headgate, 1 process, asyncio": partial(own, place, "nothing", jobs, 1, "asyncio"),
            "headgate, 2 processes, asyncio": partial(own, place, "nothing", jobs, 2, "asyncio"),
        }
    if place.server is not None and place.peers:
        cases |= {
            "pgqueuer, 1 process": partial(pgqueuer, place, jobs, 1),
            "pgqueuer, 2 processes": partial(pgqueuer, place, jobs, 2),
        }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS if place.full else 1):
        for name, case in cases.items():
            found[name].append(case())
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    base = medians["headgate, 1 process"]
    show(
        ["drain of jobs that do nothing", "ratio", "jobs/s", "from", "to"],
        [
            [
                name,
                ratio(median / base),
                rate(median),
                rate(min(found[name])),
                rate(max(found[name])),
            ]
            for name, median in medians.items()
        ],
    )
    if "pgqueuer, 1 process" in medians:
        peer = medians["pgqueuer, 1 process"]
        times = base / peer
        print(f"headgate is {times:.2f} times as fast as pgqueuer, each with 1 process on uvloop")
        if (other := medians.get("headgate, 1 process, asyncio")) is not None:
            print(f"headgate on asyncio's own loop is {other / peer:.2f} times as fast as it")
    return {name: median / base for name, median in medians.items()}
