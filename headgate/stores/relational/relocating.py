"""A job that waits is put into another queue, or given another priority."""

from __future__ import annotations

from headgate.errors import StoreError
from headgate.jobs import JobRecord
from headgate.limits import check_name
from headgate.options import check_priority
from headgate.stores.relational import inspecting, moves
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Row, Transaction


def relocate(
    tx: Transaction, id: str, queue: str | None, priority: int | None, by: str
) -> JobRecord:
    """It keeps its place among those of its lane: who waited longer still goes first."""
    if queue is not None:
        check_name(queue, "queue")
    if priority is not None:
        check_priority(priority)
    for _ in range(inspecting.LOOKS):
        row = inspecting.job_row(tx, id)
        found = inspecting.to_record(row)
        if found.state not in ("ready", "scheduled") or not row["band"] or row["reserved"]:
            why = "no worker has routed it yet" if found.reason == "unrouted" else found.state
            raise StoreError(
                f"job {id} cannot be moved ({why}): only a job that waits in line can be"
            )
        if row["held"]:
            raise StoreError(f"job {id} waits for a cap, in no queue: it can be moved later")
        to = {
            "queue": found.queue if queue is None else queue,
            "priority": found.priority if priority is None else priority,
        }
        if (to["queue"], to["priority"]) == (found.queue, found.priority):
            return found
        if _move(tx, row, to):
            was = {"queue": found.queue, "priority": found.priority}
            record(tx, "job_moved", id, by, old=was, new=to)
            return inspecting.to_record(inspecting.job_row(tx, id))
        # Somebody claimed, promoted or cancelled it between the look and the deed: look again.
    raise StoreError(f"job {id} could not be moved: it was never where it was looked for")


def _move(tx: Transaction, row: Row, to: dict[str, str | int]) -> bool:
    job = {"job": row["n"]}
    if row["s_run_at"] is not None:
        # The row is held until the end, so that who promotes it passes it over, and reads the
        # new queue when it comes again.
        if tx.run(tx.sql.watch.hold_scheduled, job).rowcount == 0:
            return False
        tx.run(tx.sql.watch.relocate, {**job, **to})
        return True
    since = row["since"]
    # Whoever deletes the row of the line has the job: a claim that came first has it, and this
    # finds none. The body is changed while nobody can find the job by it.
    if since is None or not inspecting.take_out_of_line(tx, row):
        return False
    tx.run(tx.sql.watch.relocate, {**job, **to})
    moves.back(tx, row["n"], row["q_attempt"], since=since)
    return True
