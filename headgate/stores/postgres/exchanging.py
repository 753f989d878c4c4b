"""One round trip of a worker: `headgate.act` tells what ended and takes what was chosen, and
behind it, in the same message, `headgate.look` shows the line for the next choice."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headgate.choice import Chooser, LaneKey, Taken
from headgate.choice.ahead import chain_of, groups_of, held_in
from headgate.claim import ClaimState, Group
from headgate.errors import StoreInDoubt
from headgate.jobs import Claimed, Finish
from headgate.limits import Band, needs_of
from headgate.stores.postgres import arrays, leases, submitting
from headgate.stores.postgres.database import SQL, Database
from headgate.stores.postgres.view import LANES, Order, Seen, View, ViewLine
from headgate.stores.protocol import Claim, Exchange, Exchanged
from headgate.stores.relational import finishing, moves, registry, routing
from headgate.stores.relational.events import record
from headgate.stores.relational.values import Words, WordsCache

MOST_TURNS = 128
MOST_HOPS = 512
"""Lanes looked at in one claim: what is beyond the view is further away than in a file."""
VIEW_AGE = 0.05
"""Seconds for which what was seen at the end of a round trip may serve the next."""

Held = tuple[tuple[str, int], ...]
PLAIN = frozenset(("succeeded", "failed"))


class Act(msgspec.Struct):
    """What `headgate.act` answers."""

    now: float = 0.0
    claimed: list[list[Any]] | None = None
    expired: list[int] | None = None
    told: list[int] | None = None
    known: list[int] | None = None
    contended: bool = False
    changed: bool = False
    refused: bool = False
    version: int | None = None
    dead: bool = False


_act = msgspec.json.Decoder(Act)
_look = msgspec.json.Decoder(Seen)


class Exchanger:
    """The round trips of the workers of this process. Each worker has one under way at most."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._words = WordsCache()
        self._words_lock = threading.Lock()
        self._ops = itertools.count(int.from_bytes(os.urandom(7)) << 4)
        self._held: dict[int, Held] = {}
        """What the attempts of this process hold: a choice counts on what they give back."""
        self._follows: dict[int, str] = {}
        """The chain of each attempt that was reserved, until the store knows its slots."""
        self.now = 0.0
        """The store's time as of the last answer."""
        self._doubts: dict[str, tuple[int, frozenset[int]]] = {}
        """Per worker, a round trip whose answer was lost: its number, and what it told."""

    def exchange(self, exchange: Exchange) -> Exchanged:
        found, doubted = self._clear_doubt(exchange.worker)
        told = exchange
        stale: set[int] = set()
        if not all(_plain(finish) for finish in exchange.finishes):
            outcome = self._finish_in_full(exchange)
            if outcome is None:
                return _dead(exchange)
            stale |= outcome
            told = Exchange(exchange.worker, progress=exchange.progress, claim=exchange.claim)
        answer = RoundTrip(self, self._db, told).run()
        if answer is None:
            return _dead(exchange)
        # What a lost answer had told already is told again here, and is no news.
        stale = (stale | answer.stale) - doubted
        return replace(answer, stale=frozenset(stale), claimed=found + answer.claimed)

    # --- ends that are not plain --------------------------------------------------------------

    def _finish_in_full(self, exchange: Exchange) -> set[int] | None:
        """Retries, jobs given back, jobs that follow: statement by statement."""
        with self._db.write() as tx:
            # As in `act`: nobody declares this worker dead in the middle.
            tx.lock([leases.lock_name(exchange.worker)])
            name = registry.known(tx, exchange.worker)
            if name is None or leases.is_dead(tx, exchange.worker):
                return None
            stale = finishing.pass_on(tx, exchange.worker, exchange.passed)
            stale |= finishing.finish_all(
                *(tx, exchange.worker, name, exchange.finishes),
                lambda _, jobs: submitting.submit_all(tx, jobs),
            )
            if tx.freed:
                tx.ring("work", "room")
        self.settle(exchange)
        return stale

    def settle(self, exchange: Exchange) -> None:
        """The store has heard this: keep what we know of its slots up to it."""
        for passed in exchange.passed:
            self._follows.pop(passed.token, None)
            if passed.owner is not None:
                self._held[passed.token] = self._held.pop(passed.owner, ())
        for finish in exchange.finishes:
            self._held.pop(finish.token, None)
            self._follows.pop(finish.token, None)

    def followed(self, token: int) -> str | None:
        """What an attempt held in slots that were never under its name."""
        chain = self._follows.get(token)
        held = held_in(chain) if chain is not None else ()
        return json.dumps([[group, -1, units] for group, units in held]) if held else None

    # --- doubt --------------------------------------------------------------------------------

    def _clear_doubt(self, worker: str) -> tuple[tuple[Claimed, ...], frozenset[int]]:
        """After a lost answer: what that round trip granted, if it happened; and what it told,
        which is told again and is then no news."""
        if worker not in self._doubts:
            return (), frozenset()
        op, told = self._doubts[worker]
        with self._db.write() as tx:
            # It may still be under way: it holds this lock until it has ended either way.
            tx.lock([leases.lock_name(worker)])
            text = tx.value(SQL.exchange.granted, (worker, op))
            rows: list[Any] = msgspec.json.decode(text) if text else []
            # What was to follow others is given back: in whose slots is not written anywhere.
            back = [Finish(row[1], "returned") for row in rows if row[0][-1]]
            finishing.finish_all(tx, worker, "", back, lambda _, jobs: None)
        del self._doubts[worker]
        found = [
            self.claimed(LaneKey(*where), None, row)
            for (*where, reserved), *row in rows
            if not reserved
        ]
        return tuple(found), told

    def doubt(self, worker: str, op: int, told: frozenset[int]) -> None:
        self._doubts[worker] = (op, told)

    # --- words, looks -------------------------------------------------------------------------

    def words(self, version: int) -> Words:
        with self._words_lock:
            words = self._words.words
            if words is None or words.version != version:
                with self._db.read() as tx:
                    words = self._words.read(tx)
            return words

    def next_op(self) -> int:
        return next(self._ops)

    def freed_by(self, exchange: Exchange) -> Counter[str]:
        """The units that this round trip gives back."""
        freed: Counter[str] = Counter()
        passed = {one.owner for one in exchange.passed}
        for finish in exchange.finishes:
            if finish.token not in passed:
                for group, units in self._held.get(finish.token, ()):
                    freed[group] += units
        return freed

    def claimed(self, key: LaneKey, taken: Taken | None, row: list[Any]) -> Claimed:
        """An attempt as `act` tells it. What was reserved (`taken`) holds nothing yet: it says
        in which chain it waits."""
        token, job, attempt, since, created_at, args, options, slots, history = row
        counts: dict[str, int] = history or {}
        if taken is not None:
            chain, picked = taken.chain, taken.grant.picked
            self._follows[token] = chain
            groups = tuple((group, -1) for group in groups_of(chain))
        else:
            held = tuple((group, units) for group, _, units in slots)
            if held:
                self._held[token] = held
            chain = chain_of(key.queue, held)
            groups = tuple((group, slot) for group, slot, _ in slots)
            every = len(needs_of(key.band, key.lane).all) if held else 0
            picked = tuple(group for group, _ in held[every:])
        return Claimed(
            job=job,
            token=token,
            attempt=attempt,
            task=Band.parse(key.band).task,
            args=args,
            queue=key.queue,
            priority=key.priority,
            turn=key.turn,
            options=options,
            groups=groups,
            picked=picked,
            errors=counts.get("error", 0),
            lost=counts.get("lost", 0),
            created_at=created_at,
            ready_at=since,
            started_at=self.now,
            chain=chain,
            reserved=taken is not None,
        )


