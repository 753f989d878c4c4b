"""Promise: a handle tells the state, the result, the remote error; waiting is never busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import (
    App,
    Cancel,
    Context,
    IdempotencyConflict,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    Retry,
    WouldDeadlock,
)
from headgate.jobs import JobFilter, JobRecord
from headgate.testing import adrain, drain, inline
from tests.waiting import PATIENCE, wait_until, wait_until_async


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_result_wakes_when_the_job_ends(file_app: App) -> None:
    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    handle = double.submit(4)
    assert handle.status() == "ready"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result, PATIENCE)
        drain(file_app)
        assert waiting.result(timeout=PATIENCE) == 8
    assert handle.status() == "succeeded"
    assert handle.result(timeout=0) == 8


def test_it_is_the_bell_that_wakes(file_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the safety poll out of the way, only the ring can end the wait."""
    monkeypatch.setattr("headgate.waiting.SAFETY_POLL", 600.0)

    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    handle, other = double.submit(4), double.submit(5)

    async def wait() -> int:
        return await other.aresult(timeout=PATIENCE)

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(handle.result, PATIENCE), pool.submit(asyncio.run, wait())]
        wait_until(lambda: len(file_app.watch("done")._waiters) == 2)
        drain(file_app)
        assert [one.result(timeout=PATIENCE) for one in waiting] == [8, 10]


