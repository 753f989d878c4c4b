"""An exchange of a worker: what ended in any other way than plainly, and lost answers; then the
round trip."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headgate.choice import LaneKey
from headgate.errors import StoreBusy, StoreInDoubt
from headgate.jobs import Claimed, Finish, NewJob, Refusal, Submitted
from headgate.schedules import template
from headgate.stores.postgres import arrays, leases, submitting
from headgate.stores.postgres import capping as postgres_capping
from headgate.stores.postgres.books import Books, Unheard
from headgate.stores.postgres.connection import LOCK_TIMEOUT
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL, Transaction
from headgate.stores.postgres.trip import RoundTrip, expire
from headgate.stores.protocol import Exchange, Exchanged, Passed
from headgate.stores.relational import capping, finishing, registry, succession

log = logging.getLogger("headgate.store")

PLAIN = frozenset(("succeeded", "failed"))
BRIEF = 0.05
"""Seconds for which nobody minds to wait, and after which what can be left is left."""
DEPENDENT_WITHIN = 0.3
"""Seconds for which an end waits to learn whether what follows from it can be stored: that may
depend on a transaction that somebody has open, and all that is told with it waits too."""
_RESERVED, _EXPIRED = 5, 6
"""What `headgate.claimed_by` tells of an attempt behind its lane."""


class Exchanger:
    """The round trips of the workers of this process. Of each worker there is one under way as a
    rule; one that only tells starts may run beside it."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._books = Books(database)

    def exchange(self, exchange: Exchange) -> Exchanged:
        # Whatever fails from here on, what has been done by then is found by the next exchange.
        unheard = self._books.take_unheard(exchange.worker)
        try:
            return self._exchange(exchange, unheard)
        except BaseException:
            if unheard:
                self._books.put_back(exchange.worker, unheard)
            raise

    def _exchange(self, exchange: Exchange, unheard: Unheard) -> Exchanged:
        found, doubted = self._clear_doubt(exchange, unheard)
        exchange = self._owned_now(exchange)
        # What is found takes the room that was to be filled: the next claim knows of it.
        told = replace(exchange, claim=None) if found else exchange
        stale: set[int] = set()
        refused: dict[int, Refusal] = {}
        if _linked(told.passed) or not all(map(_plain, told.finishes)):
            in_full, told = _split(told)
            parts = _parts(in_full)
            while parts:
                outcome = self._finish_in_full(parts[0], refused, unheard)
                if outcome is None:
                    return self._dead(_joined(*parts, told), stale)
                stale |= outcome
                del parts[0]
        ended = self._capped(told)
        answer = RoundTrip(self._books, self._db, told, unheard).run()
        if answer is None:
            return self._dead(told, stale)
        if ended or self._books.starts:
            answer = self._make_room(answer, ended)
        # What a lost answer had told already is told again here, and is no news.
        stale = (stale | answer.stale) - doubted
        return replace(
            answer,
            stale=frozenset(stale),
            refused=tuple(refused.items()),
            claimed=found + answer.claimed,
            more=answer.more or bool(found),
        )

    def _dead(self, exchange: Exchange, stale: Iterable[int] = ()) -> Exchanged:
        """All that this says is said of attempts that are no longer the worker's."""
        told = [one.token for one in (*exchange.passed, *exchange.finishes, *exchange.progress)]
        owners = [one.owner for one in exchange.passed if one.owner is not None]
        self._books.forget([*told, *owners])
        return Exchanged(stale=frozenset((*told, *stale)), dead=True)

    def _finish_in_full(
        self, exchange: Exchange, refused: dict[int, Refusal], sent: Unheard
    ) -> set[int] | None:
        """Retries, jobs given back, jobs that follow: statement by statement."""
        try:
            outcome = self._write_ends(exchange, refused)
        except StoreInDoubt:
            sent.append((self._books.next_op(), exchange))
            raise
        if outcome is None:
            return None
        sent.append((self._books.next_op(), exchange))
        ended = [finish for finish in exchange.finishes if finish.token not in refused]
        self._capped(exchange)
        self._books.settle(replace(exchange, finishes=ended))
        return outcome

    def _write_ends(self, exchange: Exchange, refused: dict[int, Refusal]) -> set[int] | None:
        depends = any(job.depends for finish in exchange.finishes for job in finish.followups)
        with self._db.write(timeout=DEPENDENT_WITHIN if depends else LOCK_TIMEOUT) as tx:
            # As in `act`: nobody declares this worker dead in the middle.
            tx.lock([leases.lock_name(exchange.worker)])
            name = registry.known(tx, exchange.worker)
            if name is None or leases.is_dead(tx, exchange.worker):
                return None
            stale = finishing.pass_on(tx, exchange.worker, exchange.passed)
            stale |= _end_all(tx, exchange.worker, name, exchange.finishes, refused)
            if tx.freed:
                tx.ring("work", "room")
        return stale

    def _capped(self, exchange: Exchange) -> list[str]:
        """Of the attempts that end, the jobs that count under caps."""
        if not self._books.capped:
            return []
        found = [self._books.capped.pop(finish.token, None) for finish in exchange.finishes]
        return [job for job in found if job is not None]

    def _make_room(self, answer: Exchanged, ended: list[str]) -> Exchanged:
        """Jobs under caps have ended or started: tell who waits for that. What is free is free
        without it."""
        self._books.starts = False
        more = answer.more
        with self._db.write() as tx:
            tx.ring("room")
            if ended and succession.waits(tx):
                more = succession.settle(tx) or more
        if ended:
            self._clear(ended)
        return replace(answer, more=more)

    def _clear(self, ended: list[str]) -> None:
        """Whoever wants their places need not look them up then. Somebody who takes one of them
        over may hold it and want another that we hold: in a transaction of its own, and given up
        before that could be called a deadlock, it keeps nobody waiting."""
        try:
            with self._db.write(timeout=BRIEF) as tx:
                capping.clear(tx, ended)
        except StoreBusy as error:
            log.debug("places of ended jobs are left to who wants them: %s", error)

    def _owned_now(self, exchange: Exchange) -> Exchange:
        """After a lost answer: slots may be under another name than the worker knows."""
        if not self._books.handed.concerns(exchange):
            return exchange
        with self._db.write() as tx:
            # It may still be under way: it holds this lock until it has ended either way.
            tx.lock([leases.lock_name(exchange.worker)])
            passed = self._books.handed.owned_now(tx, exchange)
        for before, now in zip(exchange.passed, passed, strict=True):
            if before.owner is not None and before.owner != now.owner:
                self._books.moved(before.owner, now.token if now.owner is None else now.owner)
        return replace(exchange, passed=passed)

    def _clear_doubt(
        self, exchange: Exchange, unheard: Unheard
    ) -> tuple[tuple[Claimed, ...], frozenset[int]]:
        """After a lost answer: what that round trip granted, if it happened; and what it told,
        which is told again and is then no news."""
        if not unheard:
            return (), frozenset()
        worker = exchange.worker
        room = 0 if exchange.claim is None else exchange.claim.room
        rows: list[Any] = []
        with self._db.write() as tx:
            # It may still be under way: it holds this lock until it has ended either way.
            tx.lock([leases.lock_name(worker)])
            for op, _ in unheard:
                text = tx.value(SQL.exchange.granted, (worker, op))
                rows += msgspec.json.decode(text) if text else []
            expire(tx, [row[1] for row in rows if row[0][_EXPIRED]])
            rows = [row for row in rows if not row[0][_EXPIRED]]
            # What was to follow others is given back: in whose slots is not written anywhere.
            # So is what there is no room for, now that other things are under way.
            back = [row for row in rows if row[0][_RESERVED]]
            rows = [row for row in rows if not row[0][_RESERVED]]
            rows, back = rows[:room], back + rows[room:]
            _end_all(tx, worker, "", [Finish(row[1], "returned") for row in back], {})
            if back:
                tx.ring("work", "room")
        self._books.forget([row[1] for row in back])
        found = [
            self._books.claimed(LaneKey(*where[:_RESERVED]), None, row) for where, *row in rows
        ]
        told = {one.token for _, e in unheard for one in (*e.finishes, *e.passed)}
        return tuple(found), frozenset(told)


