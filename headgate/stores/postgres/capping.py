"""Submissions under caps: the decision is made by `headgate.submit_capped`, in any transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from headgate.errors import StoreError
from headgate.jobs import NewJob, Refusal, Submitted
from headgate.stores.postgres.submitting import to_json
from headgate.stores.postgres.transaction import Transaction
from headgate.stores.relational import succession
from headgate.stores.relational.routing import conflict

COLUMNS = "number, id, existing, conflict, refused, follows"


class StartedMeanwhile(Exception):
    """A pending job that was to be replaced started before it could be taken out of line: the
    decision is to be made again, and the transaction is spent."""


def has_caps(jobs: Iterable[NewJob]) -> bool:
    return any(job.caps for job in jobs)


def submit(tx: Transaction, jobs: Sequence[NewJob], *, again: bool) -> list[Submitted]:
    """Store what fits, in a transaction of ours: whom a new job stands for is taken out of line
    in it. `again`: the caller decides anew on `StartedMeanwhile`; else the new job waits until
    the other has ended."""
    rows = tx.rows(tx.sql.submit.submit_capped, {"jobs": to_json(jobs)})
    tx.ring("work")
    done = read(jobs, rows)
    for _, id, *_, follows in rows:
        if follows is not None:
            succession.settle(tx, id)
            # Between the decision and the deed a worker may have claimed it.
            if again and follows == "replace" and succession.is_held(tx, id):
                raise StartedMeanwhile
    return done


def read(jobs: Sequence[NewJob], rows: Iterable[Any]) -> list[Submitted]:
    """What the function answers, whatever a driver makes of its rows."""
    done: list[Submitted] = []
    for number, id, existing, in_conflict, refused, _ in rows:
        if in_conflict:
            raise conflict(jobs[int(number) - 1].idempotency_key or "", id)
        refusal = None
        if refused is not None:
            refusal = Refusal(*(json.loads(refused) if isinstance(refused, str) else refused))
        done.append(Submitted(id, existing, refusal))
    if len(done) != len(jobs):
        raise StoreError(f"{len(jobs)} jobs were submitted, {len(done)} were answered")
    return done
