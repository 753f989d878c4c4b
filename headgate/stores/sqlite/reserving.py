"""Wide lanes among narrow ones: a lane passed over for too long gathers its units."""

from __future__ import annotations

from typing import Any

from headgate.claim import RESERVATION, RESERVE_AFTER, Block, ClaimState, Room
from headgate.limits import Needs
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.queries import Queries

Q = Queries("claim")


class Reserver:
    """Keeps the reservations within one claim."""

    def __init__(self, tx: Transaction, room: Room, state: ClaimState) -> None:
        self._tx = tx
        self._room = room
        self._state = state

    def passed_over(
        self, lane: str, where: dict[str, Any], needs: Needs, block: Block, head: int, job: int
    ) -> None:
        """A wide lane was met and could not be served."""
        if not needs.wide or block.cause == "share":
            return
        tx = self._tx
        reserved = self._has_reserved(lane, needs)
        waited, since = self._state.waited(lane, head, tx.boot)
        if not reserved and waited < RESERVE_AFTER:
            return
        wanted = self._room.to_reserve(needs, lane)
        if not wanted:
            self._forget(lane, reserved)
        elif reserved:
            self._renew(lane)
        elif self._others_passed(lane, wanted, where, tx.now - (tx.boot - since)):
            self._reserve(lane, wanted, job)

    def _has_reserved(self, lane: str, needs: Needs) -> bool:
        return any(self._room.group(need.group).reserved_for == lane for need in needs)

    def _forget(self, lane: str, reserved: bool) -> None:
        self._state.passed_over.pop(lane, None)
        if reserved:
            self._drop(lane)

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

    def _renew(self, lane: str) -> None:
        tx = self._tx
        params = {
            "lane": lane,
            "ends": tx.boot + RESERVATION,
            "worth": tx.boot + RESERVATION / 2,
            "boot_id": tx.boot_id,
        }
        tx.run(Q.renew_reservation, params)

    def _reserve(self, lane: str, wanted: list[tuple[str, int]], job: int) -> None:
        """All groups at once, in order of sequence: who came earlier keeps its reservation,
        who came later gives it up whole, so that two never wait for each other's half."""
        tx = self._tx
        boot = {"boot": tx.boot, "boot_id": tx.boot_id}
        others = [
            row
            for group, _ in wanted
            for row in tx.rows(Q.reserved_by_others, {"grp": group, "lane": lane, **boot})
        ]
        if any(row["job"] < job for row in others):
            return
        for row in others:
            self._drop(row["lane"])
        for group, units in wanted:
            tx.run(
                Q.reserve,
                {
                    "grp": group,
                    "lane": lane,
                    "job": job,
                    "units": units,
                    "ends": tx.boot + RESERVATION,
                    "boot_id": tx.boot_id,
                },
            )
            state = self._room.group(group)
            state.reserved_for, state.reserved = lane, units

    def served(self, lane: str, needs: Needs) -> None:
        """It starts, perhaps through another member of a one-of than the one it reserved."""
        self._forget(lane, self._has_reserved(lane, needs))

    def _drop(self, lane: str) -> None:
        self._tx.run(Q.unreserve, {"lane": lane})
        self._room.forget_reservation(lane)
