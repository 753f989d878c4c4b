"""Do the tables agree with each other? What can be mended is mended on request.

`jobs` and `finished` are the truth; `ready`, `running` and the slots follow from them and from
each other, and are rebuilt where they disagree.
"""

from __future__ import annotations

import json

from headgate.rates import RATE_SLOT
from headgate.stores.protocol import Trouble
from headgate.stores.relational import capping, moves, overruns
from headgate.stores.relational.finishing import lose
from headgate.stores.relational.transaction import Row, Transaction


class Findings:
    """What was found, in the order of the search."""

    def __init__(self, *, repair: bool) -> None:
        self.repair = repair
        self.troubles: list[Trouble] = []

    def add(self, count: int, what: str, detail: str, mending: str = "") -> None:
        if count:
            done = self.repair and bool(mending)
            self.troubles.append(Trouble(what, f"{detail}: {count}", mending, done))


def examine(tx: Transaction, found: Findings) -> None:
    """Each question is one statement, so that it sees one moment: a job that moves from one
    table to another while we look is always in one of them."""
    sql = tx.sql.doctor
    workerless = tx.rows(sql.workerless)
    found.add(len(workerless), "workerless-attempts", "attempts that belong to no worker",
              "lose them")  # fmt: skip
    holderless = tx.rows(sql.holderless)
    found.add(len(holderless), "holderless-slots", "slots that name no running attempt",
              "release them")  # fmt: skip
    slotless = tx.rows(sql.slotless)
    found.add(len(slotless), "slotless-attempts", "attempts that lack a slot which they hold",
              "write it down again")  # fmt: skip
    nowhere = tx.rows(sql.nowhere)
    found.add(len(nowhere), "jobs-nowhere", "jobs that are in no state", "put them back into line")
    bodiless = tx.rows(sql.bodiless)
    found.add(len(bodiless), "bodiless-rows", "places in line that have no job", "delete them")
    elsewhere = tx.rows(sql.elsewhere)
    found.add(len(elsewhere), "jobs-in-line-twice",
              "places in line of jobs that run, wait for their time or are over",
              "delete them")  # fmt: skip
    found.add(tx.value(sql.twice), "jobs-twice", "jobs that are both running and finished")
    found.add(overruns.recent(tx), "over-runs",
              "attempts that ran on after their lease was lost, in the last day")  # fmt: skip
    uncounted = [*tx.rows(tx.sql.caps.unplaced), *tx.rows(tx.sql.caps.unplaced_running)]
    found.add(len(uncounted), "uncounted-jobs", "jobs that lack a place under a cap",
              "count them again")  # fmt: skip
    unmarked = tx.rows(tx.sql.caps.unmarked, {"held": capping.HELD})
    found.add(len(unmarked), "unmarked-successors",
              "jobs that wait for another to leave and that nobody would notice",
              "mark them")  # fmt: skip
    if not found.repair:
        return
    # Before the first write; whoever grants there just now has numbered what it takes when this
    # goes on, and who comes later counts what is written down here.
    tx.lock({group for row in slotless for group, _, _ in json.loads(row["slots"])})
    for row in uncounted:
        capping.count_again(tx, row["id"], row["caps"])
    for row in unmarked:
        tx.run(tx.sql.jobs.insert_unrouted, {"task": capping.HELD, "job": row["n"]})
    for row in workerless:
        lose(tx, row["token"], "?", "found by doctor without a worker")
    for row in holderless:
        params = {"grp": row["grp"], "slot": row["slot"], "token": row["token"], "now": tx.now}
        tx.run(tx.sql.slots.drop, params)
    for row in slotless:
        _hold_again(tx, row["token"])
    for row in (*bodiless, *elsewhere):
        place = {k: row[k] for k in ("queue", "priority", "band", "turn", "lane", "place", "n")}
        tx.run(tx.sql.jobs.delete_ready, place)
    for row in nowhere:
        _put_back(tx, row)
    tx.ring("work")


def _put_back(tx: Transaction, row: Row) -> None:
    """Where the job was submitted to. Until when one waited that had run before is not known any
    more: it may start."""
    if not row["band"]:
        tx.run(tx.sql.jobs.insert_unrouted, {"task": row["task"], "job": row["n"]})
    elif not row["attempt"] and row["run_at"] is not None and row["run_at"] > tx.now:
        moves.schedule(tx, row["n"], row["run_at"], 0, keeps_place=False, reason="delayed")
    else:
        moves.back(tx, row["n"], row["attempt"])


def _hold_again(tx: Transaction, token: int) -> None:
    """The attempt runs, so its slots are held, whatever the limit says by now."""
    running = tx.row(tx.sql.slots.attempt, {"token": token})
    if running is None or running["released"]:
        return
    rows = tx.rows(tx.sql.slots.of_worker, {"worker": running["worker"]})
    held = {(row["grp"], row["slot"]) for row in rows}
    kept: list[tuple[str, int, int]] = []
    for group, slot, units in json.loads(running["slots"]):
        if (group, slot) in held or slot == RATE_SLOT:
            kept.append((group, slot, units))
            continue
        number: int = tx.value(tx.sql.slots.next_free, {"grp": group})
        row = {
            "grp": group,
            "slot": number,
            "token": token,
            "holder": running["id"],
            "job": running["job"],
            "worker": running["worker"],
            "worker_name": running["worker_name"] or "",
            "units": units,
            "since": tx.now,
            "ends": None,
            "boot": None,
        }
        tx.run(tx.sql.slots.take, row)
        kept.append((group, number, units))
    text = json.dumps(kept, ensure_ascii=False)
    tx.run(tx.sql.slots.mark_retaken, {"token": token, "slots": text})
