"""What a store sends to its server, watched."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.stores.postgres.database import Database


class Sent:
    """The statements of round trips, as they are sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        for name in ("call", "call_two", "value"):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Database, name)

        def watched(database: Database, sql: str, *rest: Any) -> Any:
            self.texts.append(sql)
            return real(database, sql, *rest)

        monkeypatch.setattr(Database, name, watched)

    def take(self) -> list[str]:
        texts, self.texts = self.texts, []
        return texts
