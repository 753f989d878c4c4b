"""What happened, kept for those who look later."""

from __future__ import annotations

import json
from typing import Any

from headgate.stores.protocol import EventRecord
from headgate.stores.sqlite.database import Transaction

_RECORD = "INSERT INTO events (at, kind, subject, who, data) VALUES (?, ?, ?, ?, ?)"
_LAST = "SELECT * FROM events WHERE :kind IS NULL OR kind = :kind ORDER BY seq DESC LIMIT :limit"


def record(tx: Transaction, kind: str, subject: str, who: str = "", **data: Any) -> None:
    tx.run(_RECORD, (tx.now, kind, subject, who, json.dumps(data, ensure_ascii=False)))


def last(tx: Transaction, kind: str | None, limit: int) -> list[EventRecord]:
    return [
        EventRecord(
            row["seq"], row["at"], row["kind"], row["subject"], row["who"], json.loads(row["data"])
        )
        for row in tx.rows(_LAST, {"kind": kind, "limit": limit})
    ]
