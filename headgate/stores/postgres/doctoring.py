"""Do the tables agree with each other, and with the leases?"""

from __future__ import annotations

from headgate.stores.postgres import leases
from headgate.stores.postgres.transaction import Transaction
from headgate.stores.relational import doctoring, registry

ALONE = "\x01doctor"
LONGEST = 3600.0
"""Seconds that one question may take: there may be many millions of jobs."""


def take_time(tx: Transaction) -> None:
    tx.run(f"SET LOCAL statement_timeout = '{LONGEST:.0f}s'")
    tx.connection.patience = LONGEST


def alone(tx: Transaction) -> None:
    """Two who mend the same would do it twice."""
    tx.lock([ALONE])


def count_dead(tx: Transaction, found: doctoring.Findings) -> None:
    """When this is repaired it is a transaction of its own: behind it, groups are locked, which is
    done before anything is written."""
    dead: int = tx.value(tx.sql.doctor.dead)
    found.add(dead, "dead-workers", "workers that are gone and still registered", "take them away")
    if found.repair:
        leases.reap(tx)
        for row in tx.rows(tx.sql.doctor.leaseless):
            registry.remove(tx, row["id"], row["name"], "found by doctor without a lease")
