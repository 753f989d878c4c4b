"""A transaction on a relational database, as the shared operations use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from headgate.jobs import NewJob
from headgate.stores.relational.queries import Sql

Params = Mapping[str, Any] | Sequence[Any]


class Row(Protocol):
    """A row, by the names of its columns."""

    def __getitem__(self, column: str, /) -> Any: ...


class Ran(Protocol):
    """What a statement did."""

    @property
    def rowcount(self) -> int: ...


class Transaction(Protocol):
    """It happens whole or not at all.

    In a dialect where one writer at a time is alone, what it reads stays true until its
    commit. In one where many write at once, the statements say what they lock, and the
    operations look at what their writes have hit: both are written the same way here.
    """

    @property
    def sql(self) -> Sql:
        """The statements of the dialect."""
        ...

    @property
    def now(self) -> float:
        """The store's time."""
        ...

    @property
    def boot(self) -> float:
        """The clock by which slots end; it never jumps."""
        ...

    @property
    def boot_id(self) -> str:
        """Of what run of that clock: an end noted in another one has passed."""
        ...

    @property
    def writes(self) -> bool: ...

    @property
    def freed(self) -> Counter[str]:
        """Units that groups have more than before: somebody may be waiting for them."""
        ...

    def run(self, sql: str, params: Params = ()) -> Ran: ...
    def many(self, sql: str, rows: Iterable[Params]) -> object: ...
    def row(self, sql: str, params: Params = ()) -> Row | None: ...
    def rows(self, sql: str, params: Params = ()) -> Sequence[Row]: ...
    def value(self, sql: str, params: Params = ()) -> Any: ...

    def numbers(self, sequence: str, count: int) -> Sequence[int]:
        """New numbers of `place` or `token`, each above all that this transaction has seen."""
        ...

    def lock(self, groups: Iterable[str]) -> None:
        """Exclude all others that grant or count units of these groups, until the end.

        Before the first write, and before the statement that reads the sums: what a statement
        sees is as old as its beginning.
        """
        ...

    def undo(self, savepoint: str) -> None:
        """Undo what was done since that savepoint, which stays."""
        ...

    def submit(self, jobs: Sequence[NewJob]) -> object:
        """Store jobs that follow from what this transaction does."""
        ...

    def whole(self, text: str) -> str:
        """What this cell says, where long texts are kept elsewhere."""
        ...

    def ring(self, *what: str) -> None:
        """Ring these bells once the transaction is committed."""
        ...
