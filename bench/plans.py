"""The plans of the statements inside the functions of a claim, as the server ran them.

`auto_explain` writes them to the server's log, with what each step really read. The server
that is bundled for tests has no such module, so this needs the system's PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.place import direct
from tests.postgres.server import OwnServer, system

T = TypeVar("T")
HOT = frozenset(("ready", "running", "slots", "jobs", "finished", "scheduled"))
"""Tables that grow; some of them have parts, such as ready_0."""
MODULE = "auto_explain"
SETTINGS = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
}


def available() -> Path | None:
    """The binaries of a server that has the module."""
    found = system()
    if found is None or not list(found.parent.glob(f"lib/{MODULE}.so")):
        return None
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a plan."""

    kind: str
    relation: str
    index: str
    conditions: str
    rows: float
    """What it gave, over all its loops."""
    removed: float
    """What it read and threw away."""
    loops: float
    depth: int

    @property
    def read(self) -> float:
        return self.rows + self.removed


@dataclass(frozen=True, slots=True)
class Plan:
    statement: str
    steps: tuple[Step, ...]
    text: str
    """The plan as the server wrote it."""

    @property
    def hot(self) -> bool:
        """Does it read a table that grows?"""
        return any(is_hot(step.relation) for step in self.steps)


class Explained:
    """A database of `server` in which every statement is explained while `watch` runs."""

    def __init__(self, server: OwnServer, url: str, form: str = "json") -> None:
        self._server = server
        self._url = url
        with direct(url) as connection:
            row = connection.execute("SELECT current_database()").fetchone()
            assert row is not None
            self._database = str(row[0])
        self._form = form

    def watch(self, work: Callable[[], T]) -> tuple[T, list[str]]:
        """Do the work in connections made by it; what the log says about its statements."""
        self._alter(f"SET session_preload_libraries = '{MODULE}'")
        for name, value in {**SETTINGS, "auto_explain.log_format": self._form}.items():
            self._alter(f"SET {name} = '{value}'")
        before = len(self._server.log())
        try:
            done = work()
        finally:
            self._alter("RESET session_preload_libraries")
        return done, split(self._server.log()[before:])

    def _alter(self, what: str) -> None:
        with direct(self._url) as connection:
            connection.execute(f"LOAD '{MODULE}'".encode())  # or its settings are unknown
            connection.execute(f"ALTER DATABASE {self._database} {what}".encode())


def split(log: str) -> list[str]:
    """The entries of auto_explain, one text for each."""
    entries: list[list[str]] = []
    inside = False
    for line in log.splitlines():
        if " LOG:  duration:" in line and line.endswith("plan:"):
            entries.append([])
            inside = True
        elif inside and (line.startswith("\t") or not line):
            entries[-1].append(line.removeprefix("\t"))
        else:
            inside = False
    return ["\n".join(entry) for entry in entries]


def parsed(entries: list[str]) -> list[Plan]:
    """From entries in JSON."""
    plans: list[Plan] = []
    for entry in entries:
        told: dict[str, Any] = json.loads(entry)
        plans.append(Plan(told["Query Text"], tuple(_steps(told["Plan"])), entry))
    return plans


def _steps(node: Mapping[str, Any], depth: int = 0) -> Iterator[Step]:
    loops = node.get("Actual Loops", 1)
    removed = sum(
        value for name, value in node.items() if name.startswith("Rows Removed by")
    )  # fmt: skip
    conditions = [str(node[name]) for name in ("Index Cond", "TID Cond") if name in node]
    yield Step(
        kind=node["Node Type"],
        relation=node.get("Relation Name", ""),
        index=node.get("Index Name", ""),
        conditions=" ".join(conditions),
        rows=node.get("Actual Rows", 0) * loops,
        removed=removed * loops,
        loops=loops,
        depth=depth,
    )
    for child in node.get("Plans", ()):
        yield from _steps(child, depth + 1)


def is_hot(relation: str) -> bool:
    name, _, part = relation.rpartition("_")
    return (name if part.isdigit() else relation) in HOT


def faults(plan: Plan, most: int) -> list[str]:
    """What a statement of a claim must not do, whatever waits in line."""
    found: list[str] = []
    for step in plan.steps:
        if step.kind == "Seq Scan" and is_hot(step.relation):
            found.append(f"reads all of {step.relation}")
        # From one end of an index to the first that fits is fine; every row of it is not, and least
        # of all where dead ones stand between them.
        whole = not step.conditions and step.read > step.loops
        if "Index" in step.kind and whole and is_hot(step.relation):
            found.append(f"reads all of {step.relation} by {step.index}")
        if step.kind in ("Bitmap Heap Scan", "Bitmap Index Scan") and step.read > most:
            found.append(f"a bitmap of {step.read:,.0f} rows")
        if step.kind in ("Sort", "Incremental Sort") and step.rows > most:
            found.append(f"sorts {step.rows:,.0f} rows")
        if step.read > most:
            found.append(f"{step.kind} on {step.relation or '–'} reads {step.read:,.0f} rows")
    return found
