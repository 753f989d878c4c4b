"""A competing transaction, held open for as long as a test likes; and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg

from headgate.stores.postgres.parameters import named
from headgate.stores.postgres.url import parse
from tests.waiting import PATIENCE, wait_until

T = TypeVar("T")


class Rival:
    """A connection of its own. It is in a transaction from its first statement on."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.schema = address.schema
        self._connection = psycopg.connect(address.conninfo)

    def run(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(named(sql, self.schema).encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *params: Any) -> Any:
        return self.run(sql, *params)[0][0]

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()

    def lock(self, *names: str) -> None:
        """The locks of these names, as a grant takes them."""
        self.run("SELECT headgate.lock(%s)", list(names))

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Waiter(Generic[T]):
    """A call in a thread of its own, which is expected to wait for a rival."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def result(self, patience: float = PATIENCE) -> T:
        self._thread.join(patience)
        assert not self._thread.is_alive(), "it still waits"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


def until_blocked(watch: Rival, count: int = 1) -> None:
    """Until so many sessions wait for a lock on something of this schema, or an advisory one."""

    def blocked() -> int:
        found = watch.value(
            "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid IN"
            " (SELECT pid FROM pg_stat_activity WHERE query LIKE %s)",
            f"%{watch.schema}.%",
        )
        watch.rollback()
        return found

    wait_until(lambda: blocked() >= count, why=f"{count} sessions wait for a lock")
