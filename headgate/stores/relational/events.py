"""What happened, kept for those who look later."""

from __future__ import annotations

import json
from typing import Any

from headgate.stores.protocol import EventRecord
from headgate.stores.relational.transaction import Transaction


def record(tx: Transaction, kind: str, subject: str, who: str = "", **data: Any) -> None:
    text = json.dumps(data, ensure_ascii=False)
    tx.run(tx.sql.events.record, (tx.now, kind, subject, who, text))


def last(
    tx: Transaction, kind: str | None, limit: int, subject: str | None = None
) -> list[EventRecord]:
    return [
        EventRecord(
            row["seq"], row["at"], row["kind"], row["subject"], row["who"], json.loads(row["data"])
        )
        for row in tx.rows(tx.sql.events.last, {"kind": kind, "subject": subject, "limit": limit})
    ]


def forget(tx: Transaction, before: float, limit: int) -> None:
    """What happened before that is not kept any more."""
    tx.run(tx.sql.events.forget, {"before": before, "limit": limit})
