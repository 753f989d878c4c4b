"""pgqueuer's side of a drain; runs in the environment that has it, without Headgate.

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

from bench.trace import own

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

    await manager.run(batch_size=batch, dequeue_timeout=timedelta(seconds=5))


if __name__ == "__main__":
    what, dsn, number = sys.argv[1:]
    uvloop.run(fill(dsn, int(number)) if what == "fill" else work(dsn, int(number)))
