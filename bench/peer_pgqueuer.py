"""pgqueuer's side of a comparison; runs in the environment that has it, without Headgate.

Settings after its documentation (performance tuning): a single asyncpg connection for the
manager, its autovacuum settings, a batch larger than the default of 10 for short jobs, uvloop.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.trace import now, own

PLAIN = 1
CHUNK = 5000


async def fill(dsn: str, jobs: int) -> None:
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    for begin in range(0, jobs, CHUNK):
        n = min(CHUNK, jobs - begin)
        await queries.enqueue(["nothing"] * n, [None] * n, [0] * n)
    await connection.execute("ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def work(dsn: str, batch: int) -> None:
    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @manager.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        own().count(PLAIN)

    @manager.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        own().span(0, float(job.payload or b"0"), now())

    await manager.run(batch_size=batch, dequeue_timeout=timedelta(seconds=5))


async def send(dsn: str, _: int) -> None:
    """One job for each line that comes in, told when it is stored."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    while sys.stdin.readline():
        await queries.enqueue("stamp", str(now()).encode())
        print(flush=True)


if __name__ == "__main__":
    what, dsn, number = sys.argv[1:]
    uvloop.run({"fill": fill, "work": work, "send": send}[what](dsn, int(number)))
