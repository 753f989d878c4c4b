"""Chores: what a worker process does now and then beside its jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor

from headgate.backoff import grown, worth_telling
from headgate.errors import StoreError

log = logging.getLogger("headgate.worker")

_LONGEST_PAUSE = 10.0


async def every(seconds: float, what: str, call: Callable[[], None], threads: Executor) -> None:
    """Call it every so many seconds, for ever, in one of these threads. While it fails, which is
    told now and then, it is tried less and less often."""
    loop, failures = asyncio.get_running_loop(), 0
    while True:
        pause = max(seconds, grown(failures, 0.1, _LONGEST_PAUSE)) if failures else seconds
        # Spread: workers that started together would do it together for ever.
        await asyncio.sleep(pause * random.uniform(0.75, 1.25))
        try:
            await loop.run_in_executor(threads, call)
        except StoreError as error:
            failures += 1
            if worth_telling(failures):
                log.warning("%s failed (%s); it will be tried again", what, error)
        except Exception:
            # Whatever is wrong with it: nobody waits for a chore, so it would end unheard of.
            failures += 1
            if worth_telling(failures):
                log.exception("%s failed; it will be tried again", what)
        else:
            failures = 0
