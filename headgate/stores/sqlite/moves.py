"""A state change is a row that moves: the moves that several operations share."""

from __future__ import annotations

import json

from headgate.jobs import Failure, State
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.queries import Queries

Q = Queries("moves")
PROMOTED_AT_ONCE = 500


def conclude(
    tx: Transaction, job: int, state: State, reason: str = "", *,
    result: str | None = None, error: str | None = None, attempt: int = 0, asked: bool = True,
) -> None:  # fmt: skip
    """The job is over. `asked` is False when it is known that nobody asked to cancel it."""
    if asked:
        tx.run(Q.delete_cancel, {"job": job})
    tx.run(
        Q.insert_finished,
        {
            "job": job,
            "state": state,
            "reason": reason,
            "result": result,
            "error": error,
            "attempt": attempt,
            "at": tx.now,
        },
    )
    tx.ring("done")


def back(tx: Transaction, job: int, attempt: int, *, since: float | None = None) -> None:
    """Back into line, at the place it had; `since` when it never left it to run."""
    params = {"job": job, "attempt": attempt, "since": tx.now if since is None else since}
    tx.run(Q.insert_ready, params)
    tx.ring("work")


def schedule(
    tx: Transaction, job: int, run_at: float, attempt: int, *, keeps_place: bool, reason: str
) -> None:
    tx.run(
        Q.insert_scheduled,
        {
            "run_at": run_at,
            "job": job,
            "attempt": attempt,
            "keeps_place": int(keeps_place),
            "reason": reason,
        },
    )


def promote(tx: Transaction) -> int:
    """What is due takes its place in line. Every worker does this; nobody leads."""
    due = tx.rows(Q.due, {"now": tx.now, "limit": PROMOTED_AT_ONCE})
    if not due:
        return 0
    fresh = [row for row in due if not row["keeps_place"]]
    if fresh:
        first = tx.next("place", len(fresh))
        tx.many(Q.set_place, [(first + i, row["job"]) for i, row in enumerate(fresh)])
    tx.many(Q.delete_scheduled, [(row["run_at"], row["job"]) for row in due])
    for row in due:
        back(tx, row["job"], row["attempt"])
    return len(due)


def error_text(error: Failure | None) -> str | None:
    if error is None:
        return None
    return json.dumps([error.type, error.message, error.traceback], ensure_ascii=False)


def plain_error(message: str) -> str:
    return json.dumps(["HeadgateError", message, ""], ensure_ascii=False)


def read_error(text: str | None) -> Failure | None:
    return None if text is None else Failure(*json.loads(text))