def _end_all(
    tx: Transaction,
    worker: str,
    name: str,
    finishes: Sequence[Finish],
    refused: dict[int, Refusal],
) -> set[int]:
    """What was never started goes back together: after a moment in which nothing could be told
    that may be a thousand jobs, and everything else here would wait for each of them."""
    back = [one.token for one in finishes if one.outcome == "returned" and not one.followups]
    gone: set[int] = set()
    if back:
        params = {
            "worker": worker,
            "tokens": arrays.numbers(back),
            "scheduled": f'"{template.SCHEDULE}"',
        }
        gone.update(tx.value(SQL.finish.give_back, params))
        if gone:
            tx.ring("work")
    rest = [one for one in finishes if one.token not in gone]
    return finishing.finish_all(tx, worker, name, rest, lambda _, jobs: _submit(tx, jobs), refused)


def _plain(finish: Finish) -> bool:
    return finish.outcome in PLAIN and not finish.followups


def _split(exchange: Exchange) -> tuple[Exchange, Exchange]:
    """What is told statement by statement, which is slow, and all else. Of starts that which has to
    be known before those ends: that they had started, and who runs in their slots by now."""
    plain = tuple(finish for finish in exchange.finishes if _plain(finish))
    others = tuple(finish for finish in exchange.finishes if not _plain(finish))
    if any(job.caps or job.idempotency_key for finish in others for job in finish.followups):
        # Whether those are stored depends on who has ended or started before: all in its order.
        rest = replace(exchange, finishes=(), passed=())
        return Exchange(exchange.worker, exchange.finishes, passed=exchange.passed), rest
    tokens = {finish.token for finish in others}
    linked = _linked(exchange.passed)
    early: list[Passed] = []
    late: list[Passed] = []
    for one in exchange.passed:
        first = linked or one.token in tokens or one.owner in tokens
        (early if first else late).append(one)
    return (
        Exchange(exchange.worker, others, passed=early),
        replace(exchange, finishes=plain, passed=late),
    )


