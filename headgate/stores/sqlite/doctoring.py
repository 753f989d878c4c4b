"""Is the file sound, and do its tables agree?"""

from __future__ import annotations

from headgate.stores.protocol import Trouble
from headgate.stores.relational import doctoring, registry
from headgate.stores.sqlite.liveness import Living, reap
from headgate.stores.sqlite.transaction import Transaction


def examine(tx: Transaction, liveness: Living, *, repair: bool) -> list[Trouble]:
    found = doctoring.Findings(repair=repair)
    check = [row[0] for row in tx.rows("PRAGMA quick_check(5)")]
    if check != ["ok"]:
        found.troubles.append(Trouble("damaged-file", "; ".join(check)))
    workers = registry.names(tx)
    dead = [worker for worker in workers if not liveness.alive(worker)]
    found.add(len(dead), "dead-workers", "workers that are gone and still registered",
              "take them away")  # fmt: skip
    if repair:
        reap(tx, liveness, workers)
    doctoring.examine(tx, found)
    strays = liveness.strays(set(workers))
    found.add(len(strays), "stray-locks", "lock files that belong to nobody", "delete them")
    if repair:
        for worker in strays:
            liveness.forget(worker)
    return found.troubles
