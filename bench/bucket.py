"""The store in a bucket, with 50 ms for each request: jobs per second, and writes per job."""

from __future__ import annotations

import json
import secrets
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from bench.fleet import ROOT, workers
from bench.place import Place
from bench.table import rate, ratio, show
from bench.tasks import LIMITED, PLAIN, app
from headgate.jobs import NewJob, new_id
from headgate.stores import open_store
from tests.bucket.server import credentials, free_port

LATENCY = 0.05
ROUNDS = 3

Case = Callable[[], tuple[float, float]]
"""Jobs per second, and writes per job."""


@dataclass(frozen=True, slots=True)
class Site:
    """An object server that is slow to answer."""

    endpoint: str

    def url(self, cache: Path, prefix: str) -> str:
        query = urlencode({"endpoint": self.endpoint, "cache": str(cache)})
        return f"s3://bench/{prefix}?{query}"

    def counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.endpoint}/counts") as answer:
            return json.loads(answer.read())


@contextmanager
def serving(latency: float = LATENCY) -> Generator[Site]:
    credentials()
    port = free_port()
    command = [sys.executable, "-m", "bench.objectserver", str(port), str(latency)]
    process = subprocess.Popen(command, cwd=ROOT)
    site = Site(f"http://127.0.0.1:{port}")
    try:
        for _ in range(100):
            try:
                site.counts()
                break
            except OSError:
                time.sleep(0.05)
        yield site
    finally:
        process.terminate()
        process.wait()


def _submit(url: str, job: NewJob, count: int) -> float:
    """Bulk; jobs per second."""
    store = open_store(url)
    began = time.perf_counter()
    for start in range(0, count, 1000):
        part = min(1000, count - start)
        store.submit([_again(job) for _ in range(part)])
    took = time.perf_counter() - began
    store.close()
    return count / took


def _again(job: NewJob) -> NewJob:
    return replace(job, id=new_id())


def drain(
    place: Place, site: Site, task: str, jobs: int, machines: int, processes: int,
    *options: str, **arguments: float,
) -> tuple[float, float]:  # fmt: skip
    """Jobs per second, and writes per job, with so many processes on so many machines."""
    prefix = secrets.token_hex(4)
    urls = [site.url(place.folder / f"machine-{i}", prefix) for i in range(machines)]
    _submit(urls[0], app.tasks[task].call(**arguments).new_job(), jobs)
    with workers(
        place.folder, urls[0], "--concurrency", "64", *options, count=processes, held=True,
        urls=urls,
    ) as fleet:  # fmt: skip
        before = site.counts()
        fleet.go()
        found = fleet.drained((PLAIN, LIMITED), jobs)
        after = site.counts()
    return found, (after["write"] - before["write"]) / jobs


def compare(title: str, cases: dict[str, Case], rounds: int) -> dict[str, float]:
    """Rounds in turn; a table; each case's rate as a ratio to the first's."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            measured[name].append(case())
    rates = {name: statistics.median(one[0] for one in found) for name, found in measured.items()}
    base = next(iter(rates.values()))
    show(
        [title, "ratio", "jobs/s", "from", "to", "writes a job"],
        [
            [
                *(name, ratio(rates[name] / base), rate(rates[name]), rate(min(found)[0])),
                *(rate(max(found)[0]), f"{statistics.median(one[1] for one in found):.3f}"),
            ]
            for name, found in measured.items()
        ],
    )
    return rates


def one_by_one(site: Site, folder: Path, jobs: int, threads: int = 16) -> float:
    store = open_store(site.url(folder, secrets.token_hex(4)))
    job = app.tasks["nothing"].call().new_job()
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: store.submit([_again(job)]), range(jobs)))
    took = time.perf_counter() - began
    store.close()
    return jobs / took


def run(place: Place) -> dict[str, float]:
    jobs = place.sized(40_000, 200)
    with serving() as site:
        rounds = ROUNDS if place.full else 1
        found = compare(
            "drain, 50 ms a request",
            {
                name: partial(drain, place, site, "nothing", jobs, machines, processes)
                for name, (machines, processes) in {
                    "1 process": (1, 1),
                    "4 processes, 1 machine": (1, 4),
                    "4 processes, 2 machines": (2, 4),
                    "4 processes, 4 machines": (4, 4),
                }.items()
            },
            rounds,
        )
        limited = place.sized(1600, 64)
        speed, writes = drain(place, site, "tenth", limited, 1, 1, seconds=0.1)
        found["limit 16"] = speed / 160
        show(
            ["limit 16, jobs of 100 ms", "of the ideal", "writes a job"],
            [["1 process", f"{speed / 160:.2f}", f"{writes:.3f}"]],
        )
        folder = place.folder / "submit"
        folder.mkdir()
        bulk = _submit(site.url(folder, "bulk"), app.tasks["nothing"].call().new_job(), jobs)
        single = one_by_one(site, folder, place.sized(500, 50))
        show(["submit", "jobs/s"], [["bulk", rate(bulk)], ["one by one, 16 threads", rate(single)]])
        found |= {"bulk": bulk, "one by one": single}
    return found
