"""Slots by hand, each operation in one round trip: a statement that is its own transaction.

What a limit's value is was worked out here, by words that the statement checks for being in force;
see `headgate.take_slot`. Whatever is more than counting (`Undecided`) goes the long way, step by
step in a transaction.
"""

from __future__ import annotations

from headgate.claim import RESERVE_AFTER
from headgate.rates import refuse_slots
from headgate.stores.postgres import arrays
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL
from headgate.stores.protocol import SlotRecord, SlotRequest
from headgate.stores.relational.values import Words

_FREED = arrays.texts(("work", "room"))


class Undecided(Exception):
    """There is more to it than counting. Nothing was changed."""


def take(database: Database, group: str, request: SlotRequest, words: Words) -> SlotRecord | None:
    """One slot, if there is room now."""
    said = words.of(group)
    refuse_slots(said.pace, group)
    if said.paused:
        raise Undecided
    params = {
        "grp": group,
        "units": request.units,
        "holder": request.holder,
        "worker": request.worker,
        "lease": request.lease,
        "version": words.version,
        "said": said.source != "none",
        "value": said.value,
        "carries": request.carries_limit,
    }
    ((outcome, slot, token, at),) = database.call(SQL.slots.take_now, params)
    if outcome == "ask" or (outcome == "full" and request.waited >= RESERVE_AFTER):
        raise Undecided  # who has waited for too long reserves what becomes free next
    if outcome == "full":
        return None
    return request.granted(group, slot, token, at)


def drop(database: Database, group: str, slot: int, token: int) -> bool:
    """Give a slot back; only its own token does."""
    params = {"grp": group, "slot": slot, "token": token}
    # Rung behind it, by a transaction that begins after the commit: see `Database._commit`.
    dropped, _ = database.call_two(SQL.slots.drop_now, params, (SQL.exchange.ring, (_FREED,)))
    return dropped is not None


def extend(database: Database, group: str, slot: int, token: int, seconds: float) -> float | None:
    """A later end for a slot that still lives; None when it does not."""
    params = {"grp": group, "slot": slot, "token": token, "seconds": seconds}
    ((ends,),) = database.call(SQL.slots.extend_now, params)
    return ends
