"""Does the server keep what conditional writes promise? Some take the condition and ignore it: then
two writers would both believe that they were first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headgate.errors import StoreUnavailable
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import new_nonce
from headgate.stores.bucket.objects import UNCHANGED, Lost, Objects
from headgate.stores.bucket.patience import patiently

RACERS = 4
AGAIN = 86400.0
"""Seconds for which a machine believes what it found."""


def check(objects: Objects, layout: Layout, folder: Path, where: str) -> None:
    """Refuse a server on which limits would not hold."""
    mark = folder / "probed"
    if mark.exists() and 0 <= time.time() - mark.stat().st_mtime < AGAIN:
        return
    key = f"{layout.probes}{new_nonce()}.json"
    try:
        _race(objects, key, where)
    finally:
        # Once is enough: what is left of it hurts nobody, and who cannot reach the server shall
        # be told of that, and soon.
        with suppress(StoreUnavailable):
            objects.delete(key)
    mark.touch()


def _race(objects: Objects, key: str, where: str) -> None:
    bodies = [f'{{"probe": {i}, "nonce": "{new_nonce()}"}}'.encode() for i in range(RACERS)]
    created = _winners([lambda body=body: objects.create(key, body) for body in bodies])
    got = patiently(lambda: objects.get(key))
    if got is None or not _one_won(created, bodies, got.body):
        raise _refused(where, f"{len(created)} of {RACERS} that created one object at once won")
    etag = got.etag
    if patiently(lambda: objects.get(key, etag)) is not UNCHANGED:
        raise _refused(where, "it sends an object again to who has it (If-None-Match)")
    later = [body + b" " for body in bodies]
    replaced = _winners([lambda body=body: objects.replace(key, body, etag) for body in later])
    got = patiently(lambda: objects.get(key))
    if got is None or not _one_won(replaced, later, got.body):
        raise _refused(where, f"{len(replaced)} of {RACERS} that replaced one object at once won")


def _one_won(winners: list[int], bodies: list[bytes], found: bytes) -> bool:
    if not winners:
        # The winner's answer was lost, and its second try refused because of its first.
        return found in bodies
    return len(winners) == 1 and found == bodies[winners[0]]


def _winners(writes: list[Callable[[], str]]) -> list[int]:
    won: list[int] = []
    failed: list[BaseException] = []

    def write(i: int) -> None:
        try:
            patiently(writes[i])
            won.append(i)
        except Lost:
            return
        # Told by who started the thread, which nobody else would hear of.
        except Exception as error:
            failed.append(error)

    racers = [threading.Thread(target=write, args=(i,)) for i in range(len(writes))]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    if failed:
        raise failed[0]
    return won


def _refused(where: str, what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{where}: this server cannot be used: {what}. It ignores the conditions of writes"
        " (If-Match, If-None-Match), so two workers would both get the last free slot. Use AWS S3,"
        " or a server that keeps them (SeaweedFS, MinIO and Ceph of 2025 or later do)"
    )
