"""Tasks under every kind of limit; each job writes what it did to the execution log."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from headgate import App, Context, OneOf
from headgate.execlog import recording

app = App()
tenant = app.limit("tenant", 2, key="tenant_id")
shared = app.limit("shared", int(os.environ.get("HEADGATE_TEST_SHARED", "10")))
memory = app.limit("memory", 7)
app.limit("host-a", 2)
app.limit("host-b", 1)
burst = app.rate("burst", 50, per=1)
smooth = app.rate("smooth", 50, per=1, burst=1)

LIMITS: dict[str, int | None] = {
    "narrow": 3, "tenant": 2, "shared": 10, "memory": 7, "host-a": 2, "host-b": 1, "apart": 2,
    "crowd": 500,
}  # fmt: skip
UNITS = {"memory": 3}


def log() -> str:
    return os.environ["HEADGATE_TEST_LOG"]


def door() -> Path:
    """A file that is there while the door is shut."""
    return Path(log()).with_name("door")


@app.task(max_concurrent=3, queue="narrow")
async def narrow(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        await asyncio.sleep(seconds)


@app.task(max_concurrent=500, queue="crowd")
async def crowd(ctx: Context, seconds: float) -> None:
    """Nobody leaves while the door is shut."""
    with recording(log(), ctx):
        while door().exists():
            await asyncio.sleep(0.1)
        await asyncio.sleep(seconds)


@app.task(limits=[tenant], queue="tenants")
async def per_tenant(ctx: Context, tenant_id: str, seconds: float) -> None:
    with recording(log(), ctx, turn=tenant_id):
        await asyncio.sleep(seconds)


@app.task(limits=[shared], queue="shared")
async def shared_async(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        await asyncio.sleep(seconds)


@app.task(limits=[shared], queue="shared")
def shared_sync(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        time.sleep(seconds)


@app.task(limits=[OneOf("host-a", "host-b")], queue="hosts")
async def either(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        await asyncio.sleep(seconds)


@app.task(limits=[memory.units(3)], queue="memory")
async def hungry(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx, units=UNITS):
        await asyncio.sleep(seconds)


@app.task(limits=[memory], queue="memory")
async def modest(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        await asyncio.sleep(seconds)


@app.task(limits=[shared], fair_by="turn")
async def in_turn(ctx: Context, turn: str, seconds: float) -> None:
    with recording(log(), ctx, turn=turn):
        await asyncio.sleep(seconds)


@app.task(fair_by="turn")
async def plain_turn(ctx: Context, turn: str, seconds: float) -> None:
    with recording(log(), ctx, turn=turn):
        await asyncio.sleep(seconds)


@app.task(max_concurrent=2, isolate="process", queue="apart")
def apart(ctx: Context, seconds: float) -> None:
    with recording(log(), ctx):
        time.sleep(seconds)


@app.task(limits=[burst], queue="rates", fair_by="turn")
async def in_bursts(ctx: Context, turn: str = "") -> None:
    with recording(log(), ctx, turn=turn):
        await asyncio.sleep(0.001)


@app.task(limits=[smooth], queue="rates")
async def evenly(ctx: Context) -> None:
    with recording(log(), ctx):
        await asyncio.sleep(0.001)
