"""What the server counted: statements, rows and time of a store's database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from bench.place import Connection, direct

DATABASE = """
    SELECT xact_commit, tup_inserted + tup_updated + tup_deleted, tup_fetched, blks_hit + blks_read
    FROM pg_stat_database WHERE datname = current_database()
"""
FUNCTIONS = """
    SELECT coalesce(sum(calls) FILTER (WHERE funcname = 'act'), 0),
           coalesce(sum(calls) FILTER (WHERE funcname = 'look'), 0),
           coalesce(sum(total_time) FILTER (WHERE funcname IN ('act', 'look')), 0)
    FROM pg_stat_user_functions
"""
STATEMENTS = """
    SELECT coalesce(sum(s.calls), 0), coalesce(sum(s.total_exec_time), 0)
    FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
    WHERE d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Sums since the database was made."""

    transactions: float
    written: float
    read: float
    blocks: float
    acts: float
    looks: float
    milliseconds: float
    """In the functions of a claim; in all statements where the server counts those."""
    statements: float | None

    def since(self, other: Ledger, jobs: int) -> Ledger:
        """What came on top, per job."""

        def each(mine: float, theirs: float) -> float:
            return (mine - theirs) / jobs

        return Ledger(
            each(self.transactions, other.transactions),
            each(self.written, other.written),
            each(self.read, other.read),
            each(self.blocks, other.blocks),
            each(self.acts, other.acts),
            each(self.looks, other.looks),
            each(self.milliseconds, other.milliseconds),
            None if self.statements is None or other.statements is None
            else each(self.statements, other.statements),
        )  # fmt: skip

    @staticmethod
    def titles() -> list[str]:
        return ["statements", "transactions", "rows written", "rows read", "blocks", "server ms"]

    def cells(self) -> list[str]:
        return [
            "–" if self.statements is None else f"{self.statements:.3f}",
            f"{self.transactions:.3f}",
            f"{self.written:.2f}",
            f"{self.read:.2f}",
            f"{self.blocks:.1f}",
            f"{self.milliseconds:.4f}",
        ]


def ledger(url: str) -> Ledger:
    """As of now. A backend tells what it counted when it goes at the latest, so look before
    the workers start and after they have stopped."""
    with direct(url) as connection:
        transactions, written, read, blocks = _numbers(connection, DATABASE)
        acts, looks, milliseconds = _numbers(connection, FUNCTIONS)
        statements = None
        if _counts_statements(connection):
            statements, milliseconds = _numbers(connection, STATEMENTS)
    return Ledger(transactions, written, read, blocks, acts, looks, milliseconds, statements)


def _counts_statements(connection: Connection) -> bool:
    row = connection.execute("SHOW shared_preload_libraries").fetchone()
    if row is None or "pg_stat_statements" not in str(row[0]):
        return False
    connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    return True


def _numbers(connection: Connection, query: LiteralString) -> list[float]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return [float(str(value)) for value in row]
