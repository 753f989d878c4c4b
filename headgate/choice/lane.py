"""The jobs of one lane, as a claim meets them: taken, reserved behind others, or passed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.choice.ahead import chain_of, ways
from headgate.choice.line import LaneKey, Row, Taken
from headgate.claim import NOTHING, Block, Grant
from headgate.limits import Band, Need, Needs, needs_of

if TYPE_CHECKING:
    from headgate.choice.scan import Feed


class WaitingLane:
    """The ready jobs that need exactly the same, in order."""

    def __init__(self, feed: Feed, key: LaneKey) -> None:
        self.feed = feed
        self.chooser = feed.scan.chooser
        self.key = key
        self.text = key.text
        self.needs: Needs = needs_of(key.band, key.lane)
        self.task = Band.parse(key.band).task
        self.spread = self.task in self.chooser.claim.spread
        self._ways: list[tuple[str, Sequence[Need]]] | None = None
        self._rows: deque[Row] = deque()
        self._after = -1
        self._dry = False

    def take(self, wanted: int) -> int:
        """How many were taken: at most so many, and one at a time where each takes room."""
        return self._reserve(wanted) if self.feed.scan.ahead else self._grant()

    def _grant(self) -> int:
        chooser = self.chooser
        plan = chooser.room.plan(self.needs, self.text, spread=self.spread)
        if isinstance(plan, Block):
            self._passed_over(plan)
            return 0
        row = self._head()
        not_after = self.feed.scan.not_after
        if row is None or (not_after is not None and row["since"] > not_after):
            return 0
        chooser.line.take(self.key, (row,), plan, reserved=False)
        grant = chooser.room.grant(plan, len(self.needs.all))
        if self.needs.wide:
            chooser.reserver.served(self.key, self.needs)
        held = ((slot.group, slot.units) for slot in grant.slots if slot.given_back)
        chain = chain_of(self.key.queue, held)
        chooser.ahead.granted(chain, self.task)
        self._rows.popleft()
        chooser.taken.append(Taken(self.key, row, grant, chain))
        self._served(1)
        return 1

    def _reserve(self, wanted: int) -> int:
        """Take the next jobs to run behind those that this worker runs, if they may."""
        chooser = self.chooser
        plan = chooser.room.plan(self.needs, self.text)
        seconds = self._seconds()
        if seconds is not None:
            if self._ways is None:
                self._ways = list(ways(self.key.queue, self.needs))
            places = chooser.ahead.room_for(self.key.turn)
            for chain, needs in self._ways:
                room = min(wanted, int(chooser.ahead.left(chain) / seconds), places)
                if room > 0 and (not needs or chooser.may_go_on(needs, plan)):
                    return self._reserve_in(chain, needs, room, seconds)
        may_start = not isinstance(plan, Block) and chooser.may_start(self.key.queue)
        if may_start and self._head() is not None:
            self.feed.waits = True
            chooser.wants_place(chain for chain, _ in ways(self.key.queue, self.needs))
        return 0

    def _seconds(self) -> float | None:
        """How long one takes at most as a rule; None: none of them may be reserved."""
        # A start under a rate is not passed on from job to job: each needs one of its own.
        if self.needs and self.chooser.room.rated(need.group for need in self.needs):
            return None
        return self.chooser.ahead.seconds(self.task)

    def _reserve_in(self, chain: str, needs: Sequence[Need], room: int, seconds: float) -> int:
        picked = tuple(need.group for need in needs[len(self.needs.all) :])
        grant = Grant((), picked) if picked else NOTHING
        line, key, got = self.chooser.line, self.key, 0
        while got < room and self._head() is not None:
            rows = self._take_heads(room - got)
            line.take(key, rows, needs, reserved=True)
            self.chooser.taken += [Taken(key, row, grant, chain, True) for row in rows]
            got += len(rows)
        self.chooser.ahead.spend(chain, self.key.turn, got, seconds)
        self._served(got)
        return got

    def _passed_over(self, block: Block) -> None:
        chooser = self.chooser
        if block.cause == "share":
            chooser.shared = True
            return
        chooser.held_up((need.group, need.units) for need in self.needs)
        if block.cause in ("full", "reserved"):
            chains = (chain for chain, _ in ways(self.key.queue, self.needs))
            chooser.ahead.found_waiting(block.group, chains)
        if not self.needs.wide and not (chooser.watching and block.cause == "full"):
            return
        if (head := self._head()) is not None:
            chooser.watch(self.key, block, head)
            chooser.reserver.passed_over(self.key, self.needs, block, head["place"], head["job"])

    def _served(self, jobs: int) -> None:
        if jobs:
            if not self.feed.waits:
                rotation = self.feed.scan.rotation
                rotation.remember_lane(self.key.turn, self.key.band, self.key.lane)
            self.chooser.running[self.key.turn] += jobs

    def _take_heads(self, most: int) -> list[Row]:
        """The head, and what follows it here and never expires; up to so many."""
        rows = self._rows
        found = [rows.popleft()]
        while len(found) < most and rows and rows[0]["expires_at"] is None:
            found.append(rows.popleft())
        return found

    def _head(self) -> Row | None:
        """The next job of the lane that has not expired."""
        line = self.chooser.line
        while True:
            while self._rows:
                row = self._rows[0]
                expires_at = row["expires_at"]
                if expires_at is None or expires_at > line.now or row["attempt"]:
                    return row
                self._rows.popleft()
                line.expire(self.key, row)
            if self._dry:
                return None
            rows, more = line.heads(self.key, self._after, min(self.feed.ahead, 64))
            self._dry = not more
            if rows:
                self._after = rows[-1]["place"]
            self._rows.extend(rows)
