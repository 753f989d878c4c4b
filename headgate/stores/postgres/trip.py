"""One round trip of a worker: choose from what was seen, act on it, and look again.

`headgate.act` tells what ended and takes what was chosen; behind it, in the same message,
`headgate.look` shows the line for the next choice.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headgate.backoff import grown
from headgate.choice import Chooser, LaneKey, Taken
from headgate.errors import StoreBusy, StoreInDoubt, StoreVersion
from headgate.jobs import Claimed
from headgate.limits import Band
from headgate.stores.postgres import acting, arrays, leases
from headgate.stores.postgres.acting import Act
from headgate.stores.postgres.books import Books, Unheard
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL, Transaction
from headgate.stores.postgres.view import LANES, Order, Seen, View, ViewLine
from headgate.stores.protocol import Claim, Exchange, Exchanged
from headgate.stores.relational import finishing, moves, overriding, routing, succession
from headgate.stores.relational.capping import HELD
from headgate.stores.relational.events import record
from headgate.stores.relational.values import ENDED
from headgate.turns import ClaimState

MOST_TURNS = 128
MOST_HOPS = 512
"""Lanes looked at in one claim: what is beyond the view is further away than in a file."""
ALONE_WITHIN = 0.2
"""Seconds for which the end of an operator's word may keep all grants waiting in one go."""
SETTLE_EVERY = 0.25
"""Seconds between two looks at whom jobs wait for that stand for others."""
WITH_WORK = 0.01
"""Seconds until who got other jobs tries again where somebody else was at work."""
LONGEST_PAUSE = 0.1
"""Seconds, at most, until who got nothing there tries again."""
SOME = 64
MORE = 4
"""A look is for so many times what the last claims took, and for so many jobs at least."""
VIEW_AGE = 0.05
"""Seconds for which what was seen at the end of a round trip may serve the next."""

look = msgspec.json.Decoder(Seen)


class First(msgspec.Struct):
    """What `headgate.look_and_take` answers."""

    seen: Seen | None
    act: Act | None = None


first_look = msgspec.json.Decoder(First)


