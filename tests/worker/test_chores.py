"""What is done now and then goes on whatever happens, and does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from headgate.backoff import grown
from headgate.errors import StoreUnavailable
from headgate.worker.chores import every
from tests.waiting import wait_until_async


@pytest.mark.parametrize("error", [StoreUnavailable("the server is away"), ValueError("a bug")])
def test_a_chore_that_fails_is_tried_less_often_and_told_now_and_then(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[float] = []

    def fails() -> None:
        calls.append(time.monotonic())
        raise error

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            chore = asyncio.create_task(every(0.001, "sweeping", fails, threads))
            await wait_until_async(lambda: len(calls) >= 4)
            chore.cancel()

    with caplog.at_level(logging.WARNING, "headgate.worker"):
        asyncio.run(main())
    gaps = [after - before for before, after in pairwise(calls)]
    assert all(gap >= least for gap, least in zip(gaps, (0.15, 0.3, 0.6), strict=False)), gaps
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
            await wait_until_async(lambda: calls >= 20)
            chore.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 3.0), (5000, 3.0)]
)
def test_waits_double_up_to_the_longest(failures: int, seconds: float) -> None:
    assert grown(failures, first=0.5, longest=3.0) == seconds
