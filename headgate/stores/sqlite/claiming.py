"""Claim: which ready jobs may start now, by turn, in bounded work.

Everything here runs inside one write transaction, so what `Room` has read stays true until
the grants are committed.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from headgate.claim import Grant, Group, Room, share_out
from headgate.jobs import Claimed
from headgate.limits import Band
from headgate.stores.protocol import Claim, QueueShare
from headgate.stores.sqlite.database import Row, Transaction
from headgate.stores.sqlite.queries import Queries
from headgate.stores.sqlite.reserving import Reserver
from headgate.stores.sqlite.scanning import LaneKey, Scan
from headgate.stores.sqlite.values import Values

Q = Queries("claim")

AGED_CLAIM_EVERY = 8
BARREN_CLAIMS = 50
"""So many searches in a row without a start, and the worker waits for something to change."""


Lines = dict[str, dict[int, list[str]]]
"""What waits at all: queue → priority → bands, each in order."""


def list_lines(tx: Transaction) -> Lines:
    lines: Lines = {}
    for row in tx.rows(Q.bands):
        lines.setdefault(row["queue"], {}).setdefault(row["priority"], []).append(row["band"])
    return lines


class Claimer:
    """One claim of one worker."""

    def __init__(
        self,
        tx: Transaction,
        worker: str,
        worker_name: str,
        claim: Claim,
        values: Values,
        *,
        workers: int = 1,
        paused_queues: bool = True,
    ) -> None:
        self.tx = tx
        self.worker = worker
        self.worker_name = worker_name
        self.claim = claim
        self.workers = workers
        self.values = values
        self.room = Room(self._load)
        self.reserver = Reserver(tx, self.room, claim.state)
        self.paused_queues = paused_queues
        """Is any queue paused at all?"""
        self.hops = claim.hops
        self.taken: list[tuple[LaneKey, Row, Grant]] = []
        self.running = Counter(claim.running)
        """By fairness key, what runs in this worker, with what this claim has taken."""
        self.shared = False
        """Something was left for workers that are about to ask: ask again for what they left."""
        self.leaves_some = False
        """There may be work left for others: of tasks or queues that this worker does not
        serve, or more than it has room for."""
        self.lines = list_lines(tx)
        self._scans: dict[tuple[str, int, bool], Scan] = {}
        values.load_ahead(self._whole_groups())

    def run(self) -> tuple[tuple[Claimed, ...], bool]:
        """The attempts granted, and whether the budget ended before the search did."""
        claim, state = self.claim, self.claim.state
        state.claims += 1
        if claim.ageing is not None and state.claims % AGED_CLAIM_EVERY == 0:
            self._take_round(aged=True)
        self._take_round(aged=False)
        for scan in self._scans.values():
            scan.end()
        claimed = self._grant_all()
        has_room = len(claimed) < claim.room
        if self.hops <= 0 or self.shared or not has_room:
            self.leaves_some = True
        state.unfinished = self.hops <= 0 and has_room
        state.barren = 0 if claimed or not state.unfinished else state.barren + 1
        spins = state.barren % BARREN_CLAIMS == BARREN_CLAIMS - 1
        return claimed, has_room and (self.shared or (state.unfinished and not spins))

    def _load(self, name: str) -> Group:
        group = self.values.group(name)
        group.leave_to(self.workers, self.tx.freed[name])
        return group

    def _whole_groups(self) -> set[str]:
        """The groups that decide which bands are open."""
        found: set[str] = set()
        for priorities in self.lines.values():
            for bands in priorities.values():
                for band in map(Band.parse, bands):
                    if band.task in self.claim.tasks:
                        found |= {name for name, _, _ in band.all}
                        found |= {name for members in band.one_of for name, _, _ in members}
        return found - {""}

    def _take_round(self, *, aged: bool) -> None:
        """Go round the queues by weight until there is no room or nothing to take."""
        state = self.claim.state
        left = self.claim.room - len(self.taken)
        shares = self._queues()
        rooms = {share.name: share.room for share in shares}
        for key, _, _ in self.taken:
            rooms[key.queue] -= 1
        shares = [share for share in shares if rooms[share.name] > 0]
        while left > 0 and shares and self.hops > 0:
            first, given = self._first_queue(shares)
            parts, last, given = share_out(left, [s.weight for s in shares], first, given)
            open_shares: list[QueueShare] = []
            for i, (share, part) in enumerate(zip(shares, parts, strict=True)):
                wanted = min(part, rooms[share.name], left)
                got = self._take(share.name, wanted, aged=aged) if wanted else 0
                rooms[share.name] -= got
                left -= got
                if got and i == last:
                    state.queue_cursor, state.queue_given = share.name, given
                if got == wanted and rooms[share.name] > 0:
                    open_shares.append(share)
            shares = open_shares

    def _first_queue(self, shares: list[QueueShare]) -> tuple[int, int]:
        """The queue whose turn it is, and how much of its weight it has had already."""
        cursor, given = self.claim.state.queue_cursor, self.claim.state.queue_given
        if cursor is None:
            return random.randrange(len(shares)), 0  # noqa: S311 - spreads load, no secret
        for i, share in enumerate(shares):
            if share.name == cursor and given < share.weight:
                return i, given
            if share.name > cursor:
                return i, 0
        return 0, 0

    def _queues(self) -> list[QueueShare]:
        present = list(self.lines)
        paused: set[str] = set()
        if self.paused_queues:
            paused = {row["name"] for row in self.tx.rows(Q.paused_queues)}
        if self.claim.queues is None:
            shares = [QueueShare(name, self.claim.room) for name in present]
        else:
            mine = {share.name: share for share in self.claim.queues}
            if self.claim.other_queues:
                mine = {name: QueueShare(name, self.claim.room) for name in present} | mine
            shares = [mine[name] for name in present if name in mine]
            if len(shares) < len(present) or any(share.room < self.claim.room for share in shares):
                self.leaves_some = True
        return [share for share in shares if share.name not in paused and share.room > 0]

    def _take(self, queue: str, wanted: int, *, aged: bool) -> int:
        """Strict priority: a lower one is looked at only when the higher has nothing."""
        priorities = list(self.lines[queue])
        got = 0
        for priority in reversed(priorities) if aged else priorities:
            if got >= wanted or self.hops <= 0:
                break
            key = (queue, priority, aged)
            scan = self._scans.get(key)
            if scan is None:
                scan = self._scans[key] = Scan(self, queue, priority, aged=aged)
            got += scan.take(wanted - got)
        return got

    def _grant_all(self) -> tuple[Claimed, ...]:
        """Write what was decided: attempts and slots appear."""
        tx = self.tx
        if not self.taken:
            return ()
        first = tx.next("token", len(self.taken))
        running: list[tuple[Any, ...]] = []
        slots: list[tuple[Any, ...]] = []
        claimed: list[Claimed] = []
        for token, (key, row, grant) in enumerate(self.taken, first):
            attempt = row["attempt"] + 1
            held = json.dumps([[s.group, s.slot, s.units] for s in grant.slots], ensure_ascii=False)
            running.append((token, row["job"], self.worker, attempt, tx.now, row["since"], held))
            slots += [
                (s.group, s.slot, token, row["id"], row["job"], self.worker, self.worker_name,
                 s.units, tx.now)
                for s in grant.slots
            ]  # fmt: skip
            errors, lost = self._history(row["job"]) if row["attempt"] else (0, 0)
            claimed.append(
                Claimed(
                    job=row["id"],
                    token=token,
                    attempt=attempt,
                    task=row["task"],
                    args=row["args"],
                    queue=key.queue,
                    priority=key.priority,
                    turn=key.turn,
                    options=row["options"],
                    groups=tuple((s.group, s.slot) for s in grant.slots),
                    picked=grant.picked,
                    errors=errors,
                    lost=lost,
                    created_at=row["created_at"],
                    ready_at=row["since"],
                    started_at=tx.now,
                )
            )
        tx.many(Q.insert_running, running)
        tx.many(Q.insert_slot, slots)
        return tuple(claimed)

    def _history(self, job: int) -> tuple[int, int]:
        sql = "SELECT outcome, count(*) AS n FROM attempts WHERE job = ? GROUP BY outcome"
        counts = {row["outcome"]: row["n"] for row in self.tx.rows(sql, (job,))}
        return counts.get("error", 0), counts.get("lost", 0)
