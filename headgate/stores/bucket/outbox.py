"""Jobs on their way to another shard: put down in the transaction that they follow from, moved
once by whoever sees them.

First the job is submitted where it belongs, then it is taken out of here. Who does it too, or dies
in between, does no harm: the other shard notes the id with the job, and takes it once, though that
job may be over and forgotten by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headgate.jobs import CapUse, NewJob
from headgate.limits import Needs
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.transaction import Transaction

TABLE = (
    "CREATE TABLE IF NOT EXISTS outbox (id TEXT PRIMARY KEY, shard INTEGER NOT NULL,"
    " at REAL NOT NULL, job TEXT NOT NULL) STRICT, WITHOUT ROWID"
)
INBOX = (
    "CREATE TABLE IF NOT EXISTS inbox (id TEXT PRIMARY KEY, shard INTEGER NOT NULL,"
    " at REAL NOT NULL) STRICT, WITHOUT ROWID"
)
KEPT = 3600.0
"""Seconds for which it is noted what has come, though it waits in the other shard no more: nobody
who has seen it there can be about to bring it by then."""
AT_ONCE = 1000
"""So many are moved together."""
LEFT = 5.0
"""Seconds for which they are left to the process that put them down."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a store must know to be one shard of several."""

    number: int
    first_token: int
    bells: Bells
    home: Callable[[NewJob], int]

    def send(self, tx: Transaction, job: NewJob) -> bool:
        """Put down a job that lives in another shard; False: it lives in this one."""
        home = self.home(job)
        if home == self.number:
            return False
        # The other shard's clock counts from when it arrives.
        due = job.run_at if job.run_at is not None or not job.delay else tx.now + job.delay
        text = msgspec.json.encode(msgspec.structs.asdict(_Sent.of(job, due))).decode()
        tx.run("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?, ?)", (job.id, home, tx.now, text))
        return True


class _Sent(msgspec.Struct):
    """A job as it is written down here."""

    task: str
    args: str
    id: str
    queue: str
    priority: int
    needs: str
    turn: str
    fair_limit: str
    routed: bool
    run_at: float | None
    expires: float | None
    max_lost: int
    idempotency_key: str | None
    carried: list[tuple[str, int | None]]
    options: str
    parent: str | None
    caps: list[CapUse]

    @staticmethod
    def of(job: NewJob, due: float | None) -> _Sent:
        return _Sent(
            job.task, job.args, job.id, job.queue, job.priority, job.needs.to_json(), job.turn,
            job.fair_limit, job.routed, due, job.expires, job.max_lost, job.idempotency_key,
            list(job.carried), job.options, job.parent, list(job.caps),
        )  # fmt: skip

    def job(self) -> NewJob:
        return NewJob(
            task=self.task, args=self.args, id=self.id, queue=self.queue, priority=self.priority,
            needs=Needs.from_json(self.needs), turn=self.turn, fair_limit=self.fair_limit,
            routed=self.routed, run_at=self.run_at, expires=self.expires, max_lost=self.max_lost,
            idempotency_key=self.idempotency_key, carried=tuple(self.carried),
            options=self.options, parent=self.parent, caps=tuple(self.caps),
        )  # fmt: skip


def waits(tx: Transaction, older: float = 0.0) -> bool:
    found = tx.value("SELECT 1 FROM outbox WHERE at <= ? LIMIT 1", (tx.now - older,))
    return found is not None


def waiting(tx: Transaction) -> dict[int, list[NewJob]]:
    """By shard, those that were put down first."""
    found: dict[int, list[NewJob]] = {}
    for row in tx.rows("SELECT shard, job FROM outbox ORDER BY at, id LIMIT ?", (AT_ONCE,)):
        job = msgspec.json.decode(row["job"], type=_Sent).job()
        found.setdefault(row["shard"], []).append(job)
    return found


def ids(tx: Transaction) -> set[str]:
    return {row["id"] for row in tx.rows("SELECT id FROM outbox")}


def take_in(tx: Transaction, shard: int, jobs: list[NewJob], left: set[str]) -> list[NewJob]:
    """Note that these come from that shard; those that have not come before. `left`: what waits in
    its outbox."""
    new = [job for job in jobs if tx.row("SELECT 1 FROM inbox WHERE id = ?", (job.id,)) is None]
    # Noted anew though it came long ago: others who see it there now may be about to bring it too.
    tx.many("INSERT OR REPLACE INTO inbox VALUES (?, ?, ?)", [(j.id, shard, tx.now) for j in jobs])
    old = tx.rows("SELECT id FROM inbox WHERE shard = ? AND at < ?", (shard, tx.now - KEPT))
    tx.many("DELETE FROM inbox WHERE id = ?", [(r["id"],) for r in old if r["id"] not in left])
    return new


def arrived(tx: Transaction, jobs: list[NewJob]) -> None:
    tx.many("DELETE FROM outbox WHERE id = ?", [(job.id,) for job in jobs])