def _parts(exchange: Exchange) -> list[Exchange]:
    """The transactions in which this is told, one after the other. What follows from one end takes
    the locks of its caps in one order; after those of another end they come as the ends do, and
    somebody who tells two in the other order would wait for us while we wait for it. So there is
    one end at most, the last, from which something under a cap follows."""
    parts: list[list[Finish]] = [[]]
    for finish in exchange.finishes:
        parts[-1].append(finish)
        if postgres_capping.has_caps(finish.followups):
            parts.append([])
    first, *others = parts if parts[-1] or len(parts) == 1 else parts[:-1]
    # Starts come before all ends.
    return [
        replace(exchange, finishes=first),
        *(Exchange(exchange.worker, finishes) for finishes in others),
    ]


def _joined(*exchanges: Exchange) -> Exchange:
    """What all of them tell."""
    return replace(
        exchanges[-1],
        finishes=[finish for one in exchanges for finish in one.finishes],
        passed=[passed for one in exchanges for passed in one.passed],
    )


def _linked(passed: Sequence[Passed]) -> bool:
    """Are the same slots handed on twice? `act` hands all on at once: it would see the second time
    what was there before the first, and leave them with the one in the middle. When that one's end
    is told, they would be free, and somebody runs in them."""
    return not {one.owner for one in passed}.isdisjoint(one.token for one in passed)


def _submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """What follows from an attempt, in the transaction that ends it."""
    if postgres_capping.has_caps(jobs):
        return postgres_capping.submit(tx, jobs, again=False)
    return submitting.submit_all(tx, jobs)
