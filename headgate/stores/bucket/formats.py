"""Ledgers of older formats, and how they become one of this."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import FORMAT, format_of, new_nonce, refused
from headgate.stores.bucket.objects import Lost, Objects
from headgate.stores.bucket.patience import patiently
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.url import parse

Step = Callable[[Objects, Layout, dict[str, Any]], dict[str, Any]]

STEPS: dict[int, Step] = {}
"""By the format they start from: the JSON of a ledger becomes that of the next format. What it
names may be written anew before, by other names; the old is deleted later, as nobody names it.
There is no older format than the first, so there is no step yet."""


def migrate(url: str) -> tuple[int, int]:
    """Have a ledger of this format there; the format before (0: there was none), and now."""
    from headgate.stores import open_store

    address = parse(url)
    objects = S3(address)
    try:
        before = upgrade(objects, Layout(address.prefix), address.shown)
    finally:
        objects.close()
    if before == 0:
        open_store(url).close()
    return before, FORMAT


def upgrade(objects: Objects, layout: Layout, where: str) -> int:
    """The format that the ledger had; 0: there is none."""
    while True:
        got = patiently(lambda: objects.get(layout.ledger))
        if got is None:
            return 0
        before = format_of(got.body, where)
        if before == FORMAT:
            return before
        if before > FORMAT or any(number not in STEPS for number in range(before, FORMAT)):
            raise refused(before, where)
        ledger: dict[str, Any] = msgspec.json.decode(got.body)
        for number in range(before, FORMAT):
            ledger = {**STEPS[number](objects, layout, ledger), "format": number + 1}
        # Programs of the old version lose the race for their next write, read this, and stop: they
        # do not know its format.
        nonce, etag = new_nonce(), got.etag
        ledger["nonces"] = [*ledger["nonces"], nonce]
        body = msgspec.json.encode(ledger)
        try:
            patiently(functools.partial(objects.replace, layout.ledger, body, etag))
        except Lost:
            continue  # to somebody who wrote meanwhile, or to ourselves: the next look tells
        return before
