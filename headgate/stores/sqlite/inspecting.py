"""Looking at jobs, and the few things that are done to one from outside."""

from __future__ import annotations

import json
from typing import Any

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import FINAL, AttemptRecord, JobFilter, JobRecord, Retention, State
from headgate.limits import Needs, split_group
from headgate.stores.sqlite import moves
from headgate.stores.sqlite.database import Row, Transaction
from headgate.stores.sqlite.events import record
from headgate.stores.sqlite.queries import Queries

Q = Queries("jobs")

# Which rows of which table are the jobs of a state; the driving table decides the order.
_STATE_TABLES: dict[State, str] = {
    "scheduled": "j.n IN (SELECT job FROM scheduled)",
    "running": "j.n IN (SELECT job FROM running WHERE reserved = 0)",
    "ready": "f.job IS NULL AND s.job IS NULL AND (r.job IS NULL OR r.reserved = 1)",
    "succeeded": "f.state = 'succeeded'",
    "failed": "f.state = 'failed'",
    "cancelled": "f.state = 'cancelled'",
}


def job_row(tx: Transaction, id: str) -> Row:
    row = tx.row(f"{Q.columns} WHERE j.id = :id", {"id": id}) if id.isprintable() else None
    if row is None:
        raise JobNotFound(f"no job {id!r} in this store (finished jobs are pruned by retention)")
    return row


def find(tx: Transaction, filter: JobFilter, limit: int, after: str | None) -> list[JobRecord]:
    where, params = _where(filter)
    if after is not None:
        where += " AND j.n < (SELECT n FROM jobs WHERE id = :after)"
        params["after"] = after
    sql = f"{Q.columns} WHERE {where} ORDER BY j.n DESC LIMIT :limit"
    return [to_record(row) for row in tx.rows(sql, {**params, "limit": limit})]


def count(tx: Transaction, filter: JobFilter, limit: int) -> int:
    where, params = _where(filter)
    tables = Q.columns[Q.columns.index("FROM jobs j") :]
    if filter.states and filter.states <= FINAL:
        tables = tables.replace("LEFT JOIN finished", "JOIN finished", 1)
    sql = f"SELECT count(*) FROM (SELECT 1 {tables} WHERE {where} LIMIT :limit)"
    return int(tx.value(sql, {**params, "limit": limit}))


def _where(filter: JobFilter) -> tuple[str, dict[str, Any]]:
    terms, params = ["1"], dict[str, Any]()
    if filter.states:
        terms.append("(" + " OR ".join(_STATE_TABLES[s] for s in sorted(filter.states)) + ")")
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
        terms.append(
            "(instr(j.needs, :cells) OR instr(j.needs, :named)"
            " OR instr(coalesce(r.slots, ''), :held))"
        )
        params["cells"] = _cells(*cells)
        params["named"] = _cells("", filter.group)
        params["held"] = json.dumps(filter.group, ensure_ascii=False)
    if filter.ids:
        marks = [f":id{i}" for i in range(len(filter.ids))]
        terms.append(f"j.id IN ({', '.join(marks)})")
        params.update({mark[1:]: id for mark, id in zip(marks, filter.ids, strict=True)})
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
        groups=tuple(group for group, _, _ in json.loads(slots)),
        progress=row["progress"],
        progress_text=row["progress_text"] or "",
        cancel_requested=row["c_reason"] is not None,
        result=row["result"],
        error=moves.read_error(row["error"]),
        idempotency_key=row["idempotency_key"],
        parent=row["parent"],
    )


def attempts(tx: Transaction, id: str) -> list[AttemptRecord]:
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
        for row in tx.rows(Q.attempts, {"id": id})
    ]


