"""Looking at jobs, and the few things that are done to one from outside."""

from __future__ import annotations

import json
from typing import Any

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import FINAL, AttemptRecord, JobFilter, JobRecord, Retention, State
from headgate.limits import Needs, split_group
from headgate.rates import RATE_SLOT
from headgate.stores.relational import capping, events, moves, values
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Row, Transaction

LOOKS = 20
"""How often a job that moves while it is looked at is looked for again."""


def job_row(tx: Transaction, id: str) -> Row:
    """The job with all that is known of it, wherever it stands."""
    row = None
    if id.isprintable():
        row = tx.row(f"{tx.sql.jobs.columns} {tx.sql.jobs.tables} WHERE {tx.sql.jobs.is_job}",
                     {"id": id})  # fmt: skip
    if row is None:
        raise JobNotFound(f"no job {id!r} in this store (finished jobs are pruned by retention)")
    return row


def find(tx: Transaction, filter: JobFilter, limit: int, after: str | None) -> list[JobRecord]:
    sql = tx.sql.jobs
    terms, params = where(tx, filter)
    if after is not None:
        after = after if after.isprintable() else ""
        terms += f" AND {sql.is_after}"
        params["after"] = after
    found = f"SELECT j.n {sql.searched} WHERE {terms} ORDER BY j.n DESC LIMIT :limit"
    is_found = sql.is_found.replace("found", found)
    rows = tx.rows(
        f"{sql.columns} {sql.tables} WHERE {is_found} ORDER BY j.n DESC", {**params, "limit": limit}
    )
    return [to_record(row) for row in rows]


def latest(tx: Transaction, task: str, state: State, look: int) -> JobRecord | None:
    sql = tx.sql.jobs
    is_found = sql.is_found.replace("found", sql.latest)
    params = {"task": task, "state": state, "look": look}
    row = tx.row(f"{sql.columns} {sql.tables} WHERE {is_found}", params)
    return None if row is None else to_record(row)


def count(tx: Transaction, filter: JobFilter, limit: int) -> int:
    terms, params = where(tx, filter)
    tables = tx.sql.jobs.searched
    if filter.states and filter.states <= FINAL:
        tables = tables.replace("LEFT JOIN", "JOIN", 1)  # the first is that of `finished`
    sql = f"SELECT count(*) FROM (SELECT 1 {tables} WHERE {terms} LIMIT :limit) AS found"
    return int(tx.value(sql, {**params, "limit": limit}))


def where(tx: Transaction, filter: JobFilter) -> tuple[str, dict[str, Any]]:
    """The terms of a search, over the tables that it looks at."""
    terms, params = ["true"], dict[str, Any]()
    if filter.states:
        states = [getattr(tx.sql.jobs, f"is_{state}") for state in sorted(filter.states)]
        terms.append("(" + " OR ".join(states) + ")")
    if filter.task is not None:
        terms.append("j.task = :task")
        params["task"] = filter.task
    if filter.queue is not None:
        terms.append("j.queue = :queue")
        params["queue"] = filter.queue
    if filter.since is not None:
        terms.append("j.created_at >= :since")
        params["since"] = filter.since
    if filter.until is not None:
        terms.append("j.created_at <= :until")
        params["until"] = filter.until
    if filter.group is not None:
        # Needs are stored as [[name, key, units], …]: match the cells of this group, or those
        # of a group that the submission named.
        name, key = split_group(filter.group)
        cells = [name] if key is None else [name, key]
        terms.append(tx.sql.jobs.is_in_group)
        params["cells"] = _cells(*cells)
        params["named"] = _cells("", filter.group)
        params["held"] = json.dumps(filter.group, ensure_ascii=False)
    if filter.text:
        terms.append(tx.sql.jobs.is_saying)
        params["text"] = filter.text
    if filter.ids:
        terms.append(tx.sql.jobs.is_among)
        params["ids"] = json.dumps([id for id in filter.ids if id.isprintable()])
    return " AND ".join(terms), params


def _cells(*cells: str) -> str:
    return json.dumps(cells, ensure_ascii=False, separators=(",", ":"))[:-1] + ","


