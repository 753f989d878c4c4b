"""Async jobs that wait for their groups take no thread that others need."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from headgate import App, Context, Worker

MANY = 40
"""More than an event loop's own pool has threads."""


def test_many_that_wait_for_a_group_do_not_hold_up_who_has_it(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    worker = Worker(app, concurrency=MANY + 2)
    outside: list[int] = []
    all_out = threading.Event()
    extended = threading.Event()

    @app.task(max_concurrent=1)
    async def one(ctx: Context, n: int) -> None:
        if n < MANY:
            async with ctx.released():
                outside.append(n)
                if len(outside) == MANY:
                    all_out.set()
                while len(outside) <= MANY:  # until the last one has the group
                    await asyncio.sleep(0.01)
            return
        outside.append(n)
        await asyncio.sleep(0.5)  # all others wait for the group now, each in its thread
        await ctx.aextend_lease(30)
        extended.set()

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        app.submit_many([one.call(n) for n in range(MANY)])
        assert all_out.wait(30)
        last = one.submit(MANY)
        assert extended.wait(20), "who holds the group got no thread"
        last.result(timeout=20)
    finally:
        outside.extend([-1] * MANY)
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    app.close()
