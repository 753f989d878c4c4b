"""Slots outside the claim: taken by hand, extended, released for a wait and taken again."""

from __future__ import annotations

import json

from headgate.claim import RESERVATION_BY_HAND, RESERVE_AFTER, Block, Grant, Room
from headgate.errors import StaleAttempt, TooWide, UnknownLimit
from headgate.limits import Need, Needs, check_group, split_group
from headgate.stores.protocol import SlotRecord, SlotRequest
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.events import record
from headgate.stores.sqlite.reserving import Reservations
from headgate.stores.sqlite.values import Values, carry, slot_record

_INSERT = """
INSERT INTO slots (grp, slot, token, holder, job, worker, worker_name, units, since, ends, boot)
VALUES (:grp, :slot, :token, :holder, :job, :worker, :worker_name, :units, :since, :ends, :boot)
"""
_ONE = """
SELECT s.*, '' AS overdue FROM slots s WHERE s.grp = :grp AND s.slot = :slot
"""


def take(tx: Transaction, request: SlotRequest) -> SlotRecord | None:
    """One slot, if there is room now."""
    group = check_group(request.group)
    if request.carries_limit:
        carry(tx, group, request.limit)
    room = Room(Values(tx).group)
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
    token = tx.next("token")
    tx.run(
        _INSERT,
        {
            "grp": group,
            "slot": slot,
            "token": token,
            "holder": request.holder,
            "job": None,
            "worker": None,
            "worker_name": request.worker,
            "units": request.units,
            "since": tx.now,
            "ends": tx.boot + request.lease,
            "boot": tx.boot_id,
        },
    )
    return slot_record(tx, tx.rows(_ONE, {"grp": group, "slot": slot})[0])


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
            reservations.reserve(lane, wanted, tx.next("place"))
    return None


def drop(tx: Transaction, group: str, slot: int, token: int | None, by: str) -> bool:
    """Give a slot back. Only its own token releases it; None is an operator's force."""
    row = tx.row(_ONE, {"grp": group, "slot": slot})
    if row is None or (token is not None and row["token"] != token):
        return False
    tx.run("DELETE FROM slots WHERE grp = ? AND slot = ?", (group, slot))
    if token is None:
        record(tx, "slot_released", group, by, slot=slot, holder=row["holder"], token=row["token"])
    tx.ring("work", "room")
    return True


def extend_slot(tx: Transaction, group: str, slot: int, token: int, seconds: float) -> float | None:
    """A later end for a slot that still lives; None when it does not."""
    row = tx.row(_ONE, {"grp": group, "slot": slot})
    if row is None or row["token"] != token:
        return None
    # A slot whose time is over may have been passed by in a count already: it is gone, even
    # if its row still stands.
    if row["worker"] is None and (row["boot"] != tx.boot_id or row["ends"] <= tx.boot):
        return None
    ends = max(tx.boot, row["ends"] or tx.boot) + seconds
    tx.run("UPDATE slots SET ends = ?, boot = ? WHERE grp = ? AND slot = ?",
           (ends, tx.boot_id, group, slot))  # fmt: skip
    return tx.now + (ends - tx.boot)


def expire(tx: Transaction, group: str | None = None) -> int:
    """Delete slots whose time is over. Nothing depends on it: they count no more anyway."""
    sql = "DELETE FROM slots WHERE worker IS NULL AND (boot <> ? OR ends <= ?)"
    params: list[object] = [tx.boot_id, tx.boot]
    if group is not None:
        sql, params = f"{sql} AND grp = ?", [*params, group]
    count = tx.run(sql, params).rowcount
    if count:
        tx.ring("work", "room")
    return count


# --- the slots of a running attempt ---------------------------------------------------------


def extend(tx: Transaction, token: int, seconds: float) -> bool:
    """Let the slots of this attempt count for `seconds` from now, worker or no worker."""
    running = tx.row("SELECT 1 FROM running WHERE token = ?", (token,))
    if running is None:
        return False
    tx.run("UPDATE slots SET ends = ?, boot = ? WHERE token = ?",
           (tx.boot + seconds, tx.boot_id, token))  # fmt: skip
    return True


def release(tx: Transaction, token: int) -> bool:
    """Give the slots back for a wait; the attempt goes on without them."""
    marked = tx.run("UPDATE running SET released = 1 WHERE token = ? AND released = 0", (token,))
    if marked.rowcount == 0:
        return False
    tx.run("DELETE FROM slots WHERE token = ?", (token,))
    tx.ring("work", "room")
    return True


def retake(tx: Transaction, token: int, waited: float) -> bool:
    """Take the same groups again, all or none."""
    running = tx.row(
        "SELECT r.job, r.worker, r.slots, r.released, j.id FROM running r"
        " JOIN jobs j ON j.n = r.job WHERE r.token = ?",
        (token,),
    )
    if running is None:
        raise StaleAttempt("the attempt was lost while it waited: its slots cannot be taken again")
    if not running["released"]:
        return True
    held: list[tuple[str, int, int]] = json.loads(running["slots"])
    room = Room(Values(tx).group)
    needs = Needs(tuple(Need(*split_group(group), units) for group, _, units in held))
    grant = take_in_line(tx, room, needs, f"again\x1f{token}", waited)
    if grant is None:
        return False
    name = tx.value("SELECT name FROM workers WHERE id = ?", (running["worker"],)) or ""
    for slot in grant.slots:
        tx.run(
            _INSERT,
            {
                "grp": slot.group,
                "slot": slot.slot,
                "token": token,
                "holder": running["id"],
                "job": running["job"],
                "worker": running["worker"],
                "worker_name": name,
                "units": slot.units,
                "since": tx.now,
                "ends": None,
                "boot": None,
            },
        )
    text = json.dumps([[s.group, s.slot, s.units] for s in grant.slots], ensure_ascii=False)
    tx.run("UPDATE running SET released = 0, slots = ? WHERE token = ?", (text, token))
    return True
