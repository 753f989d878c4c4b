"""Looking through the line: turn by turn, round the lanes of each, in bounded steps.

A `Scan` is one queue and priority as far as a claim looks at it; a `Feed` is one turn of it,
a `Lane` the jobs that need exactly the same. All of it lives for one claim, inside its
transaction.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.claim import PARTIAL, Block
from headgate.limits import Band, Needs, needs_of
from headgate.stores.sqlite import moves
from headgate.stores.sqlite.database import Row, Transaction
from headgate.stores.sqlite.events import record
from headgate.stores.sqlite.queries import Queries

if TYPE_CHECKING:
    from headgate.stores.sqlite.claiming import Claimer

Q = Queries("claim")

LANES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class LaneKey:
    """Where a lane stands in `ready`."""

    queue: str
    priority: int
    band: str
    turn: str
    lane: str

    @property
    def text(self) -> str:
        return "\x1f".join((self.queue, str(self.priority), self.band, self.turn, self.lane))

    def params(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "priority": self.priority,
            "band": self.band,
            "turn": self.turn,
            "lane": self.lane,
        }


class Scan:
    """The turns of one queue and priority, as far as this claim looks at them."""

    def __init__(self, claimer: Claimer, queue: str, priority: int, *, aged: bool) -> None:
        self.claimer = claimer
        self.tx = claimer.tx
        self.queue = queue
        self.priority = priority
        self.not_after = self.tx.now - (claimer.claim.ageing or 0.0) if aged else None
        self.rotation = claimer.claim.state.rotation(queue, priority)
        if not claimer.claim.state.unfinished:
            self.rotation.barren_from = None
        self.bands = self._open_bands()
        self.bands_of: dict[str, list[str]] = {}
        """The open bands that hold a turn of the window."""
        self.circle: list[str] = []
        """The turns looked at, in the order of the circle."""
        self.window: list[str] = []
        """The circle's turns that may still have something, and those owed a turn."""
        self.line: deque[str] = deque()
        self.tried: set[str] = set()
        self.feeds: dict[str, Feed] = {}
        self.complete = False
        """The window holds all turns there are: further rounds need no further look."""
        self.progress = False
        self.given = 0
        self.over = not self.bands

    def _where(self, **more: Any) -> dict[str, Any]:
        return {"queue": self.queue, "priority": self.priority, **more}

    def _open_bands(self) -> list[str]:
        """The bands worth entering: tasks known here, limits not shut as a whole."""
        open_bands: list[str] = []
        for text in self.claimer.lines[self.queue][self.priority]:
            band = Band.parse(text)
            if band.task not in self.claimer.claim.tasks:
                self.claimer.leaves_some = True
                continue
            block = self.claimer.room.blocks_band(band)
            if block is None:
                open_bands.append(text)
            elif band.wide:
                self._note_head_of(text, block)
        return open_bands

    def _note_head_of(self, band: str, block: Block) -> None:
        """A shut band whose jobs are wide: remember how long its first lane waits."""
        head = self.tx.row(Q.first_of_band, self._where(band=band))
        if head is not None:
            key = LaneKey(self.queue, self.priority, band, head["turn"], head["lane"])
            needs = needs_of(band, head["lane"])
            self.claimer.reserver.passed_over(
                key.text, key.params(), needs, block, head["place"], head["job"]
            )

    def take(self, wanted: int) -> int:
        got = 0
        while got < wanted and not self.over:
            if not self.line and not self._next_round(wanted - got):
                self.over = True
                break
            if self.claimer.hops <= 0:
                break
            turn = self.line[0]
            feed = self._feed(turn, wanted - got)
            self.tried.add(turn)
            weight = self._weight(turn)
            if self.complete and len(self.window) == 1:
                weight = wanted  # nobody else waits for a turn
            if self.given < weight and feed.take_one():
                got += 1
                self.given += 1
                self.progress = True
                self.rotation.barren_from = None
            elif self.claimer.hops <= 0 and not feed.exhausted:
                # The budget ended among the lanes of this turn: the next claim goes on with
                # it, after the last lane looked at.
                self.tried.discard(turn)
                break
            else:
                self.line.popleft()
                self.given = 0
        return got

    def _weight(self, turn: str) -> int:
        return max(1, self.claimer.claim.weights.get(turn, 1))

    def settle(self) -> None:
        self.rotation.settle(self.circle, self.tried)
        self.tried = set()

    def end(self) -> None:
        """The claim is over: a turn that has not had all its weight goes on in the next."""
        turn = self.line[0] if self.line else None
        if turn is not None and 0 < self.given < self._weight(turn):
            self.rotation.under_way = (turn, self.given)
            self.tried.discard(turn)
        self.settle()

    def _feed(self, turn: str, wanted: int) -> Feed:
        feed = self.feeds.get(turn)
        if feed is None:
            ahead = max(1, wanted // max(1, len(self.window)))
            feed = self.feeds[turn] = Feed(self, turn, ahead)
        return feed

    # --- rounds ---------------------------------------------------------------------------

    def _next_round(self, wanted: int) -> bool:
        if self.complete:
            if not self.progress:
                return False
            self.settle()
            self.window = [turn for turn in self.window if not self.feeds[turn].exhausted]
        elif not self._next_window(wanted):
            return False
        self.progress = False
        claimer = self.claimer
        self.line = deque(
            self.rotation.line_up(self.window, claimer.running, claimer.claim.weights)
        )
        under_way, self.rotation.under_way = self.rotation.under_way, None
        if under_way is not None and self.line and self.line[0] == under_way[0]:
            self.given = under_way[1]
        return bool(self.line)

    def _next_window(self, wanted: int) -> bool:
        """The next turns after the cursor, over all open bands, wrapping round."""
        size = min(max(8, wanted + 8), 128)
        self.settle()
        self.bands_of = {}
        cursor = self.rotation.cursor
        if cursor is None:
            window, cut = self._turns(size, after=None, upto=None)
            self.complete = not cut
            start = random.randrange(len(window)) if window else 0  # noqa: S311 - no secret
            window = window[start:] + window[:start] if self.complete else window[start:]
        else:
            window, cut = self._turns(size, after=cursor, upto=None)
            if not cut:
                rest, cut = self._turns(size - len(window), after=None, upto=cursor)
                window += rest
                self.complete = not cut
        barren_from = self.rotation.barren_from
        if barren_from in window and not self.complete:
            # Round the whole circle, from claim to claim, without a start: stop asking.
            window, self.complete = window[: window.index(barren_from)], True
        elif barren_from is None and window:
            self.rotation.barren_from = window[0]
        self.circle = window
        self.window = [*(t for t in list(self.rotation.owed) if self._bring_back(t)), *window]
        return bool(self.window)

    def _turns(self, size: int, after: str | None, upto: str | None) -> tuple[list[str], bool]:
        """The next turns over all open bands, merged, so that a key has one turn however
        many bands it uses; and whether there are more."""
        if size <= 0:
            return [], True
        each = size if len(self.bands) <= 4 else max(8, 2 * size // len(self.bands))
        found: dict[str, list[str]] = {}
        bound: str | None = None
        for band in self.bands:
            sql = Q.turns_from_start if after is None else Q.turns_after
            rows = self.tx.rows(sql, self._where(band=band, after=after, limit=each))
            turns = [row["turn"] for row in rows if upto is None or row["turn"] <= upto]
            self.claimer.hops -= len(rows)
            if len(turns) == each:
                bound = turns[-1] if bound is None else min(bound, turns[-1])
            for turn in turns:
                found.setdefault(turn, []).append(band)
        # A band cut short says nothing of what follows its last turn: stop there, or turns
        # of that band would be passed by.
        known = [turn for turn in sorted(found) if bound is None or turn <= bound]
        for turn in known[:size]:
            self.bands_of[turn] = found[turn]
        return known[:size], bound is not None or len(known) > size

    def _bring_back(self, turn: str) -> bool:
        """A turn is owed and stands outside the window: is there still something in it?"""
        if turn in self.bands_of:
            return False
        self.claimer.hops -= len(self.bands)
        bands = [
            band
            for band in self.bands
            if self.tx.row(Q.has_turn, self._where(band=band, turn=turn)) is not None
        ]
        if bands:
            self.bands_of[turn] = bands
        else:
            self.rotation.forget(turn)
        return bool(bands)


class Feed:
    """The jobs of one turn: round its lanes, in each by place."""

    def __init__(self, scan: Scan, turn: str, ahead: int) -> None:
        self.scan = scan
        self.turn = turn
        self.ahead = ahead
        self.exhausted = False
        self._fresh = self._lanes()
        self._open: deque[Lane] = deque()

    def take_one(self) -> bool:
        while self.scan.claimer.hops > 0 and (lane := next(self._fresh, None)) is not None:
            self.scan.rotation.remember_lane(self.turn, lane.key.band, lane.key.lane)
            if lane.take_one():
                self._open.append(lane)
                return True
        while self._open:
            lane = self._open.popleft()
            if lane.take_one():
                self._open.append(lane)
                return True
        self.exhausted = self.scan.claimer.hops > 0
        return False

    def _lanes(self) -> Iterator[Lane]:
        """Every lane of the turn once, beginning after the one served last."""
        bands = self.scan.bands_of[self.turn]
        last = self.scan.rotation.lanes.get(self.turn)
        if last is None or last[0] not in bands:
            for band in bands:
                yield from self._range(band, None, None)
            return
        i = bands.index(last[0])
        yield from self._range(last[0], last[1], None)
        for band in bands[i + 1 :] + bands[:i]:
            yield from self._range(band, None, None)
        yield from self._range(last[0], None, last[1])

    def _range(self, band: str, after: str | None, upto: str | None) -> Iterator[Lane]:
        scan = self.scan
        shut = self._own_group_shut(Band.parse(band))
        while True:
            sql = Q.lanes_from_start if after is None else Q.lanes_after
            params = scan._where(band=band, turn=self.turn, after=after, limit=LANES_AT_ONCE)
            rows = scan.tx.rows(sql, params)
            for row in rows:
                scan.claimer.hops -= 1
                if upto is not None and row["lane"] > upto:
                    return
                yield Lane(self, LaneKey(scan.queue, scan.priority, band, self.turn, row["lane"]))
                if shut:  # one look, so that a wide lane's wait is noticed, and no more
                    return
            if len(rows) < LANES_AT_ONCE:
                return
            after = rows[-1]["lane"]

    def _own_group_shut(self, band: Band) -> bool:
        """Where the turn is the key of one of the band's limits and that group is full, all
        lanes of the turn are blocked, however many they are."""
        for name, _, units in band.all:
            if name and name == band.fair_limit:
                group = self.scan.claimer.room.group(f"{name}/{self.turn}")
                return group.refuses(units) not in PARTIAL
        return False


class Lane:
    """The ready jobs that need exactly the same, in order."""

    def __init__(self, feed: Feed, key: LaneKey) -> None:
        self.feed = feed
        self.key = key
        self.text = key.text
        self.needs: Needs = needs_of(key.band, key.lane)
        self.spread = Band.parse(key.band).task in feed.scan.claimer.claim.spread
        self._rows: deque[Row] = deque()
        self._after = -1
        self._dry = False

    def take_one(self) -> bool:
        claimer = self.feed.scan.claimer
        plan = claimer.room.plan(self.needs, self.text, spread=self.spread)
        if isinstance(plan, Block):
            if plan.cause == "share":
                claimer.shared = True
            if self.needs.wide and (head := self._head()) is not None:
                claimer.reserver.passed_over(
                    self.text, self.key.params(), self.needs, plan, head["place"], head["job"]
                )
            return False
        row = self._head()
        not_after = self.feed.scan.not_after
        if row is None or (not_after is not None and row["since"] > not_after):
            return False
        self._rows.popleft()
        self.feed.scan.rotation.remember_lane(self.key.turn, self.key.band, self.key.lane)
        leave_line(self.feed.scan.tx, self.key, row)  # no later look of this claim finds it
        grant = claimer.room.grant(plan, len(self.needs.all))
        if self.needs.wide:
            claimer.reserver.served(self.text, self.needs)
        claimer.taken.append((self.key, row, grant))
        claimer.running[self.key.turn] += 1
        return True

    def _head(self) -> Row | None:
        """The next job of the lane that has not expired."""
        tx = self.feed.scan.tx
        while True:
            while self._rows:
                row = self._rows[0]
                expires_at = row["expires_at"]
                if expires_at is None or expires_at > tx.now or row["attempt"]:
                    return row
                self._rows.popleft()
                expire(tx, self.key, row)
            if self._dry:
                return None
            limit = min(self.feed.ahead, 64)
            params = {**self.key.params(), "after": self._after, "limit": limit}
            rows = tx.rows(Q.heads, params)
            self._dry = len(rows) < limit
            if rows:
                self._after = rows[-1]["place"]
            self._rows.extend(rows)


def leave_line(tx: Transaction, key: LaneKey, row: Row) -> None:
    place = (key.queue, key.priority, key.band, key.turn, key.lane, row["place"])
    tx.run(Q.delete_ready, place)


def expire(tx: Transaction, key: LaneKey, row: Row) -> None:
    leave_line(tx, key, row)
    tx.run("DELETE FROM reservations WHERE job = ?", (row["job"],))
    moves.conclude(tx, row["job"], "cancelled", "expired", attempt=row["attempt"])
    record(tx, "job_expired", row["id"])
