"""From a submission to a stored job: rows are inserted, and nobody is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import psycopg

from headgate.errors import InvalidArguments, StoreError
from headgate.jobs import NewJob, Submitted
from headgate.stores.postgres import arrays
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL, Transaction
from headgate.stores.relational.bodies import cells as body_cells
from headgate.stores.relational.capping import to_text
from headgate.stores.relational.routing import conflict, digest_of

COPIED_FROM = 20
"""So many jobs at once are copied into their tables instead of passed to the function."""
_WORK = arrays.texts(("work",))


class AlreadyStored(Exception):
    """A job of a copy is there already: the same submit again, after a lost answer."""


def submit_all(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store all of them, or none. A repeated idempotency key meets its earlier job."""
    if not jobs:
        return []
    rows = tx.rows(tx.sql.submit.submit, {"jobs": to_json(jobs)})
    tx.ring("work")
    return read(jobs, rows)


def submit_now(database: Database, jobs: Sequence[NewJob]) -> list[Submitted]:
    """The same in one round trip, as a transaction of its own."""
    if not jobs:
        return []
    # Rung behind it, by a transaction that begins after the commit: see `Database._commit`.
    rung = SQL.exchange.ring, (_WORK,)
    if len(jobs) == 1 and _at_once(jobs[0]):
        text, _ = database.call_two(SQL.submit.submit_one, _values(jobs[0]), rung)
        return [Submitted(jobs[0].id, msgspec.json.decode(text))]
    text, _ = database.call_two(SQL.submit.submit_now, {"jobs": to_json(jobs)}, rung)
    return read(jobs, msgspec.json.decode(text))


def _at_once(job: NewJob) -> bool:
    """It may start now, and nothing has to be looked up for it."""
    return (
        job.routed
        and job.run_at is None
        and job.delay <= 0
        and job.idempotency_key is None
        and not job.caps
    )


def _values(job: NewJob) -> tuple[Any, ...]:
    """What `headgate.submit_one` takes."""
    return (checked_id(job), *body_cells(job).values(), _carried(job), job.parent, job.expires)


def to_json(jobs: Iterable[NewJob]) -> str:
    """What `headgate.submit` takes: one text, so that it goes through any driver."""
    return json.dumps([_cells(job) for job in jobs], ensure_ascii=False, separators=(",", ":"))


def read(jobs: Sequence[NewJob], rows: Iterable[Any]) -> list[Submitted]:
    """What `headgate.submit` answers: rows of (number, id, existing, conflict)."""
    done: list[Submitted] = []
    for number, id, existing, in_conflict in rows:
        if in_conflict:
            at_fault = jobs[int(number) - 1]
            raise conflict(at_fault.idempotency_key or "", id)
        done.append(Submitted(id, existing))
    if len(done) != len(jobs):
        raise StoreError(f"{len(jobs)} jobs were submitted, {len(done)} were answered")
    return done


def _cells(job: NewJob) -> dict[str, Any]:
    """Only what is not the column's null."""
    cells = {**body_cells(job), "id": checked_id(job), "delay": job.delay}
    if job.carried:
        cells["carried"] = _carried(job)
    if job.run_at is not None:
        cells["run_at"] = job.run_at
    if job.expires is not None:
        cells["expires"] = job.expires
    if job.idempotency_key is not None:
        cells["key"] = job.idempotency_key
        cells["digest"] = digest_of(job.args)
    if job.parent is not None:
        cells["parent"] = job.parent
    if job.caps:
        cells["caps"] = to_text(job.caps)
    return cells


def checked_id(job: NewJob) -> str:
    id = job.id
    if len(id) != 36 or id.replace("-", "").strip("0123456789abcdef"):
        raise InvalidArguments(
            f"job id {id[:40]!r} is not a UUID in lower case, which PostgreSQL stores: leave it"
            " to Headgate, or make one with headgate.jobs.new_id()"
        )
    return id


def _carried(job: NewJob) -> str | None:
    """Left with the job: written where others read it, this submit could have to wait for
    another that carries a value for the same group. The first claim records it."""
    return json.dumps(job.carried, ensure_ascii=False) if job.carried else None


# --- many at once ---------------------------------------------------------------------------


def copies(jobs: Sequence[NewJob]) -> bool:
    """Is this better copied? Keys must be looked up one by one, and so must places under caps."""
    return len(jobs) >= COPIED_FROM and all(
        job.idempotency_key is None and not job.caps for job in jobs
    )


def copy_all(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Copy them into the tables. Raises `AlreadyStored`, and the transaction is spent then."""
    now = tx.now
    gen: int = tx.value(tx.sql.submit.generation)
    bodies: list[tuple[Any, ...]] = []
    ready: list[tuple[Any, ...]] = []
    scheduled: list[tuple[Any, ...]] = []
    unrouted: list[tuple[Any, ...]] = []
    for n, job in zip(tx.numbers("place", len(jobs)), jobs, strict=True):
        due = job.run_at if job.run_at is not None else now + max(0.0, job.delay)
        waits = due > now
        place = round(max(due, now) * 1e6)
        body = body_cells(job)
        where = [body[column] for column in ("queue", "priority", "band", "turn", "lane")]
        bodies.append(
            (n, checked_id(job), job.task, *where, place, job.args, job.options, body["needs"],
             _carried(job), now, due if waits else None, job.expires,
             None if job.expires is None else due + job.expires, job.max_lost, job.parent)
        )  # fmt: skip
        if not job.routed:
            unrouted.append((job.task, n))
        elif waits:
            scheduled.append((due, n, 0, False, "delayed"))
        else:
            ready.append((*where, place, n, 0, now, gen))
    sql = tx.sql.submit
    try:
        _copy(tx, sql.copy_jobs, bodies)
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyStored from error
    _copy(tx, sql.copy_ready, ready)
    _copy(tx, sql.copy_scheduled, scheduled)
    _copy(tx, sql.copy_unrouted, unrouted)
    tx.ring("work")
    return [Submitted(job.id) for job in jobs]


def _copy(tx: Transaction, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        tx.copy(sql, rows)
