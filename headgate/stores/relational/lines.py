"""The lines of ready jobs there are at all."""

from __future__ import annotations

from headgate.choice import Lines
from headgate.stores.relational.transaction import Transaction


def list_lines(tx: Transaction) -> Lines:
    lines: Lines = {}
    for row in tx.rows(tx.sql.line.bands):
        lines.setdefault(row["queue"], {}).setdefault(row["priority"], []).append(row["band"])
    return lines
