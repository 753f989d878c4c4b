"""A state change is a row that moves: the moves that several operations share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headgate.jobs import Failure, State
from headgate.stores.relational import aborting
from headgate.stores.relational.transaction import Transaction

PROMOTED_AT_ONCE = 500


NO_ATTEMPT = {"token": None, "outcome": None, "worker": None, "started_at": None, "slots": None}


def conclude(
    tx: Transaction, job: int, state: State, reason: str = "", *,
    result: str | None = None, error: str | None = None, attempt: int = 0, asked: bool = True,
    last: Mapping[str, Any] = NO_ATTEMPT,
) -> None:  # fmt: skip
    """The job is over. `asked` is False when it is known that nobody asked to cancel it;
    `last` is the attempt that ended it, where that ended for the same reason."""
    if asked:
        tx.run(tx.sql.moves.delete_cancel, {"job": job})
    tx.run(
        tx.sql.moves.insert_finished,
        {
            "job": job,
            "state": state,
            "reason": reason,
            "result": result,
            "error": error,
            "attempt": attempt,
            "at": tx.now,
            **last,
        },
    )
    if aborting.aborts(state, reason):
        aborting.tell(tx, job, state, reason)
    tx.ring("done")


def back(tx: Transaction, job: int, attempt: int, *, since: float | None = None) -> None:
    """Back into line, at the place it had; `since` when it never left it to run."""
    params = {"job": job, "attempt": attempt, "since": tx.now if since is None else since}
    tx.run(tx.sql.moves.insert_ready, params)
    tx.ring("work")


def schedule(
    tx: Transaction, job: int, run_at: float, attempt: int, *, keeps_place: bool, reason: str
) -> None:
    tx.run(
        tx.sql.moves.insert_scheduled,
        {
            "run_at": run_at,
            "job": job,
            "attempt": attempt,
            "keeps_place": keeps_place,
            "reason": reason,
        },
    )


def promote(tx: Transaction, since: float = 0.0) -> int:
    """What is due (and was not before `since`) takes its place in line. Every worker does this;
    nobody leads."""
    params = {"since": since, "now": tx.now, "limit": PROMOTED_AT_ONCE}
    due = tx.rows(tx.sql.moves.due, params)
    if not due:
        return 0
    fresh = [row for row in due if not row["keeps_place"]]
    if fresh:
        places = zip(tx.numbers("place", len(fresh)), fresh, strict=True)
        new = [{"place": n, "run_at": row["run_at"], "job": row["job"]} for n, row in places]
        tx.many(tx.sql.moves.set_place, new)
    tx.many(tx.sql.moves.delete_scheduled, [(row["run_at"], row["job"]) for row in due])
    tx.many(tx.sql.moves.promote, [(row["attempt"], tx.now, row["job"]) for row in due])
    tx.ring("work")
    return len(due)


def error_text(error: Failure | None) -> str | None:
    if error is None:
        return None
    return json.dumps([error.type, error.message, error.traceback], ensure_ascii=False)


def plain_error(message: str) -> str:
    return json.dumps(["HeadgateError", message, ""], ensure_ascii=False)


def read_error(text: str | None) -> Failure | None:
    return None if text is None else Failure(*json.loads(text))
