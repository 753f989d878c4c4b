"""The catalogue: the tasks that workers know, for those who submit by name."""

from __future__ import annotations

import msgspec

from headgate.stores.protocol import Publication, TaskSpec
from headgate.stores.sqlite import values
from headgate.stores.sqlite.database import Transaction

_PUT = """
INSERT INTO catalogue (name, task, spec, release, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET task = excluded.task, spec = excluded.spec, release = excluded.release, at = excluded.at
"""


def publish(tx: Transaction, publication: Publication) -> None:
    """Declare values and tasks. The highest release wins; without one, the last start."""
    values.declare(tx, publication)
    for spec in publication.tasks:
        text = msgspec.json.encode(spec).decode()
        for name in (spec.name, *spec.aliases):
            before = tx.row("SELECT task, release FROM catalogue WHERE name = ?", (name,))
            if before is not None:
                older = values.release_key(before["release"]) > values.release_key(
                    publication.release
                )
                # A task's own name is worth more than another task's alias for it.
                taken = name != spec.name and before["task"] == name
                if older or taken:
                    continue
            tx.run(_PUT, (name, spec.name, text, publication.release, tx.now))
    tx.ring("work")


def find(tx: Transaction, name: str) -> TaskSpec | None:
    text = tx.value("SELECT spec FROM catalogue WHERE name = ?", (name,))
    return None if text is None else msgspec.json.decode(text, type=TaskSpec)


def every(tx: Transaction) -> list[TaskSpec]:
    rows = tx.rows("SELECT spec FROM catalogue WHERE name = task ORDER BY name")
    return [msgspec.json.decode(row["spec"], type=TaskSpec) for row in rows]
