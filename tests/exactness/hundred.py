"""A hundred tasks in one queue, of which one has a limit; each job writes what it did to the
execution log."""

from __future__ import annotations

import asyncio
import os

from headgate import App, Context, Task
from headgate.execlog import recording

app = App()
LIMITS: dict[str, int | None] = {"limited": 3}


async def work(ctx: Context, seconds: float) -> None:
    with recording(os.environ["HEADGATE_TEST_LOG"], ctx):
        await asyncio.sleep(seconds)


def plain(n: int) -> Task[[float], None]:
    @app.task(name=f"plain-{n:02}")
    async def run(ctx: Context, seconds: float) -> None:
        await work(ctx, seconds)

    return run


PLAIN = [plain(n) for n in range(99)]


@app.task(max_concurrent=3)
async def limited(ctx: Context, seconds: float) -> None:
    await work(ctx, seconds)
