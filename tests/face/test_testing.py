"""Promise: `headgate.testing` runs programs on the real engine, without workers or waiting."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate import App, Context, HeadgateError
from headgate.testing import (
    TestClock,
    adrain,
    assert_not_submitted,
    assert_submitted,
    drain,
    in_memory,
    inline,
    memory_app,
    submitted,
)
from tests.waiting import PATIENCE


def test_drain_runs_what_is_ready_and_what_that_submits(app: App) -> None:
    @app.task
    def count(n: int) -> None:
        if n > 0:
            count.submit(n - 1)

    count.submit(3)
    count.using(delay=60).submit(0)
    done = drain(app)
    assert (done.succeeded, done.attempts) == (4, 4)
    assert drain(app).attempts == 0
    assert drain(app, advance=True).succeeded == 1


def test_the_clock_stands_still_until_told(app: App) -> None:
    clock = app.clock
    assert isinstance(clock, TestClock)

    @app.task
    def late() -> None: ...

    at = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    handle = late.using(run_at=at).submit()
    assert handle.status() == "scheduled"
    clock.advance(3599)
    assert drain(app).attempts == 0
    clock.advance(timedelta(seconds=2))
    assert drain(app).succeeded == 1
    with pytest.raises(HeadgateError):
        clock.advance(-1)


def test_expired_jobs_do_not_run(app: App) -> None:
    @app.task(expires=60)
    def soon() -> None: ...

    handle = soon.submit()
    app.clock.advance(61)  # type: ignore[attr-defined]
    assert drain(app).attempts == 0
    app.store.sweep()
    record = handle.record()
    assert (record.state, record.reason) == ("cancelled", "expired")


def test_advance_needs_a_test_clock(file_app: App) -> None:
    with pytest.raises(HeadgateError, match="TestClock"):
        drain(file_app, advance=True)


def test_a_job_without_end_is_noticed(app: App) -> None:
    @app.task
    def again() -> None:
        again.submit()

    again.submit()
    with pytest.raises(HeadgateError, match="still no end"):
        drain(app, max_attempts=20)


def test_limits_hold_inline_too(app: App) -> None:
    seen: list[int] = []

    @app.task(max_concurrent=1)
    def outer(ctx: Context, depth: int) -> None:
        seen.append(depth)
        if depth:
            outer.submit(depth - 1)
            assert seen == [depth], "the inner one waits for the slot"

    with inline(app):
        outer.submit(1)
    assert drain(app).attempts in (0, 1)
    assert seen == [1, 0]


def test_inline_inside_coroutines(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    @app.task
    async def parent(n: int) -> int:
        handle = child.submit(n)
        return await handle.aresult(timeout=PATIENCE)

    async def main() -> None:
        assert await (await parent.asubmit(1)).aresult() == 2
        assert parent.submit(5).result() == 6

    with inline(app):
        asyncio.run(main())
    parent.using(delay=5).submit(1)
    assert asyncio.run(adrain(app)).attempts == 0
    handle = child.submit(1)
    assert handle.status() == "ready", "outside the block nothing runs by itself"


def test_assert_submitted(app: App) -> None:
    @app.task
    def mail(to: str, when: datetime, cc: str = "") -> None: ...

    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert_not_submitted(app, mail)
    with pytest.raises(AssertionError, match="there is none at all"):
        assert_submitted(app, mail)
    mail.submit("a@x", now)
    mail.using(queue="slow").submit("b@x", now, cc="c@x")
    assert assert_submitted(app, mail, to="b@x", cc="c@x").queue == "slow"
    assert_submitted(app, mail, when=now)
    with pytest.raises(AssertionError, match=r"(?s)there are 2.*b@x"):
        assert_submitted(app, mail, to="nobody")
    with pytest.raises(AssertionError, match="1 such jobs"):
        assert_not_submitted(app, mail, to="a@x")
    assert [record.queue for record in submitted(app, mail)] == ["default", "slow"]
    app.submit("elsewhere", {"n": 1})
    assert_submitted(app, "elsewhere", n=1)


def test_an_app_declared_elsewhere_gets_a_store_in_memory(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/real.db"
    app = App(url)

    @app.task(max_concurrent=2)
    def work(n: int) -> int:
        return n

    with in_memory(app) as clock, inline(app):
        assert isinstance(clock, TestClock)
        assert work.submit(3).result() == 3
    assert app.url == url
    assert not (tmp_path / "real.db").exists()
    assert_not_submitted(app, work)
    app.close()


def test_two_apps_in_memory_share_nothing() -> None:
    with memory_app() as one, memory_app() as two:
        one.submit("x", {})
        assert_submitted(one, "x")
        assert_not_submitted(two, "x")


def test_inline_on_a_file_keeps_no_descriptor_per_job(url: str) -> None:
    with App(url) as app:

        @app.task
        def double(n: int) -> int:
            return 2 * n

        with inline(app):
            assert double.submit(1).result() == 2
            before = len(list(Path("/dev/fd").iterdir()))
            for n in range(10):
                double.submit(n)
            assert len(list(Path("/dev/fd").iterdir())) == before
