"""The lines of ready jobs there are at all, and the lanes in them."""

from __future__ import annotations

from headgate.choice import Lines
from headgate.stores.relational.transaction import Transaction

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
    where = {"queue": queue, "priority": priority, "band": band}
    whole = {"turn": "", "lane": "", "fresh": 1, "last": KEY_END, "limit": LANES, "counted": 0}
    return [(row["turn"], row["lane"]) for row in tx.rows(tx.sql.watch.lanes, {**where, **whole})]
