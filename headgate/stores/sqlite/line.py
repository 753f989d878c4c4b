"""The line of ready jobs as SQLite shows it to a claim, inside its write transaction.

What was read therefore stays true until the grants are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.choice import LaneKey
from headgate.choice import Row as ReadyRow
from headgate.claim import Group
from headgate.limits import Need
from headgate.stores.relational import moves
from headgate.stores.relational.events import record
from headgate.stores.relational.lines import list_lines
from headgate.stores.relational.reserving import Reservations
from headgate.stores.relational.values import Values
from headgate.stores.sqlite.queries import Queries
from headgate.stores.sqlite.transaction import Row, Transaction

Q = Queries("claim")

REFUSED_FOR = 1.0
"""Seconds for which a worker's mark on a group counts; it sets it anew while it waits."""


class TransactionLine:
    """Looks at the tables themselves, each time it is asked."""

    def __init__(
        self,
        tx: Transaction,
        worker: str,
        values: Values,
        *,
        paused_queues: bool = True,
        marks: bool = True,
    ) -> None:
        self._tx = tx
        self._worker = worker
        self._values = values
        self._some_paused = paused_queues
        self._marks = marks
        """Has any worker left its mark on a group?"""
        self._groups: dict[str, Group] = {}
        self.now = tx.now
        self.boot = tx.boot
        self.lines = list_lines(tx)
        self.reserving = Reservations(tx, self)

    def paused_queues(self) -> set[str]:
        if not self._some_paused:
            return set()
        return {row["name"] for row in self._tx.rows(Q.paused_queues)}

    def turns(
        self, queue: str, priority: int, band: str, after: str | None, limit: int
    ) -> tuple[Sequence[str], bool]:
        sql = Q.turns_from_start if after is None else Q.turns_after
        params = {"queue": queue, "priority": priority, "band": band, "after": after}
        turns = [row["turn"] for row in self._tx.rows(sql, {**params, "limit": limit})]
        return turns, len(turns) == limit

    def has_turn(self, queue: str, priority: int, band: str, turn: str) -> bool:
        params = {"queue": queue, "priority": priority, "band": band, "turn": turn}
        return self._tx.row(Q.has_turn, params) is not None

    def lanes(
        self, queue: str, priority: int, band: str, turn: str, after: str | None, limit: int
    ) -> Sequence[str]:
        sql = Q.lanes_from_start if after is None else Q.lanes_after
        params = {"queue": queue, "priority": priority, "band": band, "turn": turn}
        rows = self._tx.rows(sql, {**params, "after": after, "limit": limit})
        return [row["lane"] for row in rows]

    def heads(self, key: LaneKey, after: int, limit: int) -> tuple[Sequence[Row], bool]:
        rows = self._tx.rows(Q.heads, {**key.params(), "after": after, "limit": limit})
        return rows, len(rows) == limit

    def first_of_band(self, queue: str, priority: int, band: str) -> Row | None:
        params = {"queue": queue, "priority": priority, "band": band}
        return self._tx.row(Q.first_of_band, params)

    def take(
        self, key: LaneKey, rows: Sequence[ReadyRow], plan: Sequence[Need], *, reserved: bool
    ) -> None:
        for row in rows:
            self._leave(key, row)

    def expire(self, key: LaneKey, row: ReadyRow) -> None:
        tx = self._tx
        self._leave(key, row)
        tx.run("DELETE FROM reservations WHERE job = ?", (row["job"],))
        moves.conclude(tx, row["job"], "cancelled", "expired", attempt=row["attempt"])
        record(tx, "job_expired", row["id"])

    def _leave(self, key: LaneKey, row: ReadyRow) -> None:
        place = (key.queue, key.priority, key.band, key.turn, key.lane, row["place"])
        self._tx.run(Q.delete_ready, place)

    def group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._values.group(name)
        return group

    def forget_reservation(self, lane: str) -> None:
        for group in self._groups.values():
            if group.reserved_for == lane:
                group.reserved_for, group.reserved = None, 0

    def load_ahead(self, groups: Iterable[str]) -> None:
        self._values.load_ahead(set(groups))

    def others_granted(self, group: str, key: LaneKey, since: float) -> bool:
        params = {**key.params(), "since": since, "grp": group}
        return self._tx.row(Q.others_granted_since, params) is not None

    def refused_others(self, groups: Iterable[str]) -> set[str]:
        if not self._marks:
            return set()
        params = {"worker": self._worker, "since": self.boot - REFUSED_FOR}
        return set(groups) & {row["grp"] for row in self._tx.rows(Q.refused_others, params)}

    def note_refused(self, groups: Iterable[str]) -> None:
        # Marks of another boot may lie in the future of this one.
        sql = "DELETE FROM refused WHERE at <= ? OR at > ?"
        self._tx.run(sql, (self.boot - REFUSED_FOR, self.boot))
        params = {"worker": self._worker, "at": self.boot, "worth": self.boot - REFUSED_FOR / 2}
        for group in groups:
            self._tx.run(Q.note_refused, {**params, "grp": group})

    def idle_others(self) -> frozenset[str]:
        return frozenset()

    def note_idle(self, group: str) -> None:
        """All are on one machine, or every word is a request: who runs them is all the same."""
