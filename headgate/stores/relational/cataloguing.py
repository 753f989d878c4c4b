"""The catalogue: the tasks that workers know, for those who submit by name."""

from __future__ import annotations

import json

import msgspec

from headgate.stores.protocol import Publication, TaskSpec
from headgate.stores.relational import values
from headgate.stores.relational.transaction import Transaction


def publish(tx: Transaction, publication: Publication) -> None:
    """Declare values and tasks. The highest release wins; without one, the last start."""
    values.declare(tx, publication)
    tx.run(tx.sql.orphans.declared_by, {"declarer": publication.declarer, "at": tx.now})
    if publication.worker:
        known = sorted({name for spec in publication.tasks for name in (spec.name, *spec.aliases)})
        params = {"worker": publication.worker, "tasks": json.dumps(known)}
        tx.run(tx.sql.workers.know, params)
    for spec in publication.tasks:
        text = msgspec.json.encode(spec).decode()
        for name in (spec.name, *spec.aliases):
            before = tx.row(tx.sql.catalogue.known, {"name": name})
            if before is not None:
                older = values.release_key(before["release"]) > values.release_key(
                    publication.release
                )
                # A task's own name is worth more than another task's alias for it.
                taken = name != spec.name and before["task"] == name
                if older or taken:
                    continue
            entry = {"name": name, "task": spec.name, "spec": text}
            tx.run(tx.sql.catalogue.put, {**entry, "release": publication.release, "at": tx.now})
    tx.ring("work")


def keyed_limits(tx: Transaction) -> set[str]:
    """Limits of which some task needs a key."""
    return {
        use.name
        for spec in every(tx)
        for use in (*spec.limits, *(member for members in spec.one_of for member in members))
        if use.key is not None or use.callable
    }


def find(tx: Transaction, name: str) -> TaskSpec | None:
    text = tx.value(tx.sql.catalogue.spec, {"name": name})
    return None if text is None else msgspec.json.decode(text, type=TaskSpec)


def every(tx: Transaction) -> list[TaskSpec]:
    rows = tx.rows(tx.sql.catalogue.every)
    return [msgspec.json.decode(row["spec"], type=TaskSpec) for row in rows]
