"""Is the store sound? What can be mended is mended on request."""

from __future__ import annotations

from headgate.stores.protocol import Trouble
from headgate.stores.sqlite import moves, registry
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.liveness import Liveness

_NOWHERE = """
SELECT j.n, j.id, j.band, j.task FROM jobs j
WHERE NOT EXISTS (SELECT 1 FROM finished f WHERE f.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM running r WHERE r.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM scheduled s WHERE s.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM unrouted u WHERE u.task = j.task AND u.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM ready q WHERE q.queue = j.queue AND q.priority = j.priority
      AND q.band = j.band AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place)
"""
_TWICE = """
SELECT count(*) FROM running r JOIN finished f ON f.job = r.job
"""
_HOLDERLESS = """
SELECT grp, slot, token FROM slots s
WHERE s.job IS NOT NULL AND s.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM running r WHERE r.token = s.token)
"""
_WORKERLESS = """
SELECT token FROM running r WHERE NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = r.worker)
"""
_BODILESS = """
SELECT queue, priority, band, turn, lane, place FROM ready q
WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.n = q.job)
"""


def examine(tx: Transaction, liveness: Liveness, *, repair: bool) -> list[Trouble]:
    troubles: list[Trouble] = []

    def found(count: int, what: str, detail: str, mending: str = "") -> None:
        if count:
            troubles.append(Trouble(what, f"{detail}: {count}", mending, repair and bool(mending)))

    check = [row[0] for row in tx.rows("PRAGMA quick_check(5)")]
    if check != ["ok"]:
        troubles.append(Trouble("damaged-file", "; ".join(check)))

    workers = {row["id"] for row in tx.rows("SELECT id FROM workers")}
    dead = [worker for worker in workers if not liveness.alive(worker)]
    found(len(dead), "dead-workers", "workers that are gone and still registered", "take them away")
    if repair:
        registry.reap(tx, liveness, registry.names(tx))

    workerless = tx.rows(_WORKERLESS)
    found(len(workerless), "workerless-attempts", "attempts that belong to no worker", "lose them")
    holderless = tx.rows(_HOLDERLESS)
    found(len(holderless), "holderless-slots", "slots that name no running attempt", "release them")
    nowhere = tx.rows(_NOWHERE)
    found(len(nowhere), "jobs-nowhere", "jobs that are in no state", "put them back into line")
    bodiless = tx.rows(_BODILESS)
    found(len(bodiless), "bodiless-rows", "places in line that have no job", "delete them")
    found(tx.value(_TWICE), "jobs-twice", "jobs that are both running and finished")
    strays = liveness.strays(workers)
    found(len(strays), "stray-locks", "lock files that belong to nobody", "delete them")

    if repair:
        from headgate.stores.sqlite.finishing import lose

        for row in workerless:
            lose(tx, row["token"], "?", "found by doctor without a worker")
        for row in holderless:
            tx.run("DELETE FROM slots WHERE grp = ? AND slot = ?", (row["grp"], row["slot"]))
        for row in nowhere:
            if row["band"]:
                moves.back(tx, row["n"], 0)
            else:
                tx.run("INSERT INTO unrouted VALUES (?, ?)", (row["task"], row["n"]))
        for row in bodiless:
            tx.run("DELETE FROM ready WHERE queue = ? AND priority = ? AND band = ? AND turn = ?"
                   " AND lane = ? AND place = ?", tuple(row))  # fmt: skip
        for worker in strays:
            liveness.forget(worker)
        tx.ring("work")
    return troubles
