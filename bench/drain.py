"""How fast a worker process drains jobs that do nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.fleet import workers
from headgate.jobs import JobFilter

ENDED = JobFilter(states=frozenset(("succeeded",)))


def run(folder: Path, jobs: int = 20_000) -> dict[str, float]:
    rates: dict[str, float] = {}
    for name, task, processes in (
        ("unlimited, 1 process", "nothing", 1),
        ("unlimited, 2 processes", "nothing", 2),
        ("limit 10, 1 process", "limited", 1),
    ):
        url = f"sqlite:///{folder}/drain-{len(rates)}.db"
        os.environ["HEADGATE_URL"] = url
        from bench.tasks import app

        app.close()
        app.__dict__.pop("config", None)
        count = jobs if task == "nothing" else jobs // 4
        calls = [app.tasks[task].call() for _ in range(count)]
        began = time.perf_counter()
        app.submit_many(calls)
        submitted = count / (time.perf_counter() - began)
        options = ("--concurrency", "100", "--processes", str(processes))
        began = time.perf_counter()
        with workers(folder, url, *options) as store:
            first = time.perf_counter()
            while store.count(ENDED, limit=count) < count:
                time.sleep(0.02)
            rates[name] = count / (time.perf_counter() - first)
        print(f"{name:28} {rates[name]:9,.0f} jobs/s   (bulk submit {submitted:,.0f}/s)")
        app.close()
    base = rates["unlimited, 1 process"]
    for name, rate in rates.items():
        print(f"{name:28} {rate / base:9.2f} of the first")
    return rates
