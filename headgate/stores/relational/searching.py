"""Searching through jobs, a page at a time: no page looks at more than so many, however many there
are.

A search goes through the table of the state that it asks for, so that what waits is not looked for
among all that is over. `browse` gives the jobs of one state in the order of that table. `listing`
gives jobs of any states the newest first, where there are no more of them than a page looks at;
else state after state, each in its own order.
"""

from __future__ import annotations

import json
from dataclasses import replace

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import FINAL, JobFilter, JobRecord, State
from headgate.stores.protocol import LOOKED_AT, JobPage
from headgate.stores.relational import inspecting, standing
from headgate.stores.relational.transaction import Row, Transaction

LOOK = LOOKED_AT
"""So many jobs one page of a search looks at."""
AT_ONCE = 1000
"""So many of them in one statement, where they are looked at by their numbers."""
ORDER: tuple[State, ...] = ("running", "ready", "scheduled", "failed", "cancelled", "succeeded")
READY: frozenset[State] = frozenset(("ready",))
LAST = 2**62
SLACK = 60.0
"""Numbers and times of submission grow together, but for so many seconds at most."""


def browse(tx: Transaction, filter: JobFilter, limit: int, after: str | None) -> JobPage:
    """Jobs of one state in the order in which they came into it, the latest first (those that are
    scheduled: the next first; those that are ready: the newest first, or where there are many in
    the order of their lines); of several or any states, the newest first."""
    if filter.states == READY:
        return _ready(tx, filter, limit, after)
    return _along(tx, _way(filter), filter, limit, after)


def listing(tx: Transaction, filter: JobFilter, limit: int, after: str | None) -> JobPage:
    """The newest first, and on from a job by its id; where it goes by state, from a place."""
    state, colon, place = (after or "").partition(":")
    if colon:
        return _by_state(tx, filter, limit, state, place)
    last = LAST if after is None else _number(tx, after)
    numbers = _all(tx, filter) if filter.states else None
    if numbers is not None:
        found = _fitting(tx, filter, [n for n in numbers if n < last], limit)
        end = found[-1] if len(found) == limit else None
        return JobPage(_records(tx, found), None if end is None else _id(tx, end))
    if filter.states and after is None:
        return _by_state(tx, filter, limit)
    page = _along(tx, "number", filter, limit, None if after is None else f"{last}_0")
    end = None if page.after is None else int(page.after.partition("_")[0])
    return replace(page, after=None if end is None else _id(tx, end))


def _by_state(
    tx: Transaction, filter: JobFilter, limit: int, state: str | None = None, place: str = ""
) -> JobPage:
    """One state after the other, from a place in one of them on."""
    states = [one for one in ORDER if one in filter.states]
    names: list[str] = list(states)
    if state is not None and state not in names:
        raise StoreError(f"'{state}:{place}' is no place in this list")
    jobs: tuple[JobRecord, ...] = ()
    for one in states[0 if state is None else names.index(state) :]:
        wanted = replace(filter, states=frozenset((one,)))
        page = browse(tx, wanted, limit - len(jobs), place or None)
        jobs, place = jobs + page.jobs, ""
        if page.after is not None:
            return JobPage(jobs, f"{one}:{page.after}")
        if len(jobs) >= limit:
            following = states[states.index(one) + 1 :]
            return JobPage(jobs, f"{following[0]}:" if following else None)
    return JobPage(jobs, None)


# --- along a table ------------------------------------------------------------------------------


def _along(tx: Transaction, way: str, filter: JobFilter, limit: int, after: str | None) -> JobPage:
    drive = getattr(tx.sql.watch, f"by_{way}")
    where, params = inspecting.where(tx, filter)
    at, job = _cursor(way, after)
    if way == "number" and after is None and filter.until is not None:
        at = _first_after(tx, filter.until + SLACK)
    params |= {"at": at, "job": job, "look": LOOK, "state": next(iter(filter.states), "")}
    sql = f"SELECT d.at, d.job FROM ({drive}) AS d {tx.sql.watch.searched} WHERE {where}"
    order = "ASC" if way == "scheduled" else "DESC"
    rows = tx.rows(
        f"{sql} ORDER BY d.at {order}, d.job {order} LIMIT :limit", {**params, "limit": limit}
    )
    found = [row["job"] for row in rows]
    end: Row | None
    if len(found) == limit:
        end = rows[-1]
    else:
        last = f"SELECT d.at, d.job FROM ({drive}) AS d ORDER BY d.at {order}, d.job {order}"
        end = tx.row(f"{last} LIMIT 1 OFFSET :skip", {**params, "skip": LOOK - 1})
        if end is not None and _is_before(tx, way, end, filter.since):
            end = None
    return JobPage(_records(tx, found), None if end is None else f"{end['at']!r}_{end['job']}")


def _way(filter: JobFilter) -> str:
    """The table through which a search goes: none of them may be read from end to end."""
    if len(filter.states) == 1:
        state: State = next(iter(filter.states))
        if state in FINAL:
            return "end"
        if state in ("running", "scheduled"):
            return state
    return "number"


