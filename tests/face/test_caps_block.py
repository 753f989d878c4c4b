"""Promise: a cap that blocks waits for room, where somebody can wait."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from headgate import (
    App,
    Cap,
    ConcurrencyLimitReached,
    Context,
    DeclarationError,
    JobFailed,
)
from headgate.testing import drain, inline
from tests.waiting import PATIENCE


def declare_blocking(app: App, timeout: float | None) -> Any:
    @app.task(caps=[Cap("few", max_total=1, when_full="block", timeout=timeout)])
    def send(n: int) -> int:
        return n

    return send


def test_block_gives_up_after_its_timeout(both: App) -> None:
    send = declare_blocking(both, 0.3)
    send.submit(1)
    began = time.monotonic()
    with pytest.raises(ConcurrencyLimitReached):
        send.submit(2)
    assert time.monotonic() - began >= 0.3
    # And a time-out of 0 does not wait at all.
    quick = send.using(caps=[Cap("few", max_total=1, when_full="block", timeout=0)])
    with pytest.raises(ConcurrencyLimitReached):
        quick.submit(2)


def test_who_blocks_is_counted_once_and_only_when_given_up(both: App) -> None:
    send = declare_blocking(both, timeout=0.3)
    send.submit(1)
    with pytest.raises(ConcurrencyLimitReached):
        send.submit(2)
    (event,) = both.store.events("cap_refused")
    assert event.data["count"] == 1

    thread = threading.Thread(target=lambda: drain(both))
    patient = send.using(caps=[Cap("few", max_total=1, when_full="block", timeout=30)])
    threading.Timer(0.2, thread.start).start()
    patient.submit(3)
    thread.join(PATIENCE)
    store: Any = both.store
    store._tally.flush()
    (event,) = both.store.events("cap_refused")
    assert event.data["count"] == 1


def test_block_goes_on_when_there_is_room(both: App) -> None:
    send = declare_blocking(both, None)
    first = send.submit(1)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(send.submit(2)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    drain(both)
    waiting.join(PATIENCE)
    assert first.result() == 1
    drain(both)
    assert found[0].result() == 2


def test_many_that_block_wait_in_async_code(both: App) -> None:
    send = declare_blocking(both, 20)

    @both.task
    def free() -> None: ...

    async def main() -> None:
        calls = [send.call(1), send.call(2), free.call(), send.call(3)]
        waiting = asyncio.create_task(both.asubmit_many(calls))
        while not waiting.done():
            await asyncio.to_thread(drain, both)
        await asyncio.to_thread(drain, both)
        handles = await waiting
        assert [h.refused for h in handles] == [None] * 4
        assert [await handles[n].aresult() for n in (0, 1, 3)] == [1, 2, 3]

    asyncio.run(main())


def test_block_inside_inline_finds_room_at_once(app: App) -> None:
    send = declare_blocking(app, None)
    with inline(app):
        assert [send.submit(n).result() for n in range(3)] == [0, 1, 2]


def test_block_has_no_place_in_a_follow_up_or_a_transaction(app: App) -> None:
    send = declare_blocking(app, 5)

    @app.task
    def parent(ctx: Context) -> None:
        ctx.submit(send, 1)

    handle = parent.submit()
    drain(app)
    with pytest.raises(JobFailed, match="blocks when it is full"):
        handle.result()
    with pytest.raises(DeclarationError, match="a transaction of yours cannot wait"):
        send.using(conn=object()).submit(1)
