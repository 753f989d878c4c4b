"""Wide lanes among narrow ones: a lane passed over for too long gathers its units."""

from __future__ import annotations

from typing import Any

from headgate.claim import RESERVATION, RESERVE_AFTER, Block, ClaimState, Room
from headgate.limits import Needs
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.queries import Queries

Q = Queries("claim")


class Reservations:
    """The reservations as one transaction sees and changes them."""

    def __init__(self, tx: Transaction, room: Room, *, seconds: float = RESERVATION) -> None:
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
        tx.run(Q.renew_reservation, params)

    def reserve(self, lane: str, wanted: list[tuple[str, int]], place: int) -> None:
        """All groups at once, in order of sequence: who came earlier keeps its reservation,
        who came later gives it up whole, so that two never wait for each other's half."""
        tx = self._tx
        boot = {"boot": tx.boot, "boot_id": tx.boot_id}
        others = [
            row
            for group, _ in wanted
            for row in tx.rows(Q.reserved_by_others, {"grp": group, "lane": lane, **boot})
        ]
        if any(row["job"] < place for row in others):
            return
        for row in others:
            self._delete(row["lane"])
        for group, units in wanted:
            tx.run(
                Q.reserve,
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

    def drop(self, lane: str, needs: Needs) -> None:
        if self.has(lane, needs):
            self._delete(lane)

    def _delete(self, lane: str) -> None:
        self._tx.run(Q.unreserve, {"lane": lane})
        self._room.forget_reservation(lane)


class Reserver:
    """Notes within one claim which wide lanes wait, and reserves for those that starve."""

    def __init__(self, tx: Transaction, room: Room, state: ClaimState) -> None:
        self._tx = tx
        self._room = room
        self._state = state
        self._reservations = Reservations(tx, room)

    def passed_over(
        self, lane: str, where: dict[str, Any], needs: Needs, block: Block, head: int, job: int
    ) -> None:
        """A wide lane was met and could not be served."""
        if not needs.wide or block.cause == "share":
            return
        tx = self._tx
        reserved = self._reservations.has(lane, needs)
        waited, since = self._state.waited(lane, head, tx.boot)
        if not reserved and waited < RESERVE_AFTER:
            return
        wanted = self._room.to_reserve(needs, lane)
        if not wanted:
            self.served(lane, needs)
        elif reserved:
            self._reservations.renew(lane)
        elif self._others_passed(lane, wanted, where, tx.now - (tx.boot - since)):
            self._reservations.reserve(lane, wanted, job)

    def served(self, lane: str, needs: Needs) -> None:
        """It starts, perhaps through another member of a one-of than the one it reserved; or
        it cannot start whatever is gathered. It waits for units no longer."""
        self._state.passed_over.pop(lane, None)
        self._reservations.drop(lane, needs)

    def _others_passed(
        self, lane: str, wanted: list[tuple[str, int]], where: dict[str, Any], since: float
    ) -> bool:
        """Did others start in a group that blocks this lane while it waited? If not, the group
        is merely busy, and a reservation would only leave units idle."""
        params = {**where, "since": since}
        return any(
            self._room.group(group).refuses(units, lane) is not None
            and self._tx.row(Q.others_granted_since, {**params, "grp": group}) is not None
            for group, units in wanted
        )
