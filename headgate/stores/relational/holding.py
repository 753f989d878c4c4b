"""Slots outside the claim: taken by hand, extended, released for a wait and taken again."""

from __future__ import annotations

import json

from headgate.claim import RESERVATION_BY_HAND, RESERVE_AFTER, Block, Grant, Room
from headgate.errors import StaleAttempt, StoreError, TooWide, UnknownLimit
from headgate.limits import Need, Needs, check_group, split_group
from headgate.rates import RATE_SLOT, refuse_slots
from headgate.stores.protocol import SlotRecord, SlotRequest
from headgate.stores.relational.events import record
from headgate.stores.relational.reserving import Reservations
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values, WordsCache, carry


def take(
    tx: Transaction, request: SlotRequest, words: WordsCache | None = None
) -> SlotRecord | None:
    """One slot, if there is room now. The group is locked by then."""
    group = check_group(request.group)
    if request.carries_limit:
        carry(tx, group, request.limit)
    values = Values(tx, words)
    refuse_slots(values.of(group).pace, group)
    room = Room(values.group)
    state = room.group(group)
    if state.missing:
        raise UnknownLimit(
            f"no limit is declared for {group!r}: pass limit=…, or declare it with app.limit(),"
            " in headgate.toml or with `headgate concurrency set`"
        )
    if state.value is not None and 0 < state.value < request.units:
        raise TooWide(
            f"{request.units} units of {group!r} were asked for, its limit is {state.value}"
        )
    needs = Needs((Need(*split_group(group), request.units),))
    grant = take_in_line(tx, room, needs, f"by hand\x1f{request.holder}", request.waited)
    if grant is None:
        return None
    slot = grant.slots[0].slot
    (token,) = tx.numbers("token", 1)
    _hold(
        tx, group, slot, token,
        holder=request.holder, worker_name=request.worker, units=request.units,
        ends=tx.boot + request.lease, boot=tx.boot_id,
    )  # fmt: skip
    return request.granted(group, slot, token, tx.now)


def _hold(
    tx: Transaction, group: str, slot: int, token: int, *,
    holder: str, worker_name: str, units: int, job: int | None = None,
    worker: str | None = None, ends: float | None = None, boot: str | None = None,
) -> None:  # fmt: skip
    """Write a holder down, in a number that the count has just found free."""
    row = {
        "grp": group,
        "slot": slot,
        "token": token,
        "holder": holder,
        "job": job,
        "worker": worker,
        "worker_name": worker_name,
        "units": units,
        "since": tx.now,
        "ends": ends,
        "boot": boot,
    }
    if tx.run(tx.sql.slots.take, row).rowcount != 1:
        raise StoreError(
            f"slot {slot} of {group!r} was taken while its group was locked: somebody writes"
            " slots without the lock; see headgate doctor"
        )


def take_in_line(
    tx: Transaction, room: Room, needs: Needs, lane: str, waited: float
) -> Grant | None:
    """All of `needs`, if there is room now. Who has waited for too long gets what becomes free
    next: a worker that frees a slot takes it again in the same transaction, so between its jobs
    there is no moment at which anyone else could."""
    reservations = Reservations(tx, room, seconds=RESERVATION_BY_HAND)
    plan = room.plan(needs, lane)
    if not isinstance(plan, Block):
        if reservations.has(lane, needs):
            reservations.drop(lane)
        return room.grant(plan, len(needs.all))
    if waited >= RESERVE_AFTER and (wanted := room.to_reserve(needs, lane)):
        if reservations.has(lane, needs):
            reservations.renew(lane)
        else:
            reservations.reserve(lane, wanted, tx.numbers("place", 1)[0])
    return None


def drop(tx: Transaction, group: str, slot: int, token: int | None, by: str) -> bool:
    """Give a slot back. Only its own token releases it; None is an operator's force. What an
    operator releases, with or without one, is recorded."""
    row = tx.row(tx.sql.slots.one, {"grp": group, "slot": slot})
    if row is None or (token is not None and row["token"] != token):
        return False
    params = {"grp": group, "slot": slot, "token": row["token"], "now": tx.now}
    if tx.run(tx.sql.slots.drop, params).rowcount == 0:
        return False
    if token is None or by:
        refuse_slots(Values(tx).of(group).pace, group)
        record(tx, "slot_released", group, by, slot=slot, holder=row["holder"], token=row["token"])
    tx.ring("work", "room")
    return True


