"""A claim: which ready jobs may start now, and which may follow them, in bounded work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headgate.choice.ahead import Ahead, groups_of
from headgate.choice.line import LaneKey, Line, Row, Taken
from headgate.choice.scan import Scan
from headgate.choice.starving import Reserver
from headgate.claim import Block, Group, Room
from headgate.limits import Band, Need
from headgate.stores.protocol import Claim, QueueShare
from headgate.turns import share_out

AGED_CLAIM_EVERY = 8
BARREN_CLAIMS = 50
"""So many searches in a row without a start, and the worker waits for something to change."""
WATCH_EVERY = 0.1
REFUSED_AFTER = 0.2
"""Seconds for which a lane has not moved before others hear that it wants what they hold."""
IDLE_AFTER = 0.3
"""Seconds for which nothing has run here, while others keep what could, before they hear of it …"""
IDLE_EVERY = 0.5
"""… and between two times that they do."""


class Chooser:
    """One claim of one worker.

    `workers` says how many share the store, and `freed` what this worker gave back in the
    same round trip: of the rest it leaves a part to the others, where tasks are to be spread.
    """

    def __init__(
        self, line: Line, claim: Claim, *, workers: int = 1, freed: Mapping[str, int] | None = None
    ) -> None:
        self.line = line
        self.claim = claim
        self._workers = workers
        self._freed = freed or {}
        self.room = Room(self._load, claim.served)
        self.reserver = Reserver(line, self.room, claim.state)
        self.ahead = Ahead(claim)
        self.hops = claim.hops
        self.taken: list[Taken] = []
        self.running = Counter(claim.running)
        """By fairness key, what runs in this worker, with what this claim has taken."""
        self.shared = False
        """Something was left for workers that are about to ask: ask again for what they left."""
        self.leaves_some = claim.served is not None or bool(claim.left)
        """There may be work left for others: of tasks or queues that this worker does not
        serve, or more than it has room for."""
        self.ahead_over = False
        """Somebody who waits for a place comes next, and nothing more is reserved."""
        self.watching = line.boot - claim.state.watched_at >= WATCH_EVERY
        """Is it time to look which lanes do not move?"""
        self._refused: set[str] = set()
        self._full: list[str] = []
        """Groups that were met full, when it was time to look."""
        self._shares = {share.name: share for share in claim.queues or ()}
        self._scans: dict[tuple[str, int, bool], Scan] = {}
        line.load_ahead(self._whole_groups())

    def run(self) -> bool:
        """Choose what to take; whether the budget ended before the search did."""
        claim, state = self.claim, self.claim.state
        state.claims += 1
        state.gives_way = None
        if not state.unfinished:
            state.opens = None
        if claim.ageing is not None and state.claims % AGED_CLAIM_EVERY == 0:
            self._take_round(aged=True)
        self._take_round(aged=False)
        self._end_scans()
        started = len(self.taken)
        has_room = started < claim.room
        if self.hops <= 0 or self.shared or not has_room:
            self.leaves_some = True
        state.unfinished = self.hops <= 0 and has_room
        state.barren = 0 if started or not state.unfinished else state.barren + 1
        spins = state.barren % BARREN_CLAIMS == BARREN_CLAIMS - 1
        if self._refused:
            self.line.note_refused(self._refused)
        if self.watching:
            state.watched_at = self.line.boot
            self._say_idle()
        idle = self.line.idle_others()
        state.idle_elsewhere = idle & self._shareable() if idle else idle
        if self.hops > 0 and not self.shared:
            self._reserve()
        return has_room and (self.shared or (state.unfinished and not spins))

    def watch(self, key: LaneKey, block: Block, head: Row) -> None:
        """A lane found its group full. If nobody serves it while others keep the group, they
        must hear of it: those who hand their slots on from job to job let them go then."""
        if self.watching and block.cause == "full":
            if self.room.group(block.group).value != 1:  # of one slot there is no half
                self._full.append(block.group)
            # Not by its place alone: what was submitted at one moment may stand at one place.
            first = (head["place"], head["job"])
            waited, _ = self.claim.state.waited(f"full {key.text}", first, self.line.boot)
            if waited >= REFUSED_AFTER:
                self._refused.add(block.group)

    def _say_idle(self) -> None:
        """A lane that moves is served, be it by one worker alone, which hands its slots on from job
        to job. Who has had nothing to run for a while says so: that one may leave it some."""
        state, now = self.claim.state, self.line.boot
        if self.claim.running or self.claim.chains or self.taken:
            state.idle_since = None
            return
        state.idle_since = now if state.idle_since is None else state.idle_since
        if not self._full or now - state.idle_since < IDLE_AFTER:
            return
        if now - state.idle_said >= IDLE_EVERY:
            state.idle_said = now
            self.line.note_idle(random.choice(self._full))

    def _shareable(self) -> set[str]:
        """Groups of which this worker has more than one slot for the jobs of a chain."""
        shared = (chain for chain, now in self.claim.chains.items() if now.places > 1)
        return {group for chain in shared for group in groups_of(chain)}

    def held_up(self, needs: Iterable[tuple[str, int]]) -> None:
        """Something cannot start. If a rate is the cause, ask again when it opens: nobody rings
        then."""
        state = self.claim.state
        opens = self.room.opens(needs)
        if opens is not None and (state.opens is None or opens < state.opens):
            state.opens = opens

    # --- ahead --------------------------------------------------------------------------------

    def _reserve(self) -> None:
        """What may follow, without a round trip, what runs here: the choice goes on in the same
        order, until somebody comes who needs a place; see `wants_place`."""
        ahead = self.ahead
        chains = ahead.chains
        if not ahead.open or not chains:
            return
        groups = {group for chain in chains for group in groups_of(chain)}
        if groups:
            ahead.wanted_elsewhere(self.line.refused_others(groups))
            ahead.wanted_elsewhere(g for g in groups if self.room.group(g).reserved_for is not None)
        if all(ahead.left(chain) <= 0 for chain in chains):
            return
        self.hops = self.claim.hops  # a second look, at what the first has seen
        self._take_round(ahead=True)
        self._end_scans()

    def wants_place(self, chains: Iterable[str]) -> None:
        """Somebody comes next who could start if there was a place, or more of them for the
        `chains` that it could go on in. The next claim begins with it. A chain with many places
        leaves it one of them, and goes on in the others; where there are few, nobody goes on
        before it does."""
        giver = self.ahead.can_give_way()
        if giver is None or giver in chains:
            self.ahead_over = True
        else:
            self.claim.state.gives_way = giver

    def may_start(self, queue: str) -> bool:
        """May more of this queue run, if there are places?"""
        share = self._shares.get(queue)
        if share is None or share.left is None:
            return True
        return share.left > sum(t.key.queue == queue and not t.reserved for t in self.taken)

    def may_go_on(self, needs: Sequence[Need], plan: Sequence[Need] | Block) -> bool:
        """May a job that needs this be handed slots of its chain? Not where the group is shut,
        and not where more is held than the limit says since it was lowered."""
        if isinstance(plan, Block) and plan.cause != "full":
            return False
        return all(self.room.group(need.group).free() >= 0 for need in needs)

    # --- rounds -------------------------------------------------------------------------------

    def _end_scans(self) -> None:
        for scan in self._scans.values():
            scan.end()
        self._scans.clear()

    def _load(self, name: str) -> Group:
        group = self.line.group(name)
        group.leave_to(self._workers, self._freed.get(name, 0))
        if group.starts is None:  # nobody holds starts under a rate, so nobody offers them
            group.left = self.claim.left.get(name, 0)
        return group

    def _whole_groups(self) -> set[str]:
        """The groups that decide which bands are open."""
        found: set[str] = set()
        for priorities in self.line.lines.values():
            for bands in priorities.values():
                for band in map(Band.parse, bands):
                    if band.task in self.claim.tasks:
                        found |= {name for name, _, _ in band.all}
                        found |= {name for members in band.one_of for name, _, _ in members}
        return found - {""}

    def _take_round(self, *, aged: bool = False, ahead: bool = False) -> None:
        """Go round the queues by weight until there is no room or nothing to take. `ahead`: what
        is taken is reserved, which takes no room."""
        state = self.claim.state
        shares = self._queues(full=ahead)
        if ahead:
            left = self.ahead.room
            rooms = {share.name: left for share in shares}
        else:
            left = self.claim.room - len(self.taken)
            rooms = {share.name: share.room for share in shares}
            for taken in self.taken:
                rooms[taken.key.queue] -= 1
        shares = [share for share in shares if rooms[share.name] > 0]
        waits = False
        while left > 0 and shares and self.hops > 0:
            first, given = self._first_queue(shares)
            parts, last, given = share_out(left, [s.weight for s in shares], first, given)
            open_shares: list[QueueShare] = []
            for i in (*range(first, len(shares)), *range(first)):
                share = shares[i]
                wanted = min(parts[i], rooms[share.name], left)
                got = self._take(share.name, wanted, aged=aged, ahead=ahead) if wanted else 0
                rooms[share.name] -= got
                left -= got
                if (self.ahead_over or state.gives_way is not None) and not waits:
                    waits = True  # the next claim begins with this queue
                    state.queue_cursor, state.queue_given = share.name, 0
                if self.ahead_over:
                    return
                if got and i == last and not waits:
                    state.queue_cursor, state.queue_given = share.name, given
                if got == wanted and rooms[share.name] > 0:
                    open_shares.append(share)
            shares = sorted(open_shares, key=lambda share: share.name)

    def _first_queue(self, shares: list[QueueShare]) -> tuple[int, int]:
        """The queue whose turn it is, and how much of its weight it has had already."""
        cursor, given = self.claim.state.queue_cursor, self.claim.state.queue_given
        if cursor is None:
            return random.randrange(len(shares)), 0
        for i, share in enumerate(shares):
            if share.name == cursor and given < share.weight:
                return i, given
            if share.name > cursor:
                return i, 0
        return 0, 0

    def _queues(self, *, full: bool = False) -> list[QueueShare]:
        """The queues to look at; `full`: also those of which no more may start."""
        present = list(self.line.lines)
        paused = self.line.paused_queues()
        if self.claim.queues is None:
            shares = [QueueShare(name, self.claim.room) for name in present]
        else:
            mine = {share.name: share for share in self.claim.queues}
            if self.claim.other_queues:
                mine = {name: QueueShare(name, self.claim.room) for name in present} | mine
            shares = [mine[name] for name in present if name in mine]
            if len(shares) < len(present) or any(share.room < self.claim.room for share in shares):
                self.leaves_some = True
        return [s for s in shares if s.name not in paused and (s.room > 0 or full)]

    def _take(self, queue: str, wanted: int, *, aged: bool, ahead: bool) -> int:
        """Strict priority: a lower one is looked at only when the higher has nothing."""
        priorities = list(self.line.lines[queue])
        got = 0
        for priority in reversed(priorities) if aged else priorities:
            if got >= wanted or self.hops <= 0 or self.ahead_over:
                break
            key = (queue, priority, aged)
            scan = self._scans.get(key)
            if scan is None:
                scan = self._scans[key] = Scan(self, queue, priority, aged=aged, ahead=ahead)
            got += scan.take(wanted - got)
        return got