class RoundTrip:
    """One exchange: choose, act, look."""

    def __init__(self, books: Books, database: Database, exchange: Exchange, sent: Unheard) -> None:
        self._books = books
        self._sent = sent
        """Gets what was done, or may have been: much may fail before the worker hears of it."""
        self._db = database
        self._exchange = exchange
        self._claim = exchange.claim
        self._view: View | None = None
        self._chooser: Chooser | None = None
        self._line: ViewLine | None = None
        self._freed = books.freed_by(exchange)
        self._more = False
        self._began = 0.0
        self._looked: View | None = None
        self._due_since = books.dues.since
        """Where this round trip looks for what is due."""

    def run(self) -> Exchanged | None:
        """None: this worker is dead."""
        exchange, claim = self._exchange, self._claim
        self._began = time.monotonic()
        told = exchange.finishes or exchange.passed or exchange.progress
        if claim is not None:
            claim.state.reused = claim.state.emptied = False
            first = self._take_first(claim) if self._idle(claim) else None
            if first is not None:
                return self._answer_first(claim, first)
            try:
                self._choose(claim)
            except StoreVersion:
                # What has ended is told all the same, as long as the functions for that are there.
                if not told:
                    raise
                self._claim = claim = None
        order = self._line.order if self._line is not None else Order()
        act = Act()
        if told or order.jobs or claim is None or claim.again:
            act = self._act(order)
        if act.dead:
            return None
        self._books.now = act.now
        self._books.settle(exchange)
        claimed = tuple(self._claimed(order, act.claimed or []))
        if act.expired:
            claimed = self._expire(claimed, frozenset(act.expired))
        return self._answer(act, claimed)

    # --- nothing to choose --------------------------------------------------------------------

    def _idle(self, claim: Claim) -> bool:
        """Nothing runs here, nothing is told, and whatever comes may be taken."""
        exchange = self._exchange
        if exchange.finishes or exchange.passed or exchange.progress or claim.again:
            return False
        # What it leaves to others is for a choice to see to.
        if claim.left:
            return False
        return claim.room > 0 and all(share.room > 0 for share in claim.queues or ())

    def _take_first(self, claim: Claim) -> Act | None:
        """Look, and take the one job that is all there is: see `headgate.look_and_take`. None:
        there is something to choose, or nothing at all."""
        op = self._books.next_op()
        try:
            params = (*self._look_params(claim, ()), op, *self._books.foreknown())
            text = self._db.value(SQL.exchange.look_and_take, params)
        except StoreInDoubt:
            self._sent.append((op, self._exchange))
            raise
        self._sent.append((op, self._exchange))
        first = first_look.decode(text)
        self._looked = None if first.seen is None else self._seen(first.seen, claim)
        return first.act

    def _answer_first(self, claim: Claim, act: Act) -> Exchanged | None:
        if act.dead:
            return None
        assert self._looked is not None
        self._view, claim.state.view, claim.state.opens = self._looked, None, None
        self._books.now = act.now
        (band,), (lane,) = self._view.seen.bands, self._view.seen.lanes
        key = LaneKey(*band, lane.turn, lane.lane)
        if act.claimed:
            _served(claim.state, key)
        claimed = tuple(self._books.claimed(key, None, row) for row in act.claimed or ())
        if act.expired:
            claimed = self._expire(claimed, frozenset(act.expired))
        # The end of one that holds slots is told with a look: somebody may wait for them.
        claim.state.emptied = bool(claimed) and not any(one.groups for one in claimed)
        return self._answer(act, claimed)

    # --- choose -------------------------------------------------------------------------------

    def _choose(self, claim: Claim) -> None:
        state = claim.state
        view, state.view = state.view, None
        # A round trip that tells nothing must at least look: its answer says that what is
        # reserved still stands.
        told = self._exchange.finishes or self._exchange.passed or claim.again
        if self._looked is not None:
            view = self._looked
        elif not isinstance(view, View) or claim.fresh or not told or view.age > VIEW_AGE:
            view = self._look_now(claim)
        else:
            state.reused = True
        if view.seen.unrouted and self._let_in():
            view = self._look_now(claim)
        for _ in range(2):
            if view.seen.expired and self._reap():
                view = self._look_now(claim)
            due = view.seen.next_due
            if due is not None and due <= view.seen.now:
                with self._db.write() as tx:
                    self._more = moves.promote(tx, self._due_since) >= moves.PROMOTED_AT_ONCE
                view = self._look_now(claim)
        if view.seen.version == ENDED:
            self._end_words()
            view = self._look_now(claim)
        self._view = view
        if claim.room <= 0 and claim.ahead_room <= 0:
            return
        words = self._books.words(view.seen.version)
        if words.version != view.seen.version or words.version == ENDED:
            self._more = True
            return
        if not view.seen.bands:
            state.opens, state.unfinished, state.barren = None, False, 0
            return
        self._books.lone.met(view.seen)
        worker = self._exchange.worker
        self._line = ViewLine(view, words, self._db, worker, self._freed)
        bounded = replace(words.weigh(claim), hops=min(claim.hops, MOST_HOPS))
        self._chooser = Chooser(self._line, bounded, workers=view.seen.workers, freed=self._freed)
        self._more = self._chooser.run() or self._more
        state.took = max(len(self._line.order.jobs), state.took * 7 // 8)

    def _end_words(self) -> None:
        """An operator's word has ended. Nothing is granted until somebody has said so: that is
        a change of limits, so it is made while nobody grants."""
        try:
            with self._db.write(timeout=ALONE_WITHIN) as tx:
                leases.lock_limits(tx)
                overriding.end(tx)
        except StoreBusy:
            self._more = True  # others are at it, or in the middle of a grant: again at once

    def _let_in(self) -> bool:
        """A caller's transaction only notes whom its job replaces. What has been committed is
        done before anything is chosen: else whoever is free would start what is replaced."""
        with self._db.read() as tx:
            if tx.row(SQL.caps.some_replaced) is None:
                return False
        with self._db.write() as tx:
            return succession.settle(tx)

    def _reap(self) -> list[str]:
        with self._db.write() as tx:
            return leases.reap(tx)

    def _shut(self, claim: Claim) -> list[str]:
        """Bands that the next look need not enter: nothing in them can start. Should that be
        wrong by then, they are looked up when the choice comes to them."""
        if self._view is None or self._chooser is None:
            return []
        shut: list[str] = []
        for _, _, text in self._view.seen.bands:
            band = Band.parse(text)
            if band.task in claim.tasks:
                block = self._chooser.room.blocks_band(band)
                if block is not None and not (block.cause == "full" and band.task in claim.ahead):
                    shut.append(text)
        return shut

    def _look_params(
        self, claim: Claim, rings: Sequence[str], heads: str | None = None
    ) -> tuple[Any, ...]:
        state = claim.state
        # What there is room for is seldom what can be had: a slot of a small limit is seldom free,
        # and there is only so much time to work ahead. Not to count eight hundred jobs where
        # twenty are taken, look for some times as many as any of the last claims took.
        some = max(claim.room, SOME, MORE * state.took)
        # The next claim may want more than this one: as much as any of the last did.
        state.wanted = max(1, min(claim.room + claim.ahead_room, some), state.wanted * 7 // 8)
        wanted = state.wanted
        # Among many that cannot start, one that can is further away.
        size = MOST_TURNS if state.barren else min(max(8, wanted + 8), MOST_TURNS)
        bands = state.bands
        each = size if bands <= 4 else max(8, 2 * size // bands)
        # Every band is asked for its part, and as much again: to count all that is wanted in each
        # of a hundred would cost more than to take it.
        part = wanted if bands <= 2 else max(1, 2 * wanted // bands)
        queues = None
        if claim.queues is not None and not claim.other_queues:
            queues = arrays.texts(share.name for share in claim.queues)
        return (
            arrays.texts(rings), self._exchange.worker, queues, _names(claim.tasks),
            arrays.texts(self._shut(claim)), _cursors(claim.state), each, LANES, part,
            heads, self._due_since,
        )  # fmt: skip

    def _look_now(self, claim: Claim) -> View:
        params = self._look_params(claim, ())
        return self._seen(look.decode(self._db.value(SQL.exchange.look, params)), claim)

    def _seen(self, seen: Seen, claim: Claim, nearer: View | None = None) -> View:
        self._books.dues.saw(self._due_since, seen.now, seen.next_due, seen.due_took)
        claim.state.bands = len(seen.turns)
        return View(seen, claim.state.wanted, nearer)

    # --- act ----------------------------------------------------------------------------------

    def _act(self, order: Order) -> Act:
        exchange, claim = self._exchange, self._claim
        op = self._books.next_op()
        params = acting.parameters(
            *(exchange, op, order),
            self._chooser.room if self._chooser is not None else None,
            self._view.seen.version if self._view is not None else 0,
            self._books.followed,
        )
        rings = self._rings()
        behind: tuple[str, tuple[Any, ...]] | None = None
        heads: str | None = None
        if claim is not None and claim.again:
            # From where the last look began, unless what is new would not be seen so.
            whole = claim.news and claim.state.reused
            heads = self._view.heads if self._view is not None and not whole else None
            behind = SQL.exchange.look, self._look_params(claim, rings, heads)
        elif rings:
            behind = SQL.exchange.ring, (arrays.texts(rings),)
        try:
            text, after = self._db.call_two(SQL.exchange.act, params, behind)
        except StoreInDoubt:
            self._sent.append((op, exchange))
            raise
        self._sent.append((op, exchange))
        if claim is not None and claim.again and after is not None:
            nearer = self._view if heads is not None else None
            claim.state.view = self._seen(look.decode(after), claim, nearer)
        return acting.decode(text)

    def _rings(self) -> list[str]:
        """Room that is taken again wakes nobody; room for which no job was found wakes who waits
        for a slot by hand, and other workers only if their jobs may want it."""
        rings: list[str] = ["done"] if self._exchange.finishes else []
        chooser = self._chooser
        if self._freed and not (
            chooser is not None and all(chooser.room.is_full(group) for group in self._freed)
        ):
            rings.append("room")
            nothing_waits = self._view is not None and not self._view.seen.bands
            if not nothing_waits and (chooser is None or chooser.leaves_some):
                rings.append("work")
        return rings

    def _settle(self) -> None:
        """Jobs wait for others to leave. Who ends those lets them in; this is for what ended in
        another way, and for what was noted in a caller's transaction."""
        if time.monotonic() - self._books.settled < SETTLE_EVERY:
            return
        self._books.settled = time.monotonic()
        with self._db.write() as tx:
            self._more = succession.settle(tx) or self._more

    # --- answer -------------------------------------------------------------------------------

    def _claimed(self, order: Order, rows: list[list[Any]]) -> Iterator[Claimed]:
        """In the order in which they were chosen; of each lane there may be fewer."""
        found: dict[int, deque[list[Any]]] = {}
        for row in rows:
            found.setdefault(row[3], deque()).append(row)
        for lane, taken in zip(order.jobs, self._taken(), strict=True):
            if found.get(lane):
                key = order.lanes[abs(lane) - 1]
                yield self._books.claimed(key, taken if lane < 0 else None, found[lane].popleft())

    def _taken(self) -> Sequence[Taken]:
        return self._chooser.taken if self._chooser is not None else ()

    def _expire(self, claimed: tuple[Claimed, ...], expired: frozenset[int]) -> tuple[Claimed, ...]:
        """Their time to start was over before they were taken: they leave for good."""
        with self._db.write() as tx:
            expire(tx, expired)
        self._books.forget(expired)
        self._more = True
        return tuple(one for one in claimed if one.token not in expired)

    def _answer(self, act: Act, claimed: tuple[Claimed, ...]) -> Exchanged:
        exchange, claim, view = self._exchange, self._claim, self._view
        ended = {finish.token for finish in exchange.finishes}
        sent = ended | {report.token for report in exchange.progress}
        passed = {one.token for one in exchange.passed} - ended
        stale = (sent - set(act.told or ())) | (passed - set(act.known or ()))
        if claim is None or view is None:
            return Exchanged(stale=frozenset(stale))
        times = [t for t in (view.seen.next_due, view.seen.next_end) if t is not None]
        if claim.state.opens is not None:
            # Others wait for the same moment: what was seen a while ago must not make us late.
            times.append(claim.state.opens - view.age)
        wake_in = max(0.0, min(times) - view.seen.now) if times else None
        full = sum(not one.reserved for one in claimed) >= claim.room
        if (act.contended or act.refused) and not full:
            # Others are at work in the same groups: again at once, but not in step with them; with
            # something to run meanwhile, after a moment in which some of it may end. Who has no
            # room for more comes back with the next end anyway.
            state = claim.state
            state.refusals = 0 if claimed else state.refusals + 1
            pause = WITH_WORK if claimed else grown(state.refusals, 0.0005, LONGEST_PAUSE)
            if claim.again:
                # What ends here waits for the next answer, so that may not be all about this.
                took = time.monotonic() - self._began
                pause = max(pause, min(2 * took, LONGEST_PAUSE))
            soon = pause * random.uniform(0.5, 1.5)
            wake_in = soon if wake_in is None else min(wake_in, soon)
        unrouted = False
        if view.seen.unrouted:
            with self._db.read() as tx:
                waiting = routing.unrouted_tasks(tx)
            unrouted = bool(waiting & claim.tasks)
            if HELD in waiting:
                wake_in = min(SETTLE_EVERY, wake_in if wake_in is not None else SETTLE_EVERY)
                self._settle()
        return Exchanged(
            stale=frozenset(stale),
            claimed=claimed,
            more=self._more or act.changed,
            wake_in=wake_in,
            cancels=tuple(view.seen.cancels or ()),
            unrouted=unrouted,
            recall=_changed(claim.state, view.seen.version if act.version is None else act.version),
        )


def expire(tx: Transaction, tokens: Iterable[int]) -> None:
    """Attempts of jobs whose time to start was over before they were taken."""
    for token in tokens:
        running = tx.row(SQL.finish.running, {"token": token})
        if running is not None:
            finishing.leave(tx, running)
            moves.conclude(tx, running["job"], "cancelled", "expired", attempt=0)
            record(tx, "job_expired", running["id"])


def _served(state: ClaimState, key: LaneKey) -> None:
    """What a choice remembers of a lane whose first job it takes."""
    rotation = state.rotation(key.queue, key.priority)
    rotation.settle([key.turn], {key.turn})
    rotation.remember_lane(key.turn, key.band, key.lane)
    state.passed_over.pop(key.text, None)
    state.idle_since = None


@functools.lru_cache(16)
def _names(tasks: frozenset[str]) -> str:
    """A worker's tasks stay the same, and may be hundreds."""
    return arrays.texts(tasks)


def _cursors(state: ClaimState) -> str:
    cursors: dict[str, dict[str, str]] = {}
    for (queue, priority), rotation in state.rotations.items():
        if rotation.cursor is not None:
            cursors.setdefault(queue, {})[str(priority)] = rotation.cursor
    return json.dumps(cursors, ensure_ascii=False)


def _changed(state: ClaimState, version: int) -> bool:
    """Was a limit or a pause changed since the worker's last claim?"""
    before, state.seen = state.seen, version
    return before is not None and before != version
