"""Wide lanes among narrow ones: a lane passed over for too long gathers its units."""

from __future__ import annotations

from typing import Any

from headgate.claim import RESERVATION, RESERVE_AFTER, Block, ClaimState, Grant, Room
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
        if not needs.wide or block.cause not in ("full", "reserved"):
            return
        tx = self._tx
        waited, since = self._state.waited(lane, head, tx.boot)
        if any(self._room.group(need.group).reserved_for == lane for need in needs):
            self._renew(lane)
        elif waited >= RESERVE_AFTER and self._others_passed(
            block.group, where, tx.now - (tx.boot - since)
        ):
            self._reserve(lane, needs, job)

    def _others_passed(self, group: str, where: dict[str, Any], since: float) -> bool:
        """Did another lane start in that group while this one waited? If not, the group is
        merely busy, and a reservation would only leave units idle."""
        params = {**where, "grp": group, "since": since}
        return self._tx.row(Q.others_granted_since, params) is not None

    def _renew(self, lane: str) -> None:
        tx = self._tx
        params = {
            "lane": lane,
            "ends": tx.boot + RESERVATION,
            "worth": tx.boot + RESERVATION / 2,
            "boot_id": tx.boot_id,
        }
        tx.run(Q.renew_reservation, params)

    def _reserve(self, lane: str, needs: Needs, job: int) -> None:
        """All groups at once, in order of sequence: who came earlier keeps its reservation,
        who came later gives it up whole, so that two never wait for each other's half."""
        tx = self._tx
        wanted = self._room.to_reserve(needs)
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

    def served(self, lane: str, grant: Grant) -> None:
        self._state.passed_over.pop(lane, None)
        if any(self._room.group(slot.group).reserved_for == lane for slot in grant.slots):
            self._drop(lane)

    def _drop(self, lane: str) -> None:
        self._tx.run(Q.unreserve, {"lane": lane})
        self._room.forget_reservation(lane)
