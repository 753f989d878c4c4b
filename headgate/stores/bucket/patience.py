"""Asking a server again that fails."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from headgate.errors import StoreInDoubt
from headgate.stores.bucket.objects import Lost, Objects, Trouble

T = TypeVar("T")
log = logging.getLogger("headgate.store")

PATIENCE = 20.0
"""Seconds for which a server that fails is asked again."""
TOLD_AFTER = 3
"""A request that fails so many times is worth a word."""


def patiently(request: Callable[[], T]) -> T:
    """With growing, scattered pauses, so that those who were told to slow down do."""
    began, pause, doubt, failures = time.monotonic(), 0.05, False, 0
    while True:
        try:
            return request()
        except Trouble as trouble:
            doubt = doubt or trouble.maybe
            failures += 1
            if time.monotonic() - began > PATIENCE:
                if doubt:
                    raise StoreInDoubt(f"{trouble}; it may have been carried out") from trouble
                raise
            level = logging.WARNING if failures == TOLD_AFTER else logging.DEBUG
            log.log(level, "%s; trying again", trouble)
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, 3.0)


def create(objects: Objects, key: str, body: bytes) -> None:
    """Write an object whose name nobody else gives to another content."""

    def write() -> None:
        try:
            objects.create(key, body)
        except Lost:
            # It is there, an answer was lost; or the server is still at an earlier try of ours
            # (409), which may fail yet: nobody may name it before it is there.
            if objects.get(key) is None:
                raise Trouble(f"{key} was not written, for another write of it") from None

    patiently(write)
