"""Looking through the line: turn by turn, round the lanes of each, in bounded steps.

A `Scan` is one queue and priority as far as a claim looks at it; a `Feed` is one turn of it,
a `WaitingLane` the jobs that need exactly the same. All of it lives for one claim.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headgate.choice.ahead import ways
from headgate.choice.lane import WaitingLane
from headgate.choice.line import LaneKey
from headgate.claim import PARTIAL, Block
from headgate.limits import Band, needs_of

if TYPE_CHECKING:
    from headgate.choice.chooser import Chooser

LANES_AT_ONCE = 16


class Scan:
    """The turns of one queue and priority, as far as this claim looks at them."""

    def __init__(
        self, chooser: Chooser, queue: str, priority: int, *, aged: bool, ahead: bool = False
    ) -> None:
        self.chooser = chooser
        self.source = chooser.line
        self.queue = queue
        self.priority = priority
        self.ahead = ahead
        """Only what may be reserved is looked for."""
        self.not_after = self.source.now - (chooser.claim.ageing or 0.0) if aged else None
        self.rotation = chooser.claim.state.rotation(queue, priority)
        if not chooser.claim.state.unfinished:
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

    def _open_bands(self) -> list[str]:
        """The bands worth entering: tasks known here, limits not shut as a whole."""
        chooser = self.chooser
        open_bands: list[str] = []
        for text in chooser.line.lines[self.queue][self.priority]:
            band = Band.parse(text)
            if band.task not in chooser.claim.tasks or not chooser.room.serves(band):
                chooser.leaves_some = True
                continue
            block = chooser.room.blocks_band(band)
            if block is None:
                open_bands.append(text)
            elif self.ahead:
                # Full, perhaps of what this worker runs: its own slots may be handed on.
                if block.cause == "full" and chooser.ahead.seconds(band.task) is not None:
                    open_bands.append(text)
            else:
                self._note_shut(text, band, block)
        return open_bands

    def _note_shut(self, text: str, band: Band, block: Block) -> None:
        """A shut band: who is after it knows that somebody waits; where its jobs are wide,
        remember how long its first lane does."""
        chooser = self.chooser
        if block.cause == "full":
            keyed = any(k for _, k, _ in band.all) or any(k for m in band.one_of for _, k, _ in m)
            names = [name for name, k, _ in band.all if not k]
            names += [name for members in band.one_of for name, k, _ in members if not k]
            chains = [] if keyed else [c for c, _ in ways(self.queue, needs_of(text, ""))]
            for name in names:
                if chooser.room.group(name).refuses(1) == "full":
                    chooser.ahead.found_waiting(name, chains)
        wanted = [*band.all, *(need for members in band.one_of for need in members)]
        chooser.held_up((name, units) for name, k, units in wanted if not k)
        if not band.wide and not (chooser.watching and block.cause == "full"):
            return
        head = chooser.line.first_of_band(self.queue, self.priority, text)
        if head is None:
            return
        key = LaneKey(self.queue, self.priority, text, head["turn"], head["lane"])
        chooser.watch(key, block, head)
        if band.wide:
            needs = needs_of(text, head["lane"])
            chooser.reserver.passed_over(key, needs, block, head["place"], head["job"])

    def take(self, wanted: int) -> int:
        got = 0
        while got < wanted and not self.over:
            if not self.line and not self._next_round(wanted - got):
                self.over = True
                break
            if self.chooser.hops <= 0:
                break
            turn = self.line[0]
            feed = self._feed(turn, wanted - got)
            self.tried.add(turn)
            weight = self._weight(turn)
            if self.complete and len(self.window) == 1:
                weight = wanted  # nobody else waits for a turn
            left = min(weight - self.given, wanted - got)
            taken = feed.take(left) if left > 0 else 0
            if taken:
                got += taken
                self.given += taken
                self.progress = True
                self.rotation.barren_from = None
            if feed.waits:
                self.tried.discard(turn)
            if self.chooser.ahead_over:
                break
            if taken:
                continue
            if self.chooser.hops <= 0 and not feed.exhausted:
                # The budget ended among the lanes of this turn: the next claim goes on with
                # it, after the last lane looked at.
                self.tried.discard(turn)
                break
            self.line.popleft()
            self.given = 0
        return got

    def _weight(self, turn: str) -> int:
        return max(1, self.chooser.claim.weights.get(turn, 1))

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
            ahead = max(1, wanted // max(1, len(self.window) * len(self.bands_of[turn])))
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
        chooser = self.chooser
        self.line = deque(
            self.rotation.line_up(self.window, chooser.running, chooser.claim.weights)
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
            start = random.randrange(len(window)) if window else 0
            window = window[start:] + window[:start] if self.complete else window[start:]
        else:
            window, cut = self._turns(size, after=cursor, upto=None)
            if not cut:
                rest, cut = self._turns(size - len(window), after=None, upto=cursor)
                window += rest
                self.complete = not cut
        barren_from = self.rotation.barren_from
        if self.ahead:
            pass
        elif barren_from in window and not self.complete:
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
            ahead, more = self.source.turns(self.queue, self.priority, band, after, each)
            turns = [turn for turn in ahead if upto is None or turn <= upto]
            self.chooser.hops -= len(ahead)
            if more and not ahead:
                self.chooser.hops = 0  # nobody knows what is there: the next claim looks
                bound = ""
            elif more and len(turns) == len(ahead):
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
        self.chooser.hops -= len(self.bands)
        bands = [
            band
            for band in self.bands
            if self.source.has_turn(self.queue, self.priority, band, turn)
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
        self.waits = False
        """A lane of it waits for a place: the next claim begins with that one."""
        self._fresh = self._lanes()
        self._open: deque[WaitingLane] = deque()

    def take(self, wanted: int) -> int:
        """So many, round the lanes, one of each at a time. How many there were."""
        chooser, got = self.scan.chooser, 0
        while got < wanted and chooser.hops > 0 and (lane := next(self._fresh, None)) is not None:
            if lane.take(1):
                self._open.append(lane)
                got += 1
                continue
            if chooser.ahead_over:
                return got
            if chooser.hops <= 0 and not self.waits:
                # The budget ends here, and the next claim goes on with the lane after this one.
                # Otherwise it begins after the one served last: a look at lanes that are all
                # shut by a full group must not carry it once round, to the same ones again.
                self.scan.rotation.remember_lane(self.turn, lane.key.band, lane.key.lane)
        while got < wanted and self._open and not chooser.ahead_over:
            lane = self._open.popleft()
            only = not self._open and chooser.hops > 0
            if taken := lane.take(wanted - got if only else 1):
                self._open.append(lane)
                got += taken
        self.exhausted = chooser.hops > 0 and not self._open
        return got

    def _lanes(self) -> Iterator[WaitingLane]:
        """Every lane of the turn once, beginning after the one served last."""
        bands = sorted(self.scan.bands_of[self.turn])
        last = self.scan.rotation.lanes.get(self.turn)
        if last is None:
            for band in bands:
                yield from self._range(band, None, None)
            return
        # The band served last may be shut by what was started of it: the circle goes on from
        # where it stood all the same, or those at its end would never have their turn.
        if last[0] in bands:
            yield from self._range(last[0], last[1], None)
        for band in [b for b in bands if b > last[0]] + [b for b in bands if b < last[0]]:
            yield from self._range(band, None, None)
        if last[0] in bands:
            yield from self._range(last[0], None, last[1])

    def _range(self, band: str, after: str | None, upto: str | None) -> Iterator[WaitingLane]:
        scan = self.scan
        shut = self._own_group_shut(Band.parse(band))
        while True:
            lanes = scan.source.lanes(
                scan.queue, scan.priority, band, self.turn, after, LANES_AT_ONCE
            )
            for lane in lanes:
                scan.chooser.hops -= 1
                if upto is not None and lane > upto:
                    return
                key = LaneKey(scan.queue, scan.priority, band, self.turn, lane)
                yield WaitingLane(self, key)
                if shut:  # one look, so that a wide lane's wait is noticed, and no more
                    return
            if len(lanes) < LANES_AT_ONCE:
                return
            after = lanes[-1]

    def _own_group_shut(self, band: Band) -> bool:
        """Where the turn is the key of one of the band's limits and that group is full, all
        lanes of the turn are blocked, however many they are."""
        for name, _, units in band.all:
            if name and name == band.fair_limit:
                group = self.scan.chooser.room.group(f"{name}/{self.turn}")
                return group.refuses(units) not in PARTIAL
        return False