def to_record(row: Row) -> JobRecord:
    state: State
    reason, attempt, slots = "", 0, "[]"
    if row["f_state"] is not None:
        state, reason, attempt = row["f_state"], row["f_reason"], row["f_attempt"]
    elif row["reserved"]:
        # Granted ahead to a worker that has not started it: it may still come back.
        state, attempt = "ready", row["r_attempt"] - 1
    elif row["token"] is not None:
        state, attempt, slots = "running", row["r_attempt"], row["slots"]
        reason = row["overdue"] and f"overdue: {row['overdue']}"
        if row["released"]:
            reason, slots = "waiting, its slots released", "[]"
        elif row["c_reason"] is not None:
            reason = "cancelling"
    elif row["s_run_at"] is not None:
        state, reason, attempt = "scheduled", row["s_reason"], row["s_attempt"]
    else:
        state, attempt = "ready", row["q_attempt"] or 0
        reason = "" if row["band"] else "unrouted"
        if row["held"]:
            reason = "waiting for a cap"
    started = row["token"] is not None and not row["reserved"]
    return JobRecord(
        id=row["id"],
        task=row["task"],
        state=state,
        reason=reason,
        queue=row["queue"],
        priority=row["priority"],
        turn=row["turn"],
        args=row["args"],
        options=row["options"],
        needs=Needs.from_json(row["needs"]),
        created_at=row["created_at"],
        run_at=row["s_run_at"] if row["s_run_at"] is not None else row["run_at"],
        ready_at=row["since"] if row["since"] is not None else row["ready_at"],
        started_at=row["started_at"] if started else None,
        finished_at=row["f_at"],
        expires_at=row["expires_at"],
        attempt=attempt,
        token=row["token"] if started else None,
        worker=(row["worker_name"] or row["worker"]) if started else None,
        groups=tuple(group for group, slot, _ in json.loads(slots) if slot != RATE_SLOT),
        progress=row["progress"],
        progress_text=row["progress_text"] or "",
        cancel_requested=row["c_reason"] is not None,
        result=row["result"],
        error=moves.read_error(row["error"]),
        idempotency_key=row["idempotency_key"],
        parent=row["parent"],
    )


