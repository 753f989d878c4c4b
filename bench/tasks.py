"""The tasks that the benchmarks run."""

from __future__ import annotations

import asyncio
import threading
import time

from bench.trace import now, own
from headgate import App, Context, Retry

PLAIN, LIMITED = 1, 2
"""Counters of the trace."""
MANY = 100

_noting = threading.Lock()
"""A trace is written by one thread at a time."""

app = App()
tenant = app.limit("tenant", 2, key="tenant_id")
shared = app.limit("shared", 10)


@app.task
async def nothing() -> None:
    """A job that does nothing: what remains is the queue's own cost."""
    own().count(PLAIN)


@app.task(max_concurrent=10)
async def limited() -> None:
    """The same under a limit of 10."""
    own().count(LIMITED)


@app.task(max_concurrent=500)
async def wide() -> None:
    """The same under a limit of 500."""
    own().count(LIMITED)


def _make(number: int) -> None:
    @app.task(name=f"open-{number:02}")
    async def plain() -> None:
        own().count(PLAIN)


for _number in range(MANY):
    _make(_number)


@app.task
async def beside() -> None:
    """One more of them, told apart."""
    own().count(LIMITED)


@app.task(max_concurrent=10)
async def narrow() -> None:
    """The same under a limit of 10."""
    own().count(LIMITED)


@app.task(max_concurrent=500, retries=1)
async def twice(ctx: Context) -> None:
    """Comes back once: an end that is more than a plain one."""
    if ctx.attempt == 1:
        raise Retry(delay=0)
    own().count(LIMITED)


@app.task
async def stamp(sent: float) -> None:
    """Notes when it was submitted and when it started."""
    own().span(0, sent, now())


@app.task(max_concurrent=10)
async def brief(seconds: float) -> None:
    """A short job under a limit of 10."""
    began = now()
    await asyncio.sleep(seconds)
    own().span(0, began, now())


@app.task(max_concurrent=16)
async def tenth(seconds: float) -> None:
    """A job of some length under a limit of 16."""
    await asyncio.sleep(seconds)
    own().count(LIMITED)


@app.task(max_concurrent=10)
def brief_in_thread(seconds: float) -> None:
    """The same in a thread, which sleeps for as long as it says: the timers of an event loop
    go by whole milliseconds."""
    began = now()
    time.sleep(seconds)
    ended = now()
    with _noting:
        own().span(0, began, ended)


@app.task(limits=[shared], fair_by="tenant_id")
async def brief_of(tenant_id: int, seconds: float) -> None:
    """The same for a tenant, all of whom share one limit."""
    began = now()
    await asyncio.sleep(seconds)
    own().span(tenant_id, began, now())


@app.task(max_concurrent=1)
async def one_by_one(seconds: float) -> None:
    """One at a time: from the end of one to the start of the next is the hand-over."""
    began = now()
    await asyncio.sleep(seconds)
    own().span(0, began, now())


@app.task(fair_by="tenant_id")
async def busy(tenant_id: str, seconds: float, sent: float = 0.0) -> None:
    """Work of a tenant; with `sent`, notes how long it waited to start."""
    if sent:
        own().span(0, sent, now())
    else:
        own().count(PLAIN)
    await asyncio.sleep(seconds)


@app.task(limits=[tenant])
async def of_tenant(tenant_id: str) -> None:
    """A job under a limit for each tenant, who take turns."""
    own().count(LIMITED)


@app.task
def in_thread() -> None:
    """The same as `nothing`, in a thread."""
    own().count(PLAIN)
    time.sleep(0)
