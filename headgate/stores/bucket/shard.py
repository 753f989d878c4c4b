"""One of several shards: a whole store, and what only those who put several together ask of it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from headgate.clock import Clock
from headgate.jobs import NewJob
from headgate.stores.bucket import outbox
from headgate.stores.bucket.objects import Got, Listed, Objects
from headgate.stores.bucket.outbox import Part
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import EventRecord
from headgate.stores.relational import registry
from headgate.stores.relational.events import record
from headgate.stores.sqlite import exchanging, submitting
from headgate.turns import ClaimState

log = logging.getLogger("headgate.store")

EVENTS = """
SELECT id, at, kind, subject, who, data FROM (
    SELECT CAST(at * 1000 AS INTEGER) << 12 | :shard << 8 | (seq & 255) AS id, seq, at, kind,
           subject, who, data
    FROM events
    WHERE seq <= coalesce((SELECT seq FROM events WHERE at < :ceiling
                           ORDER BY at DESC, seq DESC LIMIT 1), -1)
    ORDER BY seq DESC LIMIT :look
)
WHERE id < :before AND (:kind = '' OR kind = :kind) AND (:subject = '' OR subject = :subject)
  AND (:shard = 0 OR kind NOT GLOB 'worker_*' AND kind NOT GLOB 'queue_*')
ORDER BY seq DESC LIMIT :limit
"""
OTHERS = """
SELECT count(*) FROM workers w
WHERE w.id <> ? AND EXISTS (SELECT 1 FROM running r WHERE r.worker = w.id)
"""
LAST = 1 << 62


class Own:
    """The requests of one shard: those of all go through one client, and each counts its own."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._counts: Counter[str] = Counter()

    def get(self, key: str, known: str | None = None) -> Got | None:
        self._counts["read"] += 1
        return self._objects.get(key, known)

    def create(self, key: str, body: bytes) -> str:
        self._counts["write"] += 1
        return self._objects.create(key, body)

    def replace(self, key: str, body: bytes, known: str) -> str:
        self._counts["write"] += 1
        return self._objects.replace(key, body, known)

    def delete(self, key: str) -> None:
        self._counts["delete"] += 1
        self._objects.delete(key)

    def list(self, prefix: str) -> Iterator[Listed]:
        self._counts["list"] += 1
        return self._objects.list(prefix)

    def offset(self) -> float:
        return self._objects.offset()

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        """Who opened the client closes it."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What this machine's copy of a shard says, without a request."""

    ask: bool
    """A round trip there may have something to do."""
    ready: bool
    wake_in: float | None = None
    others: int = 0
    """Other workers that run something of it."""
    running: frozenset[int] = frozenset()
    """What this worker runs of it, by token; told of those that are ready."""
    known: bool = True
    """False: it has taken this worker away, or never heard of it."""


