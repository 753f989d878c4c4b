"""The lines of ready jobs there are at all, and the lanes in them."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.choice import Lines
from headgate.stores.relational.transaction import Row, Transaction

KEY_END = "\U0010ffff"
"""Behind every key there is."""
LANES = 1000
"""So many lanes of one band are looked at."""


def list_lines(tx: Transaction) -> Lines:
    lines: Lines = {}
    for row in tx.rows(tx.sql.line.bands):
        lines.setdefault(row["queue"], {}).setdefault(row["priority"], []).append(row["band"])
    return lines


def list_lanes(tx: Transaction, queue: str, priority: int, band: str) -> list[tuple[str, str]]:
    """The first lanes of a band, each by its turn and its name, however many jobs stand in it."""
    return [(row["turn"], row["lane"]) for row in list_heads(tx, queue, priority, band, LANES)]


def list_heads(tx: Transaction, queue: str, priority: int, band: str, limit: int) -> Sequence[Row]:
    """The first lanes of a band, by `turn` and `lane`, with the first job of each: its `id`, and
    `since` when it is ready."""
    where = {"queue": queue, "priority": priority, "band": band}
    whole = {"turn": "", "lane": "", "fresh": 1, "last": KEY_END, "limit": limit, "counted": 0}
    return tx.rows(tx.sql.watch.lanes, {**where, **whole})
