"""`make explain`: writes docs/explain.md, the plans of a claim with a million jobs waiting.

It needs the system's PostgreSQL, for `auto_explain` (see bench/plans.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

from bench.fill import Kinds, fill
from bench.place import SETTINGS, direct
from bench.plans import Explained, available
from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication
from headgate.turns import ClaimState
from tests.postgres.server import OwnServer

PAGE = Path(__file__).parents[1] / "docs" / "explain.md"
MILLION = int(os.environ.get("HEADGATE_EXPLAIN_ROWS", "1000000"))
TASKS = 4
ROOM = 25
SHOWN = 10

HEAD = """\
# The plans of a claim

One round trip of a worker that ends {room} jobs and claims {room} more, with {rows:,} jobs
waiting: `EXPLAIN (ANALYZE, BUFFERS)` of every statement inside `headgate.act` and
`headgate.look`, as PostgreSQL {version} ran them, written by `make explain`. Times are left out:
what counts is that each step reads a handful of rows by a primary key. A statement that ran
several times with the same steps is shown once.

`tests/postgres/test_plans.py` asserts this with fresh, stale and no statistics.
"""


def kinds(limited: int) -> Kinds:
    """A million jobs of some tasks, of which so many are limited."""
    for i in range(TASKS):
        needs = Needs((Need(f"task-{i}"),)) if i < limited else Needs()
        yield NewJob(f"task-{i}", needs=needs), MILLION // TASKS


CASES = (
    ("No task is limited", 0),
    (f"One task of {TASKS} is limited to 10", 1),
    ("Every task is limited to 10", TASKS),
)


class Worker:
    """Claims and ends, as a worker does."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.state = ClaimState()
        self.finishes: list[Finish] = []

    def steps(self, count: int) -> int:
        store = open_store(self.url)
        tasks = frozenset(f"task-{i}" for i in range(TASKS))
        claimed = 0
        for _ in range(count):
            claim = Claim(ROOM, tasks, self.state)
            got = store.exchange(Exchange("w", self.finishes, claim=claim))
            self.finishes = [Finish(c.token, "succeeded", result="null") for c in got.claimed]
            claimed = len(got.claimed)
        store.close()
        return claimed


def explain(server: OwnServer, limited: int) -> tuple[int, list[str]]:
    """How many jobs the claim got, and the plans."""
    database = f"explain_{limited}"
    server.run(f"CREATE DATABASE {database} TEMPLATE template0")
    url = server.url(database)
    store = open_store(url)
    store.publish(Publication("bench", code={f"task-{i}": 10 for i in range(TASKS)}))
    store.register(NewWorker("w", "w", pid=os.getpid(), lease=3600.0))
    store.close()
    fill(url, kinds(limited))
    worker = Worker(url)
    worker.steps(5)
    # The first round trip of a new connection prepares, and reads the limits.
    claimed, entries = Explained(server, url, "text").watch(lambda: worker.steps(2))
    with direct(url) as connection:
        connection.execute("VACUUM headgate.running")
    return claimed, last_round(entries)


def last_round(entries: list[str]) -> list[str]:
    """What ran inside the last `act` and the last `look`: nested statements come first."""
    found: list[str] = []
    seen = 0
    for entry in reversed(entries):
        query = entry.partition("\n")[0]
        outer = "headgate.act(" in query or "headgate.look(" in query
        if outer:
            seen += 1
            if seen > 2:
                break
        elif seen and ("headgate." in entry.partition("\n")[2] or "headgate." in query):
            found.append(entry)
    return list(reversed(found))


def page(server: OwnServer) -> str:
    with server.admin() as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    version = str(row[0]).split()[0]
    parts = [HEAD.format(room=ROOM, rows=MILLION, version=version)]
    shown: set[str] = set()
    for title, limited in CASES:
        claimed, entries = explain(server, limited)
        counts = Counter(shape(entry) for entry in entries)
        new = {shape(entry): entry for entry in entries if shape(entry) not in shown}
        parts.append(f"## {title}\n\nThe claim got {claimed} jobs.\n")
        parts.append(table(entries))
        if len(new) < len(counts):
            parts.append("Those of its plans that are not shown above:\n")
        for form, entry in new.items():
            query, plan = _parts(entry)
            again = f" ({counts[form]} times)" if counts[form] > 1 else ""
            parts.append(f"### `{_title(query)}`{again}\n\n```text\n{query}\n\n{plan}\n```\n")
        shown |= set(new)
    return "\n".join(parts)


def table(entries: list[str]) -> str:
    """Every statement of the round trip, how often it ran and how many blocks it touched."""
    times: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for entry in entries:
        query, plan = _parts(entry)
        title = _title(query).replace("|", "\\|")
        times[title] += 1
        # The first line of them is that of the whole statement.
        told = re.search(r"Buffers: shared ([^\n]*)", plan)
        blocks[title] += sum(
            int(n) for n in re.findall(r"(?:hit|read)=(\d+)", told[1] if told else "")
        )
    lines = [f"| `{title}` | {n} | {blocks[title]} |" for title, n in times.items()]
    total = f"| all | {times.total()} | {blocks.total()} |"
    return "\n".join(["| statement | times | blocks |", "|---|---|---|", *lines, total, ""])


def shape(entry: str) -> str:
    """The statement and the steps of its plan, without numbers and values."""
    query, plan = _parts(entry)
    steps = [line for line in plan.splitlines() if "Buffers:" not in line]
    return query + re.sub(r"\(actual [^)]*\)|'[^']*'|\d+", "", "\n".join(steps))


def _parts(entry: str) -> tuple[str, str]:
    """The statement, and its plan without what the planner expected."""
    lines = entry.splitlines()
    first = next((i for i, line in enumerate(lines) if "(cost=" in line), len(lines))
    query = "\n".join(lines[:first]).removeprefix("Query Text: ")
    plan = "\n".join(lines[first:])
    return _dedent(query), re.sub(r" \(cost=[^)]*\)", "", plan)


def _dedent(query: str) -> str:
    lines = [line.rstrip() for line in query.splitlines() if line.strip()]
    cut = min((len(line) - len(line.lstrip()) for line in lines[1:]), default=0)
    return "\n".join([lines[0], *(line[cut:] for line in lines[1:])])


def _title(query: str) -> str:
    words = query.split()
    return " ".join(words[:SHOWN]) + ("…" if len(words) > SHOWN else "")


def main() -> int:
    found = available()
    if found is None:
        print("docs/explain.md is not written: no PostgreSQL with auto_explain is installed here")
        return 1
    server = OwnServer(found, SETTINGS)
    try:
        server.start()
        PAGE.write_text(page(server))
    finally:
        server.close()
    print(f"written: {PAGE.relative_to(PAGE.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