def _is_before(tx: Transaction, way: str, end: Row, since: float | None) -> bool:
    """Was all that comes behind this place submitted before that moment?"""
    if since is None or way not in ("number", "end"):
        return False
    at = tx.value(tx.sql.watch.created, {"n": end["job"]}) if way == "number" else end["at"]
    return at is not None and at < since - SLACK


def _first_after(tx: Transaction, moment: float) -> int:
    """The number of the first job that was submitted after this moment, found by halving."""
    low, high = 0, int(tx.value(tx.sql.watch.newest) or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = tx.row(tx.sql.watch.next_number, {"n": middle})
        if row is None or row["created_at"] > moment:
            high = middle
        else:
            low = row["n"] + 1
    return low


def _cursor(way: str, after: str | None) -> tuple[float | int, int]:
    whole = way in ("number", "running")
    if after is None:
        return (0.0, 0) if way == "scheduled" else (LAST if whole else 1e18, LAST)
    at, _, job = after.partition("_")
    try:
        place = (int(at) if whole else float(at)), int(job)
    except ValueError:
        raise StoreError(
            f"{after!r} is no place in this list: take the one that the page before gave"
        ) from None
    if not all(-LAST <= cell <= LAST for cell in place):
        raise StoreError(f"{after!r} is no place in this list")
    return place


# --- by number ----------------------------------------------------------------------------------


def _ready(tx: Transaction, filter: JobFilter, limit: int, after: str | None) -> JobPage:
    """The newest first, where a page may look at all that are ready; else in the order of their
    lines. A page goes on as the one before did."""
    if after is None or not standing.is_place(after):
        numbers = _all(tx, filter)
        if numbers is not None:
            last, _ = _cursor("number", after)
            found = _fitting(tx, filter, [n for n in numbers if n < last], limit)
            end = f"{found[-1]}_{found[-1]}" if len(found) == limit else None
            return JobPage(_records(tx, found), end)
        if after is not None:
            return _along(tx, "number", filter, limit, after)
    found, looked, step = list[int](), 0, limit
    while looked < LOOK:
        # Where most fit, no more are read than a page shows; where few do, it takes few steps.
        step = min(step, LOOK - looked)
        stands = standing.walk(tx, filter, after, step)
        fit = set(_fitting(tx, filter, [stand.job for stand in stands], limit))
        for stand in stands:
            looked, after = looked + 1, stand.text
            if stand.job in fit:
                found.append(stand.job)
                if len(found) == limit:
                    return JobPage(_records(tx, found), after)
        if len(stands) < step:
            return JobPage(_records(tx, found), None)
        step *= 2
    return JobPage(_records(tx, found), after)


def _all(tx: Transaction, filter: JobFilter) -> list[int] | None:
    """All jobs in these states, the newest first; None: there are more than a page looks at."""
    found: set[int] = set()
    for state in filter.states:
        look = LOOK + 1 - len(found)
        if state == "ready":
            found |= {stand.job for stand in standing.walk(tx, filter, None, look)}
        else:
            way = _way(JobFilter(states=frozenset((state,))))
            at, job = _cursor(way, None)
            params = {"at": at, "job": job, "look": look, "state": state}
            found |= {row["job"] for row in tx.rows(getattr(tx.sql.watch, f"by_{way}"), params)}
        if len(found) > LOOK:
            return None
    return sorted(found, reverse=True)


def _fitting(tx: Transaction, filter: JobFilter, numbers: list[int], limit: int) -> list[int]:
    """The first of these jobs that fit, in their order."""
    where, params = inspecting.where(tx, filter)
    sql = f"SELECT d.job FROM ({tx.sql.watch.by_given}) AS d {tx.sql.watch.searched} WHERE {where}"
    found: list[int] = []
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        rows = tx.rows(sql, {**params, "given": json.dumps(some)})
        fit = {row["job"] for row in rows}
        found += [n for n in some if n in fit]
        if len(found) >= limit:
            break
    return found[:limit]


def _records(tx: Transaction, numbers: list[int]) -> tuple[JobRecord, ...]:
    sql = tx.sql.jobs
    rows = tx.rows(
        f"{sql.columns} {sql.tables} WHERE {tx.sql.watch.is_numbered}",
        {"found": json.dumps(numbers)},
    )
    by_number = {row["n"]: inspecting.to_record(row) for row in rows}
    return tuple(by_number[n] for n in numbers if n in by_number)


def _number(tx: Transaction, id: str) -> int:
    n = None
    if id.isprintable():
        n = tx.value(f"SELECT j.n {tx.sql.watch.of_jobs} WHERE {tx.sql.jobs.is_job}", {"id": id})
    if n is None:
        raise JobNotFound(
            f"{id!r} names no job after which to go on: take what the page before gave"
        )
    return int(n)


def _id(tx: Transaction, n: int) -> str:
    return str(tx.value(tx.sql.jobs.id_of, {"n": n}))