def attempts(tx: Transaction, id: str) -> list[AttemptRecord]:
    if not id.isprintable():
        return []
    return [
        AttemptRecord(
            token=row["token"],
            attempt=row["attempt"],
            worker=row["worker"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            outcome=row["outcome"],
            reason=row["reason"],
            groups=tuple(group for group, _, _ in json.loads(row["slots"])),
            error=moves.read_error(row["error"]),
        )
        for row in tx.rows(tx.sql.jobs.attempts, {"id": id})
    ]


def cancel(tx: Transaction, id: str, by: str, reason: str) -> JobRecord:
    """A waiting job is cancelled at once; a running one is asked to stop."""
    for _ in range(LOOKS):
        row = job_row(tx, id)
        if row["f_state"] is not None or _cancel(tx, row, by, reason or "cancelled"):
            return to_record(job_row(tx, id))
        # Between the look and the deed somebody claimed it, ended it or gave it back: it has
        # moved on, so look where it is now.
    raise StoreError(
        f"job {id} could not be cancelled: it was in none of the places where it was looked for,"
        f" {LOOKS} times; see headgate doctor"
    )


def _cancel(tx: Transaction, row: Row, by: str, reason: str) -> bool:
    if row["token"] is not None:
        # Locked, so that the attempt cannot end before our word stands: who ends it locks it
        # first and looks for such words afterwards.
        if tx.row(tx.sql.slots.running, {"token": row["token"]}) is None:
            return False
        params = {"job": row["n"], "at": tx.now, "who": by, "reason": reason}
        tx.run(tx.sql.jobs.request_cancel, params)
        record(tx, "cancel_requested", row["id"], by, reason=reason)
        tx.ring("work")
        return True
    if not take_out_of_line(tx, row):
        return False
    attempt = row["q_attempt"] or row["s_attempt"] or 0
    moves.conclude(tx, row["n"], "cancelled", reason, attempt=attempt)
    record(tx, "job_cancelled", row["id"], by, reason=reason)
    return True


def take_out_of_line(tx: Transaction, row: Row) -> bool:
    """Remove it from wherever it waits; False when it waits there no more."""
    place = {k: row[k] for k in ("queue", "priority", "band", "turn", "lane", "place", "n")}
    job = {"job": row["n"], "task": row["task"]}
    found = (
        tx.run(tx.sql.jobs.delete_ready, place).rowcount
        or tx.run(tx.sql.jobs.delete_scheduled, job).rowcount
        or tx.run(tx.sql.jobs.delete_unrouted, job).rowcount
        or (row["held"] and _take_from_held(tx, row))
    )
    if found:
        tx.run(tx.sql.jobs.unreserve, job)
        tx.ring("work", "room")  # a reservation may have kept others waiting
    return bool(found)


def _take_from_held(tx: Transaction, row: Row) -> int:
    """It stands for another and waits for that one: whoever deletes its mark has it."""
    mark = {"job": row["n"], "task": capping.HELD}
    found = tx.run(tx.sql.jobs.delete_unrouted, mark).rowcount
    if found:
        tx.run(tx.sql.caps.delete_held, {"job": row["id"]})
    return found


def retry(tx: Transaction, id: str, by: str) -> JobRecord:
    """Run a finished job once more, at the end of the line."""
    row = job_row(tx, id)
    job = {"job": row["n"], "task": row["task"]}
    if row["f_state"] is None:
        raise StoreError(
            f"job {id} is {to_record(row).state}: only a finished job can be run again"
        )
    # The last attempt stands with the end of the job: it becomes one of those before.
    tx.run(tx.sql.jobs.keep_last_attempt, job)
    # The row that is deleted decides: of two who run it again, or prune it, one finds it gone.
    if tx.run(tx.sql.jobs.delete_finished, job).rowcount == 0:
        raise StoreError(f"job {id} was run again or pruned by somebody else just now")
    if not row["band"]:
        tx.run(tx.sql.jobs.insert_unrouted, job)
    else:
        # What was used up before does not count against the new run.
        tx.run(tx.sql.jobs.set_aside, job)
        (place,) = tx.numbers("place", 1)
        tx.run(tx.sql.jobs.renew_place, {"job": row["n"], "place": place, "now": tx.now})
        moves.back(tx, row["n"], row["f_attempt"])
    capping.count_again(tx, row["id"], row["caps"])
    record(tx, "job_retried", id, by)
    tx.ring("work")
    return to_record(job_row(tx, id))


def expire(tx: Transaction, limit: int = 500) -> int:
    """Cancel waiting jobs that were to start by now. Their expiry is then spent."""
    expired = 0
    for found in tx.rows(tx.sql.jobs.expiring, {"now": tx.now, "limit": limit}):
        row = job_row(tx, found["id"])
        if row["reserved"]:
            continue  # it starts in a moment, or comes back and is looked at again
        started = row["q_attempt"] or row["s_attempt"]
        if row["f_state"] is None and row["token"] is None and not started:
            if not take_out_of_line(tx, row):
                continue  # somebody claims or cancels it just now
            moves.conclude(tx, row["n"], "cancelled", "expired")
            record(tx, "job_expired", row["id"])
            expired += 1
        # Started or over: the expiry has done its work and is not looked at again.
        tx.run(tx.sql.jobs.expiry_spent, {"job": row["n"]})
    return expired


def prune(tx: Transaction, retention: Retention, limit: int) -> int:
    """Forget finished jobs whose time is over, with their attempts and keys."""
    jobs: list[int] = []
    for state, seconds in retention.of().items():
        if seconds is not None:
            params = {"state": state, "before": tx.now - seconds, "limit": limit - len(jobs)}
            jobs += [row["job"] for row in tx.rows(tx.sql.prune.prunable, params)]
    if jobs:
        params = {"jobs": json.dumps(jobs)}
        for sql in (tx.sql.caps.clear_pruned, tx.sql.prune.keys, tx.sql.prune.attempts,
                    tx.sql.outputs.prune, tx.sql.prune.finished, tx.sql.prune.jobs):  # fmt: skip
            tx.run(sql, params)
    tx.run(tx.sql.caps.forget, {"now": tx.now})
    values.forget_carried(tx, limit)
    if retention.events is not None:
        events.forget(tx, tx.now - retention.events, limit)
    return len(jobs)
