"""Where jobs stand that are ready: in line, with nobody who knows their task, or granted ahead.

They are gone through from place to place: first the lines, band by band, where those are left out
of which no job can fit a filter; then what is unrouted or held back; then what is reserved.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from headgate.errors import StoreError
from headgate.jobs import JobFilter
from headgate.limits import Band, split_group
from headgate.stores.relational import capping
from headgate.stores.relational.lines import KEY_END, list_lines
from headgate.stores.relational.transaction import Transaction

MARK = "at."
KINDS = {"line": (str, int, str, str, str, int, int), "unrouted": (str, int), "reserved": (int,)}


@dataclass(frozen=True, slots=True)
class Stand:
    """The place of a job. `cells`: its kind, and what orders it among those of its kind: queue,
    priority, band, turn, lane, place and job; or task and job; or token."""

    job: int
    cells: tuple[Any, ...]

    @property
    def text(self) -> str:
        cells = json.dumps(self.cells, ensure_ascii=False, separators=(",", ":"))
        return MARK + base64.urlsafe_b64encode(cells.encode()).decode().rstrip("=")


def is_place(text: str) -> bool:
    return text.startswith(MARK)


def _cells(text: str) -> list[Any]:
    body = text.removeprefix(MARK)
    try:
        cells = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        cells = None
    if not isinstance(cells, list) or not _fits(cast("list[object]", cells)):
        raise StoreError(
            f"{text[:80]!r} is no place in this list: take the one that the page before gave"
        )
    return cast("list[Any]", cells)


def _fits(cells: list[object]) -> bool:
    kinds = KINDS.get(str(cells[0])) if cells else None
    return kinds is not None and len(cells) == len(kinds) + 1 and all(map(_is, cells[1:], kinds))


def _is(cell: object, kind: type) -> bool:
    if kind is int:
        return isinstance(cell, int) and -(2**62) <= cell <= 2**62
    # No database takes a zero byte or half of a character in a text.
    text = cell if isinstance(cell, str) else "\0"
    return "\0" not in text and text.encode(errors="ignore").decode() == text


def walk(tx: Transaction, filter: JobFilter, after: str | None, look: int) -> list[Stand]:
    """The next places, at most so many. Which of their jobs fit is left to who asks."""
    kind, *cells = ["line"] if after is None else _cells(after)
    found: list[Stand] = []
    if kind == "line":
        found += _in_line(tx, filter, cells, look)
        cells = []
    if kind != "reserved":
        found += _unrouted(tx, filter, cells, look - len(found))
        cells = []
    if len(found) < look:
        params = {"token": cells[0] if cells else 0, "look": look - len(found)}
        rows = tx.rows(tx.sql.watch.reserved, params)
        found += [Stand(row["job"], ("reserved", row["token"])) for row in rows]
    return found


def _in_line(tx: Transaction, filter: JobFilter, cells: list[Any], look: int) -> Iterator[Stand]:
    for band, turn in _bands(tx, filter):
        first, last = (turn, turn) if turn is not None else ("", KEY_END)
        start: tuple[Any, ...] = (first, "", -(2**62), 0)
        if cells and band < tuple(cells[:3]):
            continue
        if cells and band == tuple(cells[:3]):
            start = tuple(cells[3:])
        params = dict(zip(("queue", "priority", "band"), band, strict=True))
        params |= dict(zip(("turn", "lane", "place", "job"), start, strict=True))
        rows = tx.rows(tx.sql.watch.in_line, {**params, "last": last, "look": look})
        for row in rows:
            place = (row["turn"], row["lane"], row["place"], row["job"])
            yield Stand(row["job"], ("line", *band, *place))
        look -= len(rows)
        if look <= 0:
            return


def _unrouted(tx: Transaction, filter: JobFilter, cells: list[Any], look: int) -> Iterator[Stand]:
    """What nobody has stamped yet, by task; and what is held back, of whatever task."""
    spans = [("", KEY_END)]
    if filter.task is not None:
        spans = [(name, name) for name in sorted((filter.task, capping.HELD))]
    for first, last in spans:
        if look <= 0:
            return
        task, job = max((first, 0), tuple(cells or ("", 0)))
        params = {"task": task, "job": job, "last": last, "look": look}
        rows = tx.rows(tx.sql.watch.unrouted, params)
        yield from (Stand(row["job"], ("unrouted", row["task"], row["job"])) for row in rows)
        look -= len(rows)


def _bands(tx: Transaction, filter: JobFilter) -> Iterator[tuple[tuple[str, int, str], str | None]]:
    """The bands in which a job may fit; and its turn, where only those of one turn can."""
    name, key = (None, None) if filter.group is None else split_group(filter.group)
    for queue, priorities in list_lines(tx).items():
        if filter.queue not in (None, queue):
            continue
        for priority, bands in priorities.items():
            for text in bands:
                shape = Band.parse(text)
                if filter.task not in (None, shape.task):
                    continue
                names = {n for n, _, _ in shape.all}
                names |= {n for members in shape.one_of for n, _, _ in members}
                # What a submission named for itself has no name in its band.
                if name is not None and not names & {name, ""}:
                    continue
                turn = key if key and shape.fair_limit == name and "" not in names else None
                yield (queue, priority, text), turn
