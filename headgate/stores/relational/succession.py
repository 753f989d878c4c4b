"""Jobs that stand for another: they enter the line when the other has left.

Who submits under a cap with `replace` or `cancel_running` only notes whom the new job stands for.
What there is to do about it is done here, by whoever comes along: the submit itself where the
transaction is ours, the worker that ends the other job, or any worker at its next round trip.
"""

from __future__ import annotations

from collections import Counter

from headgate.errors import JobNotFound
from headgate.stores.relational import capping, inspecting, moves
from headgate.stores.relational.tally import note
from headgate.stores.relational.transaction import Row, Transaction

AT_ONCE = 200
SUPERSEDED = "superseded"


def waits(tx: Transaction) -> bool:
    return tx.row(tx.sql.caps.some_held) is not None


def settle(tx: Transaction, job: str | None = None) -> bool:
    """Let everybody in whose predecessor has left; of `job` only, if that is given. True when
    there was anybody."""
    done: Counter[tuple[str, str]] = Counter()
    by_job: dict[str, list[Row]] = {}
    # Where many write at once, what somebody else settles just now is passed over.
    for row in tx.rows(tx.sql.caps.held, {"job": job, "limit": AT_ONCE}):
        by_job.setdefault(row["job"], []).append(row)
    for id, rows in by_job.items():
        _settle_one(tx, id, rows, done)
    for (kind, group), count in sorted(done.items()):
        note(tx, kind, group, count)
    return bool(done)


def is_held(tx: Transaction, job: str) -> bool:
    return tx.row(tx.sql.caps.is_held, {"job": job}) is not None


def _settle_one(tx: Transaction, id: str, rows: list[Row], done: Counter[tuple[str, str]]) -> None:
    """`done` counts what became of the others, by kind of event and group."""
    places: list[int] = []
    for row in rows:
        if row["after"] is None:
            continue  # everybody has left
        try:
            other = inspecting.job_row(tx, row["after"])
        except JobNotFound:
            other = None
        if other is not None and other["f_state"] is None:
            if other["token"] is not None:
                continue  # it runs since a moment ago: it has not really ended
            # It is asked first whom the other stands for: that is whom we wait for from now on.
            tx.run(tx.sql.caps.inherit, {"job": id, "after": row["after"]})
            if not inspecting.take_out_of_line(tx, other):
                continue  # somebody claims or cancels it just now
            attempt = other["q_attempt"] or other["s_attempt"] or 0
            moves.conclude(tx, other["n"], "cancelled", SUPERSEDED, attempt=attempt)
            if other["q_attempt"] is not None:
                places.append(other["place"])
        if other is not None:
            # Whoever asked for its end may have done so when it had ended already.
            tx.run(tx.sql.moves.delete_cancel, {"job": other["n"]})
            capping.clear(tx, [row["after"]])
        tx.run(tx.sql.caps.delete_held_for, {"job": id, "after": row["after"]})
        done[("cap_replaced" if row["kind"] == "replace" else "cap_cancelled", row["grp"])] += 1
    if not is_held(tx, id):
        _let_in(tx, id, min(places, default=None))


def _let_in(tx: Transaction, id: str, place: int | None) -> None:
    try:
        row = inspecting.job_row(tx, id)
    except JobNotFound:
        return
    # The row that is deleted decides: who was cancelled meanwhile is not there any more.
    marker = {"task": capping.HELD, "job": row["n"]}
    if tx.run(tx.sql.jobs.delete_unrouted, marker).rowcount == 0:
        return
    if not row["band"]:
        tx.run(tx.sql.jobs.insert_unrouted, {"task": row["task"], "job": row["n"]})
    elif row["run_at"] is not None and row["run_at"] > tx.now:
        moves.schedule(tx, row["n"], row["run_at"], 0, keeps_place=False, reason="delayed")
    else:
        if place is not None:
            tx.run(tx.sql.caps.set_place, {"job": row["n"], "place": place})
        moves.back(tx, row["n"], 0)
    tx.ring("work")
