"""Leases: a worker lives as long as it renews its own, by the server's clock.

Expiry is taken, not observed. A renewal under way cannot be seen, so whoever wants to count an
ended lease as free takes its row first; who holds a row holds the decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.stores.postgres.transaction import Transaction
from headgate.stores.protocol import NewWorker
from headgate.stores.relational import registry

LIMITS = "\x01limits"
"""The lock that all who grant share and that who changes a limit takes alone. Comes before the
locks of groups, everywhere."""
REMEMBERED = 86400.0
"""Seconds for which the lease of a dead worker is kept, so that its id is refused."""


def lock_name(worker: str) -> str:
    """The lock that every round trip of this worker holds."""
    return f"\x01worker {worker}"


def register(tx: Transaction, worker: NewWorker) -> None:
    if not registry.register(tx, worker):
        renew(tx, worker.id)
        return
    tx.run(tx.sql.leases.insert, {"worker": worker.id, "lease": worker.lease})


def renew(tx: Transaction, worker: str) -> bool:
    """A lease from now on; False when the worker was declared dead. If somebody is taking it
    just now, this waits for that decision."""
    return tx.run(tx.sql.leases.renew, {"worker": worker}).rowcount == 1


def is_dead(tx: Transaction, worker: str) -> bool:
    return tx.value(tx.sql.leases.is_dead, {"worker": worker}) is not False


def reap(tx: Transaction) -> list[str]:
    """Take away every worker whose lease has ended; their attempts are lost.

    This is part of each grant, so that no sweeper has to run before a free slot is free.
    """
    return list(reap_counting(tx))


def reap_counting(tx: Transaction) -> dict[str, int]:
    """The same; how many attempts each of them lost."""
    gone: dict[str, int] = {}
    for row in tx.rows(tx.sql.leases.expired):
        worker: str = row["worker"]
        # A row that is locked is being renewed, or taken by somebody else. One that was renewed
        # since the look above does not match any more: it is read anew once it is locked.
        if tx.row(tx.sql.leases.seize, {"worker": worker}) is None:
            continue
        # A round trip of that worker is under way: it may be about to commit a claim or the end
        # of an attempt. It is live, however late.
        if tx.value(tx.sql.leases.at_work, {"name": lock_name(worker)}):
            continue
        gone[worker] = _bury(tx, worker, "its lease ended")
    return gone


def declare_dead(tx: Transaction, worker: str, reason: str, started: frozenset[int] | None) -> bool:
    """The keeper's word: it has ended all that belonged to this worker."""
    # What the worker sent before it died may still be under way on the server: wait for that,
    # or an attempt that it claims there would belong to nobody.
    tx.lock([lock_name(worker)])
    dead = tx.value(tx.sql.leases.seize_any, {"worker": worker})
    if dead is None or dead:
        return False
    _bury(tx, worker, reason, started)
    return True


def unregister(tx: Transaction, worker: str) -> None:
    """A worker that ended in good order leaves nothing behind."""
    tx.lock([lock_name(worker)])
    tx.row(tx.sql.leases.seize_any, {"worker": worker})
    if registry.unregister(tx, worker):
        tx.run(tx.sql.leases.delete, {"worker": worker})


def _bury(tx: Transaction, worker: str, reason: str, started: frozenset[int] | None = None) -> int:
    """From here on it is dead for everybody; how many attempts it lost."""
    tx.run(tx.sql.leases.bury, {"worker": worker})
    name = registry.known(tx, worker)
    return 0 if name is None else registry.remove(tx, worker, name, reason, started)


# --- locks --------------------------------------------------------------------------------------

# Whoever waits for several locks waits for them in one order: that of compaction, that of the
# doctor, the worker's, that of the limits, those of groups by their numbers, those of caps by their
# names, those of places. The others are for one thing each, and are taken alone. What is only tried
# for may come later than that, as long as nothing is waited for behind it which comes before it.
# `tests/postgres/test_lock_order.py` looks at every operation.


def lock_groups(tx: Transaction, groups: Iterable[str]) -> None:
    """Before a grant: no limit is changed, and nobody else grants or counts in these groups,
    until this transaction ends. Everybody takes the lock of the limits first: the other way
    round, one who waits for a group while it shares the limits, and one who waits for the limits
    while it has the group, would wait for each other behind one who changes a limit."""
    tx.run(tx.sql.leases.lock_groups, {"limits": LIMITS, "groups": list(groups)})


def lock_limits(tx: Transaction) -> None:
    """Nobody grants anything until this transaction ends: after its commit nothing is granted
    by a value from before."""
    tx.run(tx.sql.leases.lock_limits, {"limits": LIMITS})