def extend_slot(tx: Transaction, group: str, slot: int, token: int, seconds: float) -> float | None:
    """A later end for a slot that still lives; None when it does not."""
    # Under the lock of the group: somebody who counts there just now either finds the new end
    # or has freed the slot by the time we look.
    tx.lock([group])
    row = tx.row(tx.sql.slots.one, {"grp": group, "slot": slot})
    if row is None or row["token"] != token:
        return None
    # A slot whose time is over may have been passed by in a count already: it is gone, even
    # if its row still stands.
    if row["worker"] is None and (row["boot"] != tx.boot_id or row["ends"] <= tx.boot):
        return None
    ends = max(tx.boot, row["ends"] or tx.boot) + seconds
    params = {"grp": group, "slot": slot, "token": token, "ends": ends, "boot_id": tx.boot_id}
    if tx.run(tx.sql.slots.extend, params).rowcount == 0:
        return None
    return tx.now + (ends - tx.boot)


def expire(tx: Transaction, group: str | None = None) -> int:
    """Free slots whose time is over. Nothing depends on it: they count no more anyway."""
    params = {"grp": group, "now": tx.now, "boot": tx.boot, "boot_id": tx.boot_id}
    count = tx.run(tx.sql.slots.expire, params).rowcount
    if count:
        tx.ring("work", "room")
    return count


# --- the slots of a running attempt ---------------------------------------------------------


def extend(tx: Transaction, token: int, seconds: float) -> bool:
    """Let the slots of this attempt count for `seconds` from now, worker or no worker."""
    # Locked, so that the attempt is not declared lost between this look and the new end.
    running = tx.row(tx.sql.slots.running, {"token": token})
    if running is None:
        return False
    params = {"token": token, "slots": running["slots"]}
    ends = {"ends": tx.boot + seconds, "boot_id": tx.boot_id}
    tx.run(tx.sql.slots.extend_attempt, {**params, **ends})
    return True


def release(tx: Transaction, token: int) -> bool:
    """Give the slots back for a wait; the attempt goes on without them."""
    if tx.run(tx.sql.slots.mark_released, {"token": token}).rowcount == 0:
        return False
    slots = tx.value(tx.sql.slots.groups_of_attempt, {"token": token})
    tx.run(tx.sql.finish.free_slots, {"token": token, "slots": slots, "now": tx.now})
    tx.ring("work", "room")
    return True


def groups_of(tx: Transaction, token: int) -> list[str]:
    """The groups that an attempt holds, or held before it released them."""
    running = _attempt(tx, tx.sql.slots.groups_of_attempt, token)
    return [group for group, slot, _ in json.loads(running["slots"]) if slot != RATE_SLOT]


def retake(tx: Transaction, token: int, waited: float) -> bool:
    """Take the same groups again, all or none. They are locked by then."""
    # Read under the locks, and locked itself from now on: the attempt may have been lost while
    # we waited for them, and its row is all that says that it lives.
    running = _attempt(tx, tx.sql.slots.attempt, token)
    if not running["released"]:
        return True
    cells: list[tuple[str, int, int]] = json.loads(running["slots"])
    # The start that a rate gave it is spent, and is not asked for again.
    held = [cell for cell in cells if cell[1] != RATE_SLOT]
    started = [cell for cell in cells if cell[1] == RATE_SLOT]
    room = Room(Values(tx).group)
    needs = Needs(tuple(Need(*split_group(group), units) for group, _, units in held))
    grant = take_in_line(tx, room, needs, f"again\x1f{token}", waited)
    if grant is None:
        return False
    name: str = tx.value(tx.sql.workers.known, {"worker": running["worker"]}) or ""
    for slot in grant.slots:
        _hold(
            tx, slot.group, slot.slot, token,
            holder=running["id"], worker_name=name, units=slot.units,
            job=running["job"], worker=running["worker"],
        )  # fmt: skip
    again = [*started, *((s.group, s.slot, s.units) for s in grant.slots)]
    text = json.dumps(again, ensure_ascii=False)
    tx.run(tx.sql.slots.mark_retaken, {"token": token, "slots": text})
    return True


def _attempt(tx: Transaction, sql: str, token: int) -> Row:
    running = tx.row(sql, {"token": token})
    if running is None:
        raise StaleAttempt("the attempt was lost while it waited: its slots cannot be taken again")
    return running


def overdue(tx: Transaction, token: int, reason: str) -> None:
    """Its time is over and its code cannot be stopped: it holds what it holds, and is shown."""
    tx.run(tx.sql.slots.mark_overdue, {"token": token, "reason": reason})
    attempt = tx.row(tx.sql.slots.attempt, {"token": token})
    if attempt is not None:
        record(tx, "attempt_overdue", attempt["id"], attempt["worker_name"] or "", reason=reason)
