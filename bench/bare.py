"""The same steps without a queue: what the machine itself takes in the minutes in which a benchmark
runs.

`sleep`: coroutines that sleep one after the other, and nobody is asked in between. `take`: a row
that one process inserts and another deletes, woken by a notification: two commits, no promises.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import uvloop

from bench.fleet import ROOT
from bench.place import direct, plain
from bench.trace import FOLDER, Traces, now, own

PROCESSES = 2
TABLE = "CREATE TABLE bare (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sent float8)"
PUT = """
WITH put AS (INSERT INTO bare (sent) VALUES (%s) RETURNING n)
SELECT pg_notify('bare', '') FROM put
"""
TAKE = """
DELETE FROM bare WHERE n = (SELECT n FROM bare ORDER BY n LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING sent
"""


@contextmanager
def started(folder: Path, *arguments: str) -> Generator[list[subprocess.Popen[bytes]]]:
    """The processes, until the end of the block."""
    Traces(folder).clear()
    command = [sys.executable, "-m", "bench.bare", *arguments]
    env = {**os.environ, FOLDER: str(folder)}
    running = [subprocess.Popen(command, cwd=ROOT, env=env) for _ in range(PROCESSES)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def sleeping(folder: Path, jobs: int, seconds: float, at_once: int) -> Traces:
    """So many sleeps in all, and so many at once."""
    each = (str(jobs // PROCESSES), str(seconds), str(at_once // PROCESSES))
    with started(folder, "sleep", *each) as running:
        ends = [process.wait() for process in running]
        if any(ends):
            raise RuntimeError("a process that only sleeps has failed")
    return Traces(folder)


def put(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(PUT, (now(),), prepare=True)


async def sleep(jobs: int, seconds: float, at_once: int) -> None:
    left = iter(range(jobs))

    async def one() -> None:
        for _ in left:
            began = now()
            await asyncio.sleep(seconds)
            own().span(0, began, now())

    await asyncio.gather(*(one() for _ in range(at_once)))


def take(url: str) -> None:
    connection = direct(plain(url))
    connection.execute("LISTEN bare")
    while True:
        # One that comes in while a row is taken is found by the next statement.
        while (row := connection.execute(TAKE, prepare=True).fetchone()) is not None:
            own().span(0, float(str(row[0])), now())
        for _ in connection.notifies(timeout=0.5, stop_after=1):
            pass


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "sleep":
        number, length, width = arguments
        uvloop.run(sleep(int(number), float(length), int(width)))
    else:
        take(*arguments)
