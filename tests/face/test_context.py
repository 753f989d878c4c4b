"""Promise: a running job knows itself, and what it says and submits goes with its attempt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headgate import App, Context, HeadgateError, JobNotFound, Snooze, current
from headgate.testing import assert_not_submitted, assert_submitted, drain, inline


def test_what_a_context_tells(app: App) -> None:
    tenant = app.limit("tenant", 2, key="who")
    app.limit("host-a", 0)
    app.limit("host-b", 1)
    from headgate import OneOf

    @app.task(limits=[tenant], queue="slow")
    def plain(ctx: Context, who: str) -> list[Any]:
        return [ctx.job_id, ctx.attempt, ctx.token, ctx.task, ctx.queue, ctx.group, ctx.groups]

    @app.task(limits=[tenant, OneOf("host-a", "host-b")])
    def picked(ctx: Context, who: str) -> list[Any]:
        return [ctx.group, sorted(ctx.groups), ctx.cancelled]

    @app.task
    def free(ctx: Context) -> list[Any]:
        return [ctx.group, ctx.groups]

    with inline(app):
        handle = plain.submit("acme")
        job, attempt, token, task, queue, group, groups = handle.result()
        assert (job, attempt, task, queue) == (handle.id, 1, "plain", "slow")
        assert (group, groups) == ("tenant/acme", ["tenant/acme"])
        assert plain.submit("acme").result()[2] > token
        assert picked.submit("x").result() == ["host-b", ["host-b", "tenant/x"], False]
        assert free.submit().result() == [None, []]


def test_current_follows_await_and_threads(app: App) -> None:
    def deep() -> str:
        return current().job_id

    @app.task
    async def outer() -> list[str]:
        return [deep(), await asyncio.to_thread(deep)]

    with pytest.raises(HeadgateError, match="no job is running here"):
        current()
    with inline(app):
        handle = outer.submit()
        assert handle.result() == [handle.id, handle.id]
    with pytest.raises(HeadgateError, match="no job"):
        current()


def test_progress(app: App) -> None:
    seen: list[tuple[float | None, str]] = []

    @app.task
    def work(ctx: Context) -> None:
        ctx.progress(0.3, "30 of 100")
        record = app.get_job(ctx.job_id)
        seen.append((record.progress, record.progress_text))
        ctx.progress(1)
        for bad in (-0.1, 1.1, float("nan"), "x", None, True):
            with pytest.raises(HeadgateError, match="progress"):
                ctx.progress(bad)  # type: ignore[arg-type]

    with inline(app):
        work.submit().result()
    assert seen == [(0.3, "30 of 100")]


def test_follow_ups_are_stored_with_the_finish_or_not_at_all(app: App) -> None:
    @app.task
    def child(n: int) -> int:
        return n

    @app.task(retries=1)
    def parent(ctx: Context, fail: bool) -> str:
        handle = ctx.submit(child.call(1 if fail else 2))
        ctx.submit(child, 3)
        with pytest.raises(JobNotFound):
            handle.status()
        with pytest.raises(HeadgateError, match=r"task.call"):
            ctx.submit(lambda: None)  # type: ignore[call-overload]
        if fail:
            raise ValueError("no")
        return handle.id

    parent.submit(True)
    drain(app, advance=True)
    assert_not_submitted(app, child)
    good = parent.submit(False)
    drain(app)
    record = assert_submitted(app, child, n=2)
    assert (record.id, record.parent) == (good.result(), good.id)
    assert record.state == "succeeded"
    assert_submitted(app, "child", n=3)


def test_released_gives_the_slots_back_for_the_wait(app: App) -> None:
    gpu = app.limit("gpu", 1)
    seen: list[int] = []

    def held() -> int:
        return app.slots.get_status("gpu").active

    @app.task(limits=[gpu])
    def sync(ctx: Context) -> None:
        seen.append(held())
        with ctx.released():
            seen.append(held())
            assert ctx.holding == ()
            with ctx.released():
                seen.append(held())
        seen.append(held())
        assert ctx.holding == ("gpu",)
        with contextlib.suppress(KeyError), ctx.released():
            raise KeyError
        seen.append(held())

    @app.task(limits=[gpu])
    async def other(ctx: Context) -> None:
        async with ctx.released():
            seen.append(held())
        seen.append(held())

    with inline(app):
        sync.submit().result()
        other.submit().result()
    assert seen == [1, 0, 0, 1, 1, 0, 1]


def test_released_waits_until_there_is_room_again(app: App) -> None:
    gpu = app.limit("gpu", 1)
    order: list[str] = []

    @app.task(limits=[gpu])
    def work(ctx: Context) -> None:
        with ctx.released():
            taken = app.slots.try_acquire("gpu", None, "somebody", "else", 600)
            assert taken is not None

            def give_back() -> None:
                order.append("given back")
                app.slots.release(taken)
                app.store.ring("work")

            threading.Timer(0.2, give_back).start()
        order.append("goes on")

    with inline(app):
        work.submit().result()
    assert order == ["given back", "goes on"]


def test_the_log_names_the_job(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(max_concurrent=1)
    def work(ctx: Context) -> None:
        ctx.log.info("hello %s", "you", extra={"more": 1})

    with caplog.at_level(logging.INFO), inline(app):
        handle = work.submit()
    record: Any = next(r for r in caplog.records if r.getMessage() == "hello you")
    assert (record.job, record.attempt, record.group, record.more) == (handle.id, 1, "work", 1)
    assert record.name == "headgate.task.work"


def test_a_plain_call_gets_a_local_context(app: App) -> None:
    @app.task
    def child(n: int) -> int:
        return n

    @app.task(max_concurrent=1)
    def work(ctx: Context, n: int) -> tuple[str, str | None]:
        ctx.progress(0.5)
        ctx.extend_lease(3)
        ctx.raise_if_cancelled()
        with ctx.released():
            pass
        ctx.submit(child.call(n))
        return ctx.job_id, ctx.group

    @app.task
    def outer(ctx: Context) -> bool:
        return work(4)[0] == ctx.job_id

    assert work(3) == ("local", None)
    assert assert_submitted(app, child, n=3).parent is None
    with inline(app):
        handle = outer.submit()
        assert handle.result() is True, "inside a job a call shares the job's context"
    assert assert_submitted(app, child, n=4).parent == handle.id


def test_extend_lease(app: App) -> None:
    gpu = app.limit("gpu", 1)
    ends: list[Any] = []

    @app.task(limits=[gpu])
    async def work(ctx: Context) -> None:
        await ctx.aextend_lease(60)
        ends.append(app.slots.get_status("gpu").slots[0].expires_at)
        for bad in (0, -1, float("inf")):
            with pytest.raises(HeadgateError, match="extend_lease"):
                ctx.extend_lease(bad)

    with inline(app):
        work.submit().result()
    assert ends[0] is not None


def test_snooze(app: App) -> None:
    @app.task
    def work(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise Snooze(60)
        return ctx.attempt

    handle = work.submit()
    before = app.clock.now()
    done = drain(app, advance=True)
    assert (done.snoozed, done.succeeded) == (2, 1)
    assert app.clock.now() - before >= 120
    assert handle.result() == 3


def test_hooks_run_round_each_job(app: App) -> None:
    seen: list[str] = []

    @app.around_job
    @contextlib.contextmanager
    def sync(ctx: Context) -> Iterator[None]:
        seen.append(f"in {ctx.task}")
        yield
        seen.append(f"out {ctx.task}")

    @app.around_job
    @contextlib.asynccontextmanager
    async def other(ctx: Context) -> AsyncIterator[None]:
        seen.append("a-in")
        yield
        seen.append("a-out")

    @app.on_error
    async def error(ctx: Context, exc: BaseException) -> None:
        seen.append(f"error {exc}")

    @app.task
    async def one() -> None:
        seen.append("one")

    @app.task
    def two() -> None:
        seen.append("two")

    @app.task
    def bad() -> None:
        raise ValueError("x")

    with inline(app):
        one.submit()
        two.submit()
        assert seen[:5] == ["in one", "a-in", "one", "a-out", "out one"]
        assert seen[5:] == ["in two", "a-in", "two", "a-out", "out two"]
        bad.submit()
    assert seen[-1] == "error x"
