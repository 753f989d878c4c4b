"""What is done now and then goes on whatever happens, and does not fill the log."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.backoff import grown
from headgate.errors import StoreUnavailable
from headgate.worker.chores import every


@pytest.mark.parametrize("error", [StoreUnavailable("the server is away"), ValueError("a bug")])
def test_a_chore_that_fails_is_tried_less_often_and_told_now_and_then(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        raise error

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            chore = asyncio.create_task(every(0.001, "sweeping", fails, threads))
            await asyncio.sleep(1.2)
            chore.cancel()

    with caplog.at_level(logging.WARNING, "headgate.worker"):
        asyncio.run(main())
    assert 2 <= calls <= 5  # after 0.001, 0.2, 0.4, 0.8 s, not a thousand times
    assert 1 <= len([line for line in caplog.messages if "sweeping failed" in line]) <= 2


def test_it_is_as_often_as_before_once_it_works_again() -> None:
    calls = 0

    def fails_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("the server is away")

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            chore = asyncio.create_task(every(0.001, "sweeping", fails_once, threads))
            async with asyncio.timeout(20):
                while calls < 20:
                    await asyncio.sleep(0.01)
            chore.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 3.0), (5000, 3.0)]
)
def test_waits_double_up_to_the_longest(failures: int, seconds: float) -> None:
    assert grown(failures, first=0.5, longest=3.0) == seconds
