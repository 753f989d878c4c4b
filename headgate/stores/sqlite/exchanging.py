"""One round trip of a worker: what ended, then what may start next, in one transaction."""

from __future__ import annotations

from headgate.jobs import Claimed
from headgate.stores.protocol import Claim, Exchange, Exchanged
from headgate.stores.sqlite import finishing, moves, registry, submitting
from headgate.stores.sqlite.claiming import Claimer
from headgate.stores.sqlite.database import Row, Transaction
from headgate.stores.sqlite.liveness import Liveness
from headgate.stores.sqlite.queries import Queries
from headgate.stores.sqlite.values import Values, WordsCache

Q = Queries("exchange")


def exchange(
    tx: Transaction, exchange: Exchange, liveness: Liveness, words: WordsCache
) -> tuple[Exchanged, list[str]]:
    """The answer, and the workers that were found dead on the way."""
    workers = registry.names(tx)
    name = workers.pop(exchange.worker, None)
    if name is None:
        stale = {f.token for f in exchange.finishes} | {p.token for p in exchange.progress}
        return Exchanged(stale=frozenset(stale), dead=True), []
    stale = finishing.finish_all(tx, exchange.worker, name, exchange.finishes)
    stale |= finishing.report_progress(tx, exchange.worker, exchange.progress)
    lost = registry.reap(tx, liveness, workers)
    seen = glance(tx)
    claimed, more = (), False
    if exchange.claim is not None:
        if seen["next_due"] is not None and seen["next_due"] <= tx.now:
            more = moves.promote(tx) >= moves.PROMOTED_AT_ONCE
            seen = glance(tx)
        if exchange.claim.room > 0:
            claimed, unfinished = claim(tx, exchange.worker, name, exchange.claim, words, seen)
            more = more or unfinished
    answer = Exchanged(
        stale=frozenset(stale),
        claimed=claimed,
        more=more,
        wake_in=wake_in(tx, seen),
        cancels=cancels(tx, exchange.worker) if seen["cancels"] else (),
        unrouted=bool(
            seen["unrouted"]
            and exchange.claim is not None
            and submitting.unrouted_tasks(tx) & exchange.claim.tasks
        ),
    )
    return answer, lost


def glance(tx: Transaction) -> Row:
    """In one look, what there is at all: most round trips need no second one."""
    row = tx.row(Q.glance, {"boot_id": tx.boot_id})
    assert row is not None
    return row


def claim(
    tx: Transaction, worker: str, name: str, claim: Claim, words: WordsCache, seen: Row
) -> tuple[tuple[Claimed, ...], bool]:
    values = Values(tx, words, version=seen["version"], reservations=bool(seen["reservations"]))
    claimer = Claimer(tx, worker, name, claim, values, paused_queues=bool(seen["paused"]))
    claimed, unfinished = claimer.run()
    # Room that this claim took again, or found nobody waiting for, wakes nobody: a bell for
    # every finish would keep all workers asking.
    free = {group for group in tx.freed if claimer.room.group(group).free() > 0}
    tx.freed = free if claimer.leaves_some else set()
    return claimed, unfinished


def wake_in(tx: Transaction, seen: Row) -> float | None:
    """Seconds until the next delayed job is due, or a slot taken by hand ends."""
    times: list[float] = []
    if seen["next_due"] is not None:
        times.append(seen["next_due"] - tx.now)
    if seen["next_end"] is not None:
        times.append(seen["next_end"] - tx.boot)
    return max(0.0, min(times)) if times else None


def cancels(tx: Transaction, worker: str) -> tuple[tuple[int, str], ...]:
    rows = tx.rows(Q.cancels, {"worker": worker})
    return tuple((row["token"], row["reason"]) for row in rows)