class Shard(BucketStore):
    def __init__(self, url: str, objects: Objects, clock: Clock | None, part: Part) -> None:
        self.number = part.number
        super().__init__(url, clock=clock, objects=Own(objects), part=part)

    def has(self, id: str) -> bool:
        """Does the copy know this job? No request is made."""
        with self._commits.peeking() as tx:
            return tx.row(tx.sql.submit.id_exists, {"id": id}) is not None

    def has_now(self, id: str) -> bool:
        self._commits.refresh()
        return self.has(id)

    def with_key(self, key: str) -> str | None:
        """The job that was submitted with this idempotency key, as far as the copy knows."""
        with self._commits.peeking() as tx:
            known = tx.row(tx.sql.submit.idempotent, {"key": key})
        return None if known is None else known["id"]

    def in_use(self, group: str) -> bool:
        """Does anybody hold a group of exactly this name, or has carried a value for it?"""
        with self._read() as tx:
            found = tx.value(
                "SELECT 1 FROM slots WHERE grp = :g UNION ALL SELECT 1 FROM carried WHERE grp = :g",
                {"g": group},
            )
        return found is not None

    # --- what there is for a worker ---------------------------------------------------------------

    def glance(self, worker: str, state: ClaimState | None) -> Glance:
        """Nothing is asked of the bucket, and nobody who writes is waited for: what other machines
        did is noticed by the poller, as ever."""
        with self._commits.peeking() as tx:
            if registry.known(tx, worker) is None:
                return Glance(ask=True, ready=False, known=False)
            seen = exchanging.glance(tx)
            ready = tx.value("SELECT 1 FROM ready LIMIT 1") is not None
            wake_in = exchanging.wake_in(tx, seen, None if state is None else state.opens)
            ask = (
                ready
                or bool(seen["unrouted"] or seen["cancels"])
                or wake_in == 0.0
                or (state is not None and state.seen != (seen["version"], seen["paused"]))
                or tx.value("SELECT 1 FROM leases WHERE ends <= ? LIMIT 1", (tx.now,)) is not None
            )
            due = seen["next_due"] is not None and seen["next_due"] <= tx.now
            others, running = 0, frozenset[int]()
            if ready or due:
                others = tx.value(OTHERS, (worker,))
                mine = tx.rows("SELECT token FROM running WHERE worker = ?", (worker,))
                running = frozenset(row["token"] for row in mine)
        return Glance(ask, ready or due, wake_in, others, running)

    # --- jobs on their way ------------------------------------------------------------------------

    def outgoing(self, older: float = 0.0) -> bool:
        """Does the copy hold jobs for others?"""
        with self._commits.peeking() as tx:
            return outbox.waits(tx, older)

    def outbox(self) -> dict[int, list[NewJob]]:
        self._commits.refresh()
        with self._commits.peeking() as tx:
            return outbox.waiting(tx)

    def arrived(self, jobs: list[NewJob]) -> None:
        self._do(lambda tx: outbox.arrived(tx, jobs))

    def outgoing_ids(self) -> set[str]:
        with self._commits.peeking() as tx:
            return outbox.ids(tx)

    def take_in(self, shard: int, jobs: list[NewJob], left: set[str], seen_at: float) -> bool:
        """Jobs that waited in the outbox of another shard at that time, by this machine's clock,
        each once; `left`: all that waited there. False: that was too long ago."""
        self._bodies.ahead(job.args for job in jobs)
        return self._commits.run(lambda: self._take_in(shard, jobs, left, seen_at))

    def _take_in(self, shard: int, jobs: list[NewJob], left: set[str], seen_at: float) -> bool:
        if Clock().boot() - seen_at > outbox.KEPT / 2:
            # We stood still. Others may have brought them, and it may be noted no more by now.
            return False
        with self._write() as tx:
            new = outbox.take_in(tx, shard, jobs, left)
            for job, done in zip(new, submitting.submit(tx, new), strict=True):
                if done.refused is not None:
                    group = done.refused.group
                    said = {"task": job.task, "group": group, "parent": job.parent}
                    record(tx, "followup_refused", job.id, "", **said)
                    log.warning(
                        "job %s of task %s, which was to follow job %s, did not fit under the cap"
                        " %s", job.id, job.task, job.parent, group,
                    )  # fmt: skip
        return True

    # --- to be merged -----------------------------------------------------------------------------

    def told(
        self, kind: str, subject: str, before: int | None, limit: int, look: int
    ) -> list[EventRecord]:
        """Events, numbered so that those of all shards are in one order: by the time, the shard and
        their own number. What is recorded in all of them is told by the first."""
        params = {
            "shard": self.number, "kind": kind, "subject": subject, "limit": limit, "look": look,
            "before": LAST if before is None else before,
            "ceiling": 1e18 if before is None else ((before >> 12) + 1) / 1000,
        }  # fmt: skip
        with self._read() as tx:
            rows = tx.rows(EVENTS, params)
        return [
            EventRecord(r["id"], r["at"], r["kind"], r["subject"], r["who"], json.loads(r["data"]))
            for r in rows
        ]

    def created_at(self, id: str) -> float | None:
        with self._commits.peeking() as tx:
            return tx.value("SELECT created_at FROM jobs WHERE id = ?", (id,))

    def since(self, moment: float, *, included: bool) -> str | None:
        """The id of the first job that was submitted after this moment, or at it; None: none was.

        Numbers and times grow together, so it is found by halving."""
        with self._commits.peeking() as tx:
            sql = "SELECT n, created_at, id FROM jobs WHERE n >= ? ORDER BY n LIMIT 1"
            low, high = 0, int(tx.value("SELECT max(n) FROM jobs") or 0) + 1
            while low < high:
                middle = (low + high) // 2
                row = tx.row(sql, (middle,))
                at = None if row is None else row["created_at"]
                if at is None or at > moment or (included and at == moment):
                    high = middle
                else:
                    low = middle + 1
            row = tx.row(sql, (low,))
        return None if row is None else row["id"]

    def listen(self) -> None:
        self._poller.start()
