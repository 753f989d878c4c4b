"""What a store sends to its server, watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from headgate.stores.postgres.connection import Connection, Question
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import Transaction


class Sent:
    """Statements as they are sent: those of round trips, and all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._trips: list[str] = []
        self._all: list[str] = []
        for name in ("call", "value"):
            self._watch(Database, name, self._trips, lambda _, sql, *rest: [sql])
        self._watch(Database, "call_two", self._trips, _both)
        # Where a statement is on its way: in a transaction, or alone.
        for name in ("run", "many", "copy"):
            self._watch(Transaction, name, self._all, lambda _, sql, *rest: [sql])
        self._watch(Transaction, "undo", self._all, lambda _, savepoint: [f"undo {savepoint}"])
        self._watch(Database, "_commit", self._all, _rings)
        self._watch(Database, "call", self._all, _alone)
        self._watch(Connection, "ask", self._all, _questions)

    def _watch(
        self, owner: type, name: str, noted: list[str], texts: Callable[..., Iterable[str]]
    ) -> None:
        real = getattr(owner, name)

        def watched(self: Any, *args: Any) -> Any:
            noted.extend(texts(self, *args))
            return real(self, *args)

        self._patch.setattr(owner, name, watched)

    def take(self) -> list[str]:
        """The round trips that are not part of a longer transaction, since this was last asked:
        each is one text, though it may be two statements."""
        trips = list(self._trips)
        self._forget()
        return trips

    def take_all(self) -> list[str]:
        """Every statement since then, and every bell that was rung behind a commit."""
        statements = list(self._all)
        self._forget()
        return statements

    def _forget(self) -> None:
        self._trips.clear()
        self._all.clear()


def _both(_: Database, sql: str, params: Any, behind: tuple[str, Any] | None) -> list[str]:
    return [sql if behind is None else f"{sql};\n{behind[0]}"]


def _alone(database: Database, sql: str, *_: Any) -> list[str]:
    """What is not sent in a transaction, where it would be seen."""
    return [] if database.pool.pooled or database.clock is not None else [sql]


def _questions(_: Connection, questions: Sequence[Question]) -> list[str]:
    return [text.decode() for text, _ in questions]


def _rings(_: Database, connection: Connection, rings: Iterable[str]) -> list[str]:
    return [f"ring {what}" for what in sorted(rings)]
