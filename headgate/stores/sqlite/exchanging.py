"""One round trip of a worker: what ended, then what may start next, in one transaction."""

from __future__ import annotations

from headgate.choice import Chooser
from headgate.jobs import Refusal
from headgate.stores.protocol import Exchange, Exchanged
from headgate.stores.relational import finishing, moves, overriding, registry, routing, succession
from headgate.stores.relational.values import ENDED, Values, WordsCache
from headgate.stores.sqlite import submitting
from headgate.stores.sqlite.claiming import grant_all, note_starts
from headgate.stores.sqlite.line import TransactionLine
from headgate.stores.sqlite.liveness import Living, reap
from headgate.stores.sqlite.queries import Queries
from headgate.stores.sqlite.transaction import Row, Transaction
from headgate.turns import ClaimState

Q = Queries("exchange")


def exchange(
    tx: Transaction, exchange: Exchange, liveness: Living, words: WordsCache
) -> tuple[Exchanged, list[str]]:
    """The answer, and the workers that were found dead on the way."""
    workers = registry.names(tx)
    name = workers.pop(exchange.worker, None)
    if name is None:
        stale = {f.token for f in (*exchange.passed, *exchange.finishes, *exchange.progress)}
        return Exchanged(stale=frozenset(stale), dead=True), []
    stale = finishing.pass_on(tx, exchange.worker, exchange.passed)
    refused: dict[int, Refusal] = {}
    stale |= finishing.finish_all(
        tx, exchange.worker, name, exchange.finishes, submitting.submit, refused
    )
    stale |= finishing.report_progress(tx, exchange.worker, exchange.progress)
    lost = reap(tx, liveness, workers)
    seen = glance(tx)
    if seen["unrouted"] and exchange.claim is not None and succession.waits(tx):
        succession.settle(tx)
    if seen["version"] == ENDED:
        overriding.end(tx)
        seen = glance(tx)
    claimed, more = (), False
    if exchange.claim is not None:
        if seen["next_due"] is not None and seen["next_due"] <= tx.now:
            more = moves.promote(tx) >= moves.PROMOTED_AT_ONCE
            seen = glance(tx)
        if exchange.claim.room > 0 or exchange.claim.ahead_room > 0:
            values = Values(
                tx, words, version=seen["version"], reservations=bool(seen["reservations"])
            )
            line = TransactionLine(
                *(tx, exchange.worker, values),
                paused_queues=bool(seen["paused"]),
                marks=bool(seen["refused"]),
            )
            claim = values.words.weigh(exchange.claim)
            chooser = Chooser(line, claim, workers=len(workers) - len(lost) + 1, freed=tx.freed)
            unfinished = chooser.run()
            claimed = grant_all(tx, exchange.worker, name, chooser.taken)
            note_starts(tx, chooser.room)
            # Room that this claim took again wakes nobody; room that it found no job for wakes
            # only who waits for a slot by hand, unless the job of another worker may want it: a
            # bell for every finish would keep all workers asking.
            if all(chooser.room.is_full(group) for group in tx.freed):
                tx.freed.clear()
            elif not chooser.leaves_some:
                tx.freed.clear()
                tx.ring("room")
            more = more or unfinished
    recall = exchange.claim is not None and changed(exchange.claim.state, seen)
    answer = Exchanged(
        stale=frozenset(stale),
        refused=tuple(refused.items()),
        claimed=claimed,
        more=more,
        wake_in=None if exchange.claim is None else wake_in(tx, seen, exchange.claim.state.opens),
        cancels=cancels(tx, exchange.worker) if seen["cancels"] else (),
        unrouted=bool(
            seen["unrouted"]
            and exchange.claim is not None
            and routing.unrouted_tasks(tx) & exchange.claim.tasks
        ),
        recall=recall,
    )
    return answer, lost


def glance(tx: Transaction) -> Row:
    """In one look, what there is at all: most round trips need no second one."""
    row = tx.row(Q.glance, {"boot_id": tx.boot_id, "boot": tx.boot, "now": tx.now})
    assert row is not None
    return row


def changed(state: ClaimState, seen: Row) -> bool:
    """Was a limit or a pause changed since the worker's last claim?"""
    before, state.seen = state.seen, (seen["version"], seen["paused"])
    return before is not None and before != state.seen


def wake_in(tx: Transaction, seen: Row, opens: float | None) -> float | None:
    """Seconds until the next delayed job is due, a slot taken by hand or a word ends, or a rate
    opens that keeps a job waiting."""
    times: list[float] = [] if opens is None else [opens - tx.boot]
    if seen["next_due"] is not None:
        times.append(seen["next_due"] - tx.now)
    if seen["next_end"] is not None:
        times.append(seen["next_end"] - tx.boot)
    if seen["words_end"] is not None:
        times.append(seen["words_end"] - tx.now)
    return max(0.0, min(times)) if times else None


def cancels(tx: Transaction, worker: str) -> tuple[tuple[int, str], ...]:
    rows = tx.rows(Q.cancels, {"worker": worker})
    return tuple((row["token"], row["reason"]) for row in rows)
