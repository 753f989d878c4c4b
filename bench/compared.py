"""The workload of `make compare`, which each side runs with an interpreter of its own.

It uses only what users import, of the package that COMPARE_PACKAGE names. A job that ran writes
a byte to the file COMPARE_RAN.
"""

import asyncio
import importlib
import json
import os
import random
import statistics
import sys
import time

app = importlib.import_module(os.environ["COMPARE_PACKAGE"]).App(os.environ["COMPARE_URL"])
ran = os.open(os.environ["COMPARE_RAN"], os.O_RDWR | os.O_APPEND)


@app.task
async def nothing(n: int) -> None:
    os.write(ran, b".")


@app.task(limits=[app.limit("ten", 10)])
async def short(n: int) -> None:
    await asyncio.sleep(0.005)
    os.write(ran, b".")


@app.task(limits=[app.limit("tenant", 1, key="tenant")])
async def held(tenant: int) -> None:
    await asyncio.sleep(3600)


def submit(jobs: int) -> dict[str, float]:
    """Jobs a second: a tenth of them one by one, then all in lists of 2,000."""
    nothing.submit(0)
    began = time.perf_counter()
    for n in range(jobs // 10):
        nothing.submit(n)
    figures = {"submit": jobs // 10 / (time.perf_counter() - began)}
    began = time.perf_counter()
    for first in range(0, jobs, 2000):
        app.submit_many([nothing.call(n) for n in range(first, min(jobs, first + 2000))])
    return figures | {"submit_many": jobs / (time.perf_counter() - began)}


def pickup(jobs: int) -> dict[str, float]:
    """One divided by the median time from a submit to the start of its job, in idle workers."""
    took: list[float] = []
    for n in range(jobs + 20):
        time.sleep(random.uniform(0, 0.006))
        began = time.perf_counter()
        nothing.submit(n)
        os.read(ran, 1)
        took.append(time.perf_counter() - began)
    return {"pickup": 1 / statistics.median(took[20:])}


def fill(scenario: str, jobs: int) -> None:
    if scenario == "claim-cost":
        for _ in range(1 + jobs // 300):  # one job of each tenant runs, the others wait behind it
            app.submit_many([held.call(n) for n in range(100)])
    task = short if scenario == "short-jobs" else nothing
    app.submit_many([task.call(n) for n in range(jobs)])


if __name__ == "__main__":
    scenario, jobs = sys.argv[1], int(sys.argv[2])
    measured = {"submit": submit, "pickup": pickup}.get(scenario)
    print(json.dumps(measured(jobs) if measured else fill(scenario, jobs)))