class RoundTrip:
    """One exchange: choose, act, look."""

    def __init__(self, exchanger: Exchanger, database: Database, exchange: Exchange) -> None:
        self._exchanger = exchanger
        self._db = database
        self._exchange = exchange
        self._claim = exchange.claim
        self._view: View | None = None
        self._chooser: Chooser | None = None
        self._line: ViewLine | None = None
        self._freed = exchanger.freed_by(exchange)
        self._more = False

    def run(self) -> Exchanged | None:
        """None: this worker is dead."""
        exchange, claim = self._exchange, self._claim
        if claim is not None:
            self._choose(claim)
        order = self._line.order if self._line is not None else Order()
        told = exchange.finishes or exchange.passed or exchange.progress
        act = Act()
        if told or order.jobs or claim is None or claim.again:
            act = self._act(order)
        if act.dead:
            return None
        self._exchanger.now = act.now
        self._exchanger.settle(exchange)
        claimed = tuple(self._claimed(order, act.claimed or []))
        if act.expired:
            claimed = self._expire(claimed, frozenset(act.expired))
        return self._answer(act, claimed)

    # --- choose -------------------------------------------------------------------------------

    def _choose(self, claim: Claim) -> None:
        state = claim.state
        view, state.view = state.view, None
        # A round trip that tells nothing must at least look: its answer says that what is
        # reserved still stands.
        told = self._exchange.finishes or self._exchange.passed or claim.again
        if not isinstance(view, View) or claim.fresh or not told or view.age > VIEW_AGE:
            view = self._look_now(claim)
        for _ in range(2):
            if view.seen.expired and self._reap():
                view = self._look_now(claim)
            due = view.seen.next_due
            if due is not None and due <= view.seen.now:
                with self._db.write() as tx:
                    self._more = moves.promote(tx) >= moves.PROMOTED_AT_ONCE
                view = self._look_now(claim)
        self._view = view
        if claim.room <= 0 and claim.ahead_room <= 0:
            return
        words = self._exchanger.words(view.seen.version)
        if words.version != view.seen.version:
            self._more = True
            return
        worker = self._exchange.worker
        self._line = ViewLine(view, words, self._db, worker, self._freed)
        bounded = replace(claim, hops=min(claim.hops, MOST_HOPS))
        self._chooser = Chooser(self._line, bounded, workers=view.seen.workers, freed=self._freed)
        self._more = self._chooser.run() or self._more

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
        # The next claim may want more than this one: as much as any of the last did.
        state = claim.state
        state.wanted = max(1, claim.room + claim.ahead_room, state.wanted * 7 // 8)
        wanted = state.wanted
        size = min(max(8, wanted + 8), MOST_TURNS)
        bands = len(self._view.seen.bands) if self._view is not None else 1
        each = size if bands <= 4 else max(8, 2 * size // bands)
        queues = None
        if claim.queues is not None and not claim.other_queues:
            queues = arrays.texts(share.name for share in claim.queues)
        return (
            arrays.texts(rings), self._exchange.worker, queues, arrays.texts(claim.tasks),
            arrays.texts(self._shut(claim)), _cursors(claim.state), each, LANES, wanted,
            heads,
        )  # fmt: skip

    def _look_now(self, claim: Claim) -> View:
        params = self._look_params(claim, ())
        (row,) = self._db.call(SQL.exchange.look, params)
        return View(_look.decode(row[0]), claim.state.wanted)

    # --- act ----------------------------------------------------------------------------------

    def _act(self, order: Order) -> Act:
        exchange, claim = self._exchange, self._claim
        op = self._exchanger.next_op()
        params = self._act_params(order, op)
        rings = self._rings()
        behind: tuple[str, tuple[Any, ...]] | None = None
        heads: str | None = None
        if claim is not None and claim.again:
            heads = self._view.heads if self._view is not None else None
            behind = SQL.exchange.look, self._look_params(claim, rings, heads)
        elif rings:
            behind = SQL.exchange.ring, (arrays.texts(rings),)
        try:
            text, after = self._db.call_two(SQL.exchange.act, params, behind)
        except StoreInDoubt:
            tokens = {f.token for f in (*exchange.finishes, *exchange.passed)}
            self._exchanger.doubt(exchange.worker, op, frozenset(tokens))
            raise
        if claim is not None and claim.again and after is not None:
            nearer = self._view if heads is not None else None
            claim.state.view = View(_look.decode(after), claim.state.wanted, nearer)
        return _act.decode(text)

    def _act_params(self, order: Order, op: int) -> tuple[Any, ...]:
        exchange = self._exchange
        ended = {finish.token for finish in exchange.finishes}
        ago = {one.token: one.ago for one in exchange.passed if one.token in ended}
        passed = [one for one in exchange.passed if one.token not in ended]
        f = exchange.finishes
        r = exchange.progress
        keys = order.lanes
        groups, needs = self._needs(order)
        room = self._chooser.room if self._chooser is not None else None
        return (
            exchange.worker, op,
            arrays.numbers(x.token for x in f), arrays.texts(x.outcome for x in f),
            arrays.texts(x.reason for x in f), arrays.texts(x.result for x in f),
            arrays.texts(moves.error_text(x.error) for x in f),
            arrays.numbers(ago.get(x.token) for x in f),
            arrays.texts(self._exchanger.followed(x.token) if x.token in ago else None for x in f),
            arrays.flags(x.keep for x in f),
            arrays.numbers(x.token for x in passed), arrays.numbers(x.owner for x in passed),
            arrays.numbers(x.ago for x in passed),
            arrays.numbers(x.token for x in r), arrays.numbers(x.fraction for x in r),
            arrays.texts(x.text for x in r),
            arrays.texts(x.queue for x in keys), arrays.numbers(x.priority for x in keys),
            arrays.texts(x.band for x in keys), arrays.texts(x.turn for x in keys),
            arrays.texts(x.lane for x in keys), arrays.numbers(order.places),
            arrays.texts(groups),
            arrays.numbers(_limit(room.group(name)) if room is not None else 0 for name in groups),
            *(arrays.numbers(column) for column in needs),
            self._view.seen.version if self._view is not None else 0,
            arrays.numbers(order.jobs),
        )  # fmt: skip

    def _needs(self, order: Order) -> tuple[list[str], list[list[int]]]:
        """The groups, and per need: its lane, its choice, its group and its units."""
        groups: dict[str, int] = {}
        columns: list[list[int]] = [[], [], [], []]
        wanted = {number for number in order.jobs if number > 0}
        for number, key in enumerate(order.lanes, 1):
            if number not in wanted:
                continue
            needs = needs_of(key.band, key.lane)
            choices = [(0, need) for need in needs.all]
            choices += [(i, need) for i, m in enumerate(needs.one_of, 1) for need in m]
            for choice, need in choices:
                group = groups.setdefault(need.group, len(groups) + 1)
                for column, cell in zip(columns, (number, choice, group, need.units), strict=True):
                    column.append(cell)
        return list(groups), columns

    def _rings(self) -> list[str]:
        """Room that is taken again wakes nobody; room for which no job was found wakes who waits
        for a slot by hand, and other workers only if their jobs may want it."""
        rings: list[str] = ["done"] if self._exchange.finishes else []
        chooser = self._chooser
        if self._freed and not (
            chooser is not None and all(chooser.room.is_full(group) for group in self._freed)
        ):
            rings.append("room")
            if chooser is None or chooser.leaves_some:
                rings.append("work")
        return rings

    # --- answer -------------------------------------------------------------------------------

    def _claimed(self, order: Order, rows: list[list[Any]]) -> Iterator[Claimed]:
        """In the order in which they were chosen; of each lane there may be fewer."""
        found: dict[int, deque[list[Any]]] = {}
        for token, job, attempt, lane, *rest in rows:
            found.setdefault(lane, deque()).append([token, job, attempt, *rest])
        for lane, taken in zip(order.jobs, self._taken(), strict=True):
            if found.get(lane):
                key = order.lanes[abs(lane) - 1]
                yield self._exchanger.claimed(
                    key, taken if lane < 0 else None, found[lane].popleft()
                )

    def _taken(self) -> Sequence[Taken]:
        return self._chooser.taken if self._chooser is not None else ()

    def _expire(self, claimed: tuple[Claimed, ...], expired: frozenset[int]) -> tuple[Claimed, ...]:
        """Their time to start was over before they were taken: they leave for good."""
        with self._db.write() as tx:
            for token in expired:
                running = tx.row(SQL.finish.running, {"token": token})
                if running is not None:
                    finishing.leave(tx, running)
                    moves.conclude(tx, running["job"], "cancelled", "expired", attempt=0)
                    record(tx, "job_expired", running["id"])
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
        wake_in = max(0.0, min(times) - view.seen.now) if times else None
        if act.contended or act.refused:
            # Others are at work in the same groups: again at once, but not in step with them.
            state = claim.state
            state.refusals = 0 if claimed else state.refusals + 1
            soon = min(0.0005 * 2 ** min(state.refusals, 8), 0.1) * random.uniform(0.5, 1.5)  # noqa: S311
            wake_in = soon if wake_in is None else min(wake_in, soon)
        unrouted = False
        if view.seen.unrouted:
            with self._db.read() as tx:
                unrouted = bool(routing.unrouted_tasks(tx) & claim.tasks)
        return Exchanged(
            stale=frozenset(stale),
            claimed=claimed,
            more=self._more or act.changed,
            wake_in=wake_in,
            cancels=tuple(view.seen.cancels or ()),
            unrouted=unrouted,
            recall=_changed(claim.state, act.version or view.seen.version),
        )


def _limit(group: Group) -> int | None:
    """The value by which `act` grants: of a group that is shut, nothing."""
    return 0 if group.paused or group.missing else group.value


def _plain(finish: Finish) -> bool:
    return finish.outcome in PLAIN and not finish.followups


def _dead(exchange: Exchange) -> Exchanged:
    told = (*exchange.passed, *exchange.finishes, *exchange.progress)
    return Exchanged(stale=frozenset(one.token for one in told), dead=True)


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
