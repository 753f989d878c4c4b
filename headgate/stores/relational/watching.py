"""Looking at many at once, for those who watch: every read here is bounded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headgate.errors import StoreError
from headgate.limits import Band, needs_of, split_group
from headgate.rates import RATE_SLOT
from headgate.stores.protocol import (
    Ended,
    EndRecord,
    EventRecord,
    GroupLoad,
    GroupPage,
    LanePage,
    LanePlace,
    LaneRecord,
    LaneWalk,
    LimitLoad,
)
from headgate.stores.relational import orphans
from headgate.stores.relational.cataloguing import keyed_limits
from headgate.stores.relational.lines import KEY_END, list_lines
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values, limit_records

BOUND = 1000
"""So many jobs of a band are counted at most."""
HELD_BOUND = 5000
"""So many slots of the keys of a limit."""
LIMITS = 500
"""So many limits and groups with words are told at most."""
BANDS = 500
SPANS = 120
SLOTS = 2000
EVENTS = 20_000
"""So many events."""


def loads(tx: Transaction) -> list[LimitLoad]:
    """Declared limits and groups that operators spoke of, with what is held and waits."""
    words = Values(tx).words
    spoken = sorted({*words.limits, *words.pauses} - set(words.declared))
    groups = [*sorted(words.declared), *spoken][:LIMITS]
    keyed, orphaned = keyed_limits(tx), orphans.orphaned_limits(tx)
    waiting, nobody = _waiting(tx), (0, False, None)
    found: list[LimitLoad] = []
    for told in limit_records(tx, groups).values():
        name, key = split_group(told.group)
        record = replace(told, keyed=name in keyed and key is None, orphaned=name in orphaned)
        held, holders, keys, bounded = record.held, record.holders, 0, False
        if record.keyed and record.pace is None:
            params = {"low": f"{name}/", "high": f"{name}0", "rows": HELD_BOUND, **_clock(tx)}
            row = tx.row(tx.sql.watch.held_by_keys, params)
            if row is not None:
                held, holders, keys = row["held"], row["holders"], row["keys"]
                bounded = holders >= HELD_BOUND
        count, more, oldest = waiting.get(name, nobody) if key is None else nobody
        found.append(LimitLoad(record, held, holders, keys, bounded, count, more, oldest))
    return found


def _waiting(tx: Transaction) -> dict[str, tuple[int, bool, float | None]]:
    """By limit: how many jobs in line need it (over all keys), and the oldest."""
    found: dict[str, tuple[int, bool, float | None]] = {}
    for where, shape in _bands(tx):
        names = {name for name, _, _ in shape.all if name}
        names |= {name for members in shape.one_of for name, _, _ in members if name}
        if not names:
            continue
        row = tx.row(tx.sql.watch.band_waiting, {**where, "bound": BOUND})
        if row is None or not row["n"]:
            continue
        for name in names:
            count, more, oldest = found.get(name, (0, False, None))
            oldest = row["since"] if oldest is None else min(oldest, row["since"])
            found[name] = (count + row["n"], more or row["n"] >= BOUND, oldest)
    return found


def _bands(tx: Transaction) -> Iterator[tuple[dict[str, Any], Band]]:
    left = BANDS
    for queue, priorities in list_lines(tx).items():
        for priority, bands in priorities.items():
            for band in bands:
                if left:
                    left -= 1
                    where = {"queue": queue, "priority": priority, "band": band}
                    yield where, Band.parse(band)


def lanes(tx: Transaction, walk: LaneWalk) -> LanePage:
    """The lanes that wait, band after band, from where the walk stands."""
    found: list[LaneRecord] = []
    start = walk.after
    for where, shape in _bands(tx):
        place = (where["queue"], where["priority"], where["band"])
        if start is not None and place < (start.queue, start.priority, start.band):
            continue
        if not _needs(shape, walk.limit):
            continue
        # Where the key is also the turn, its lanes stand side by side; elsewhere they are
        # scattered, and the walk goes by all of them.
        direct = walk.key is not None and shape.fair_limit == walk.limit
        turn, lane = (walk.key or "", "") if direct else ("", "")
        fresh = True
        if start is not None and place == (start.queue, start.priority, start.band):
            turn, lane, fresh = start.turn, start.lane, False
        room = walk.lanes - len(found)
        params = {**where, "turn": turn, "lane": lane, "fresh": int(fresh), "limit": room,
                  "last": turn if direct else KEY_END, "counted": walk.counted}  # fmt: skip
        rows = tx.rows(tx.sql.watch.lanes, params)
        found += [_lane(where, shape, row, walk.counted) for row in rows]
        if len(found) >= walk.lanes:
            return LanePage(tuple(found), found[-1].place)
    return LanePage(tuple(found), None)


def _needs(shape: Band, limit: str | None) -> bool:
    if limit is None:
        return True
    members = (cell for cells in shape.one_of for cell in cells)
    # What a submission named for itself has no name in its band: only its lanes tell.
    return any(name in (limit, "") for name, _, _ in (*shape.all, *members))


def _lane(where: dict[str, Any], shape: Band, row: Row, counted: int) -> LaneRecord:
    return LaneRecord(
        LanePlace(where["queue"], where["priority"], where["band"], row["turn"], row["lane"]),
        shape.task,
        needs_of(where["band"], row["lane"]),
        row["id"],
        row["since"],
        row["n"],
        row["n"] >= counted,
    )


def held_groups(tx: Transaction, start: str, after: str | None, limit: int) -> GroupPage:
    """Groups whose name begins so and that somebody holds, by name."""
    rows = min(SLOTS, limit * 20)
    params = {"low": start, "high": start + KEY_END, "after": after or "", "rows": rows,
              **_clock(tx)}  # fmt: skip
    found = tx.rows(tx.sql.watch.held_groups, params)
    groups = [GroupLoad(r["grp"], r["held"], r["holders"], r["since"]) for r in found]
    # The last of them may have holders beyond the bound: it begins the next page, unless it is
    # alone with more holders than a page has rows.
    if sum(group.holders for group in groups) >= rows and len(groups) > 1:
        groups = groups[:limit] if len(groups) > limit else groups[:-1]
        return GroupPage(tuple(groups), groups[-1].group)
    if len(groups) > limit or sum(group.holders for group in groups) >= rows:
        groups = groups[:limit]
        return GroupPage(tuple(groups), groups[-1].group)
    return GroupPage(tuple(groups), None)


def _clock(tx: Transaction) -> dict[str, Any]:
    return {"boot": tx.boot, "boot_id": tx.boot_id}


def ended(tx: Transaction, edges: Sequence[float], bound: int) -> list[Ended]:
    """How many jobs ended from each of these moments to the next."""
    if len(edges) > SPANS + 1:
        raise StoreError(f"at most {SPANS} spans of time are counted at once, got {len(edges) - 1}")
    spans = [[low, high] for low, high in itertools.pairwise(edges)]
    counts: list[dict[str, int]] = [{} for _ in spans]
    for row in tx.rows(tx.sql.watch.ended, {"spans": json.dumps(spans), "bound": bound}):
        counts[row["span"]][row["state"]] = row["n"]
    return [
        Ended(c["succeeded"], c["failed"], c["cancelled"], any(n >= bound for n in c.values()))
        for c in counts
    ]


def ends(tx: Transaction, since: float, limit: int) -> list[EndRecord]:
    """The last jobs that succeeded or failed, the latest first."""
    found: list[EndRecord] = []
    for state in ("succeeded", "failed"):
        params = {"state": state, "since": since, "limit": limit}
        found += [_end(row) for row in tx.rows(tx.sql.watch.ends, params)]
    found.sort(key=lambda end: end.at, reverse=True)
    return found[:limit]


def _end(row: Row) -> EndRecord:
    slots = json.loads(row["slots"] or "[]")
    return EndRecord(
        row["id"], row["task"], row["queue"], row["turn"], row["state"],
        max(row["created_at"], row["run_at"] or 0.0), row["started_at"], row["at"],
        tuple((group, units) for group, slot, units in slots if slot != RATE_SLOT),
    )  # fmt: skip


def events(
    tx: Transaction, kind: str, subject: str, before: int | None, limit: int
) -> list[EventRecord]:
    params = {"kind": kind, "subject": subject, "limit": limit, "look": EVENTS}
    rows = tx.rows(tx.sql.watch.events, {**params, "before": 2**62 if before is None else before})
    return [
        EventRecord(r["seq"], r["at"], r["kind"], r["subject"], r["who"], json.loads(r["data"]))
        for r in rows
    ]
