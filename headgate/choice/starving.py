"""Wide lanes among narrow ones: a lane passed over for too long gathers its units."""

from __future__ import annotations

from headgate.choice.line import LaneKey, Line
from headgate.claim import RESERVE_AFTER, Block, Room
from headgate.limits import Needs
from headgate.turns import ClaimState


class Reserver:
    """Notes within one claim which wide lanes wait, and reserves for those that starve."""

    def __init__(self, line: Line, room: Room, state: ClaimState) -> None:
        self._line = line
        self._room = room
        self._state = state

    def passed_over(self, key: LaneKey, needs: Needs, block: Block, head: int, job: int) -> None:
        """A wide lane was met and could not be served."""
        if not needs.wide or block.cause == "share":
            return
        rates = self._room.rated([block.group])
        # What comes with time alone comes by itself, to one unit at a time: only who needs more
        # must gather.
        if rates and all(n.units == 1 for n in needs if n.group == block.group):
            return
        line, lane = self._line, key.text
        reserved = self._has(lane, needs)
        waited, since = self._state.waited(lane, head, line.boot)
        if not reserved and waited < RESERVE_AFTER:
            return
        wanted = self._room.to_reserve(needs, lane, rates=rates)
        if not wanted:
            self.served(key, needs)
        elif reserved:
            line.reserving.renew(lane)
        elif self._others_passed(key, wanted, line.now - (line.boot - since)):
            line.reserving.reserve(lane, wanted, job)

    def served(self, key: LaneKey, needs: Needs) -> None:
        """It starts, perhaps through another member of a one-of than the one it reserved; or
        it cannot start whatever is gathered. It waits for units no longer."""
        lane = key.text
        self._state.passed_over.pop(lane, None)
        if self._has(lane, needs):
            self._line.reserving.drop(lane)

    def _has(self, lane: str, needs: Needs) -> bool:
        return any(self._room.group(need.group).reserved_for == lane for need in needs)

    def _others_passed(self, key: LaneKey, wanted: list[tuple[str, int]], since: float) -> bool:
        """Did others start in a group that blocks this lane while it waited? If not, the group
        is merely busy, and a reservation would only leave units idle."""
        return any(
            self._room.group(group).refuses(units, key.text) is not None
            and self._line.others_granted(group, key, since)
            for group, units in wanted
        )
