"""Async jobs that wait for their groups take no thread that others need."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path

from headgate import App, Context, Worker
from tests.waiting import PATIENCE

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
        assert all_out.wait(PATIENCE)
        last = one.submit(MANY)
        assert extended.wait(PATIENCE), "who holds the group got no thread"
        last.result(timeout=PATIENCE)
    finally:
        outside.extend([-1] * MANY)
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    app.close()


def test_whoever_is_interrupted_while_giving_its_groups_back_has_them_again(
    tmp_path: Path,
) -> None:
    """The thread that gives them back cannot be stopped, and its block is not entered: without
    more, the code would go on with nothing while another runs in its place."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    worker = Worker(app, concurrency=2)
    held: list[int] = []

    @app.task(max_concurrent=1)
    async def one(ctx: Context) -> None:
        other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # nobody can give anything back for now
        asyncio.get_running_loop().call_later(0.3, other.rollback)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1), ctx.released():
                raise AssertionError("nobody was in the way")
        await asyncio.sleep(0.5)  # the thread has come through by now
        other.close()
        held.append(app.slots.get_status(one.name).active)

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        one.submit().result(timeout=PATIENCE)
    finally:
        worker.stop()
        thread.join(60)
    assert held == [1]
    app.close()
