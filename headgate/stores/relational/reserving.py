"""The reservations of wide lanes, as one transaction sees and changes them."""

from __future__ import annotations

from typing import Protocol

from headgate.claim import RESERVATION, Group
from headgate.limits import Needs
from headgate.stores.relational.transaction import Transaction


class Groups(Protocol):
    """The groups that a transaction has read: kept up to date with what changes here."""

    def group(self, name: str) -> Group: ...
    def forget_reservation(self, lane: str) -> None: ...


class Reservations:
    def __init__(self, tx: Transaction, room: Groups, *, seconds: float = RESERVATION) -> None:
        self._tx = tx
        self._room = room
        self._seconds = seconds

    def has(self, lane: str, needs: Needs) -> bool:
        return any(self._room.group(need.group).reserved_for == lane for need in needs)

    def renew(self, lane: str) -> None:
        tx = self._tx
        params = {
            "lane": lane,
            "ends": tx.boot + self._seconds,
            "worth": tx.boot + self._seconds / 2,
            "boot_id": tx.boot_id,
        }
        tx.run(tx.sql.reserve.renew_reservation, params)

    def reserve(self, lane: str, wanted: list[tuple[str, int]], place: int) -> None:
        """All groups at once, in order of sequence: who came earlier keeps its reservation,
        who came later gives it up whole, so that two never wait for each other's half."""
        tx = self._tx
        boot = {"boot": tx.boot, "boot_id": tx.boot_id}
        others = [
            row
            for group, _ in wanted
            for row in tx.rows(
                tx.sql.reserve.reserved_by_others, {"grp": group, "lane": lane, **boot}
            )
        ]
        if any(row["job"] < place for row in others):
            return
        for row in others:
            self.drop(row["lane"])
        for group, units in wanted:
            tx.run(
                tx.sql.reserve.reserve,
                {
                    "grp": group,
                    "lane": lane,
                    "job": place,
                    "units": units,
                    "ends": tx.boot + self._seconds,
                    "boot_id": tx.boot_id,
                },
            )
            state = self._room.group(group)
            state.reserved_for, state.reserved = lane, units

    def drop(self, lane: str) -> None:
        self._tx.run(self._tx.sql.reserve.unreserve, {"lane": lane})
        self._room.forget_reservation(lane)