def test_timeout_says_what_the_job_does(app: App) -> None:
    handle = app.submit("unknown", {})
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError, match=r"is still ready after .* 'headgate jobs why"):
            handle.result(timeout=timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(handle.aresult(timeout=0.05))


def test_waiting_costs_almost_nothing(file_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks when something has ended, and not in between."""
    monkeypatch.setattr("headgate.waiting.SAFETY_POLL", 600.0)
    looks = 0
    look = JobHandle.record

    def counted(handle: JobHandle[Any]) -> JobRecord:
        nonlocal looks
        looks += 1
        return look(handle)

    monkeypatch.setattr(JobHandle, "record", counted)

    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    many, ends = 50, 10
    handles = [file_app.submit("unknown", {"n": n}) for n in range(many)]

    async def wait() -> None:
        waiting = [asyncio.ensure_future(handle.aresult()) for handle in handles]
        await wait_until_async(lambda: looks >= 2 * many, why="all look before they wait")
        for n in range(ends):
            double.submit(n)
            await asyncio.to_thread(drain, file_app)
        await wait_until_async(lambda: looks >= 3 * many, why="all look again")
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(wait())
    print(f"{looks} looks")
    assert looks <= (2 + ends + 1) * many


def test_many_coroutines_wait_without_a_thread_each(file_app: App) -> None:
    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    async def main() -> None:
        handles = await file_app.asubmit_many(double.call(n) for n in range(200))
        waiting = asyncio.gather(*(handle.aresult(timeout=60) for handle in handles))
        await adrain(file_app)
        assert await waiting == [2 * n for n in range(200)]

    asyncio.run(main())
    asyncio.run(main())  # a second event loop is as good as the first


def test_a_failed_job_brings_its_traceback(app: App) -> None:
    @app.task
    def fail(n: int) -> None:
        raise LookupError(f"no {n}")

    with inline(app):
        handle = fail.submit(3)
    with pytest.raises(JobFailed, match="LookupError: no 3") as failed:
        handle.result()
    assert failed.value.error_type == "LookupError"
    assert 'raise LookupError(f"no {n}")' in failed.value.remote_traceback
    assert "headgate/worker" not in failed.value.remote_traceback
    assert failed.value.remote_traceback in "".join(failed.value.__notes__)


def test_cancelled_jobs(app: App) -> None:
    @app.task
    def stop() -> None:
        raise Cancel("the invoice is paid")

    waiting = stop.submit()
    assert waiting.cancel("not needed").state == "cancelled"
    with pytest.raises(JobCancelled, match="not needed"):
        waiting.result()
    with inline(app):
        own = stop.submit()
    with pytest.raises(JobCancelled, match="the invoice is paid") as cancelled:
        own.result()
    assert "the invoice is paid" in cancelled.value.reason
    assert own.cancel().state == "cancelled"


def test_jobs_that_are_not_there(app: App) -> None:
    from headgate import JobHandle

    for id in ("", "nonsense", "a\0b", "x" * 10_000, "\ud800"):
        with pytest.raises(JobNotFound):
            app.get_job(id)
        with pytest.raises(JobNotFound):
            JobHandle(app, id, None).cancel()
    with pytest.raises(JobNotFound):
        asyncio.run(app.aget_job("nonsense"))


def test_async_faces(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async def main() -> None:
        with inline(app):
            handle = await double.asubmit(4)
            assert await handle.aresult() == 8
            assert await handle.astatus() == "succeeded"
            assert (await handle.arecord()).id == handle.id
            assert await double(5) == 10
            other = await app.asubmit("double", {"n": 2})
            assert await other.aresult() == 4
            assert (await other.acancel()).state == "succeeded"

    asyncio.run(main())


def test_idempotency_keys(app: App) -> None:
    @app.task
    def charge(n: int) -> None: ...

    once = charge.using(idempotency_key="inv-42")
    first, second = once.submit(1), once.submit(1)
    assert first == second
    assert first.id == second.id
    with pytest.raises(IdempotencyConflict):
        once.submit(2)


def test_submit_many_is_checked_whole_before_anything_is_stored(app: App) -> None:
    @app.task
    def take(n: int) -> int:
        return n

    with pytest.raises(Exception, match="argument 'n'"):
        app.submit_many([take.call(1), take.call("x")])  # type: ignore[arg-type]
    assert app.store.find(JobFilter()) == []
    handles = app.submit_many(take.call(n) for n in range(1201))
    assert len({handle.id for handle in handles}) == 1201
    assert app.submit_many([]) == []
    assert drain(app).succeeded == 1201
    assert [handle.result() for handle in handles[:3]] == [0, 1, 2]


def test_retries_and_what_the_code_asks_for(app: App) -> None:
    seen: list[int] = []

    @app.task(retries=2, retry_delay=5)
    def flaky(ctx: Context, n: int) -> str:
        seen.append(ctx.attempt)
        if ctx.attempt < n:
            raise Retry(delay=7) if ctx.attempt == 1 else ValueError("again")
        return "done"

    handle = flaky.submit(3)
    assert drain(app).retry == 1
    assert handle.status() == "scheduled"
    assert drain(app).attempts == 0, "nothing runs before its time"
    done = drain(app, advance=True)
    assert (done.retry, done.succeeded) == (1, 1)
    assert (seen, handle.result()) == ([1, 2, 3], "done")
    too_often = flaky.submit(9)
    assert drain(app, advance=True).failed == 1
    with pytest.raises(JobFailed, match="again"):
        too_often.result()


def test_waiting_for_a_job_that_needs_what_is_held_is_refused(app: App) -> None:
    api = app.limit("api", 2)
    app.limit("other", 1)

    @app.task(limits=[api])
    def child() -> int:
        return 3

    @app.task(limits=["other"])
    def stranger() -> int:
        return 4

    @app.task(limits=[api])
    def parent(how: str) -> int:
        handle = child.submit()
        if how == "released":
            from headgate import current

            with current().released():
                return handle.result(timeout=PATIENCE)
        return handle.result(timeout=PATIENCE)

    @app.task(limits=[api])
    def friendly() -> int:
        return stranger.submit().result(timeout=PATIENCE)

    bad = parent.submit("plain")
    drain(app)
    with pytest.raises(JobFailed, match=r"WouldDeadlock.*holds that itself.*released"):
        bad.result()
    with inline(app):
        assert friendly.submit().result() == 4
        assert parent.submit("released").result() == 3
    assert issubclass(WouldDeadlock, Exception)
