"""Write what a claim chose: attempts and slots appear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headgate.choice import Taken
from headgate.choice.ahead import held_in
from headgate.claim import Room
from headgate.jobs import Claimed
from headgate.stores.sqlite.queries import Queries
from headgate.stores.sqlite.transaction import Transaction

Q = Queries("claim")


def grant_all(
    tx: Transaction, worker: str, worker_name: str, taken: Sequence[Taken]
) -> tuple[Claimed, ...]:
    if not taken:
        return ()
    first = tx.next("token", len(taken))
    running: list[tuple[Any, ...]] = []
    slots: list[tuple[Any, ...]] = []
    claimed: list[Claimed] = []
    for token, one in enumerate(taken, first):
        key, row, grant = one.key, one.row, one.grant
        attempt = row["attempt"] + 1
        cells = [[s.group, s.slot, s.units] for s in grant.slots]
        if one.reserved:
            # It will hold these, in slots that are another's now: for those who look it up.
            cells = [[group, -1, units] for group, units in held_in(one.chain)]
        held = json.dumps(cells, ensure_ascii=False)
        if row["caps"] is not None:
            tx.ring("room")  # one that waited starts: somebody may wait to submit the next
        running.append(
            (token, row["job"], worker, attempt, tx.now, row["since"], held, one.reserved)
        )
        slots += [
            (s.group, s.slot, token, row["id"], row["job"], worker, worker_name, s.units, tx.now)
            for s in grant.slots
            if s.given_back
        ]
        groups = tuple((s.group, s.slot) for s in grant.slots if s.given_back)
        if one.reserved:
            groups = tuple((group, -1) for group, _ in held_in(one.chain))
        errors, lost = _history(tx, row["job"]) if row["attempt"] else (0, 0)
        claimed.append(
            Claimed(
                job=row["id"],
                token=token,
                attempt=attempt,
                task=row["task"],
                args=row["args"],
                queue=key.queue,
                priority=key.priority,
                turn=key.turn,
                options=row["options"],
                groups=groups,
                picked=grant.picked,
                errors=errors,
                lost=lost,
                created_at=row["created_at"],
                ready_at=row["since"],
                started_at=tx.now,
                chain=one.chain,
                reserved=one.reserved,
            )
        )
    tx.many(Q.insert_running, running)
    tx.many(Q.insert_slot, slots)
    return tuple(claimed)


def note_starts(tx: Transaction, room: Room) -> None:
    """Write down what this claim has started under rates: in one row for each group, or in one
    of a moment ago, which then counts as long as its last start does."""
    for group, starts in room.started():
        params = {
            "grp": group.name,
            "units": starts.new,
            "ends": tx.boot + starts.pace.per,
            "step": starts.pace.step,
            "now": tx.now,
            "boot": tx.boot,
            "boot_id": tx.boot_id,
        }
        if tx.run(Q.merge_starts, params).rowcount == 0:
            slot = min(set(range(len(group.numbers) + 1)) - group.numbers)
            tx.run(Q.insert_starts, {**params, "slot": slot, "token": tx.next("token", 1)})


def _history(tx: Transaction, job: int) -> tuple[int, int]:
    sql = "SELECT outcome, count(*) AS n FROM attempts WHERE job = ? GROUP BY outcome"
    counts = {row["outcome"]: row["n"] for row in tx.rows(sql, (job,))}
    return counts.get("error", 0), counts.get("lost", 0)