def cancel(tx: Transaction, id: str, by: str, reason: str) -> JobRecord:
    """A waiting job is cancelled at once; a running one is asked to stop."""
    row = job_row(tx, id)
    reason = reason or "cancelled"
    if row["f_state"] is None and row["token"] is not None:
        params = {"job": row["n"], "at": tx.now, "who": by, "reason": reason}
        tx.run(Q.request_cancel, params)
        record(tx, "cancel_requested", id, by, reason=reason)
        tx.ring("work")
    elif row["f_state"] is None:
        take_out_of_line(tx, row)
        attempt = row["q_attempt"] or row["s_attempt"] or 0
        moves.conclude(tx, row["n"], "cancelled", reason, attempt=attempt)
        record(tx, "job_cancelled", id, by, reason=reason)
    return to_record(job_row(tx, id))


def take_out_of_line(tx: Transaction, row: Row) -> None:
    place = {k: row[k] for k in ("queue", "priority", "band", "turn", "lane", "place")}
    tx.run(Q.delete_ready, place)
    tx.run("DELETE FROM scheduled WHERE job = ?", (row["n"],))
    tx.run("DELETE FROM unrouted WHERE task = ? AND job = ?", (row["task"], row["n"]))
    tx.run("DELETE FROM reservations WHERE job = ?", (row["n"],))
    tx.ring("work", "room")  # a reservation may have kept others waiting


def retry(tx: Transaction, id: str, by: str) -> JobRecord:
    """Run a finished job once more, at the end of the line."""
    row = job_row(tx, id)
    if row["f_state"] is None:
        raise StoreError(
            f"job {id} is {to_record(row).state}: only a finished job can be run again"
        )
    if not row["band"]:
        tx.run("DELETE FROM finished WHERE job = ?", (row["n"],))
        tx.run("INSERT INTO unrouted (task, job) VALUES (?, ?)", (row["task"], row["n"]))
    else:
        tx.run("DELETE FROM finished WHERE job = ?", (row["n"],))
        # What was used up before does not count against the new run.
        tx.run(Q.set_aside, {"job": row["n"]})
        tx.run(Q.renew_place, {"job": row["n"], "place": tx.next("place"), "now": tx.now})
        moves.back(tx, row["n"], row["f_attempt"])
    record(tx, "job_retried", id, by)
    tx.ring("work")
    return to_record(job_row(tx, id))


def expire(tx: Transaction, limit: int = 500) -> int:
    """Cancel waiting jobs that were to start by now. Their expiry is then spent."""
    expired = 0
    for found in tx.rows(Q.expiring, {"now": tx.now, "limit": limit}):
        row = job_row(tx, found["id"])
        if row["reserved"]:
            continue  # it starts in a moment, or comes back and is looked at again
        started = row["q_attempt"] or row["s_attempt"]
        if row["f_state"] is None and row["token"] is None and not started:
            take_out_of_line(tx, row)
            moves.conclude(tx, row["n"], "cancelled", "expired")
            record(tx, "job_expired", row["id"])
            expired += 1
        # Started or over: the expiry has done its work and is not looked at again.
        tx.run("UPDATE jobs SET expires_at = NULL WHERE n = ?", (row["n"],))
    return expired


def prune(tx: Transaction, retention: Retention, limit: int) -> int:
    """Forget finished jobs whose time is over, with their attempts and keys."""
    jobs: list[int] = []
    for state, seconds in retention.of().items():
        if seconds is not None:
            params = {"state": state, "before": tx.now - seconds, "limit": limit - len(jobs)}
            jobs += [row["job"] for row in tx.rows(Q.prunable, params)]
    for sql in (
        "DELETE FROM idempotency WHERE key = (SELECT idempotency_key FROM jobs WHERE n = ?)"
        " AND job = ?",
        "DELETE FROM attempts WHERE job = ? AND job = ?",
        "DELETE FROM finished WHERE job = ? AND job = ?",
        "DELETE FROM jobs WHERE n = ? AND n = ?",
    ):
        tx.many(sql, [(job, job) for job in jobs])
    if retention.events is not None:
        tx.run("DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at <= ? LIMIT ?)",
               (tx.now - retention.events, limit))  # fmt: skip
    return len(jobs)
