"""Fill a store fast: with jobs as a submit would have stored them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bench.place import direct
from headgate.jobs import NewJob, new_id
from headgate.limits import band_of, lane_of
from headgate.stores import open_store

Kinds = Iterable[tuple[NewJob, int]]
"""Jobs, and how many there are of each."""
_CHUNK = 1000
_COLUMNS = "number, copies, task, queue, priority, band, turn, lane, args, options, needs, max_lost"


def fill(url: str, kinds: Kinds, *, analyze: bool = True) -> int:
    """Store them; how many there are. On PostgreSQL a million takes some ten seconds.

    Kind by kind in turn, as if all of them had been submitted over the same time.
    """
    if url.startswith("sqlite:"):
        return _submit(url, kinds)
    open_store(url).close()  # so that the schema is there
    with direct(url) as connection:
        connection.execute(
            "CREATE TEMPORARY TABLE kinds (number bigint, copies bigint, task text, queue text,"
            " priority smallint, band text, turn text, lane text, args text, options text,"
            " needs text, max_lost integer)"
        )
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY kinds ({_COLUMNS}) FROM STDIN") as copy,
        ):
            for number, (job, copies) in enumerate(kinds):
                copy.write_row((
                    number, copies, job.task, job.queue, job.priority,
                    band_of(job.task, job.needs, job.fair_limit), job.turn, lane_of(job.needs),
                    job.args, job.options, job.needs.to_json(), job.max_lost,
                ))  # fmt: skip
        connection.execute(
            "CREATE TEMPORARY TABLE filling AS SELECT nextval('headgate.places') AS n, x.* FROM ("
            " SELECT k.* FROM kinds k, generate_series(1, k.copies) c ORDER BY c, k.number) x"
        )
        connection.execute(
            "INSERT INTO headgate.jobs (n, id, task, queue, priority, band, turn, lane, place,"
            " args, options, needs, created_at, max_lost)"
            " SELECT n, gen_random_uuid(), task, queue, priority, band, turn, lane, n,"
            " args, options, needs, extract(epoch FROM clock_timestamp()), max_lost FROM filling"
        )
        done = connection.execute(
            "INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt,"
            " since) SELECT queue, priority, band, turn, lane, n, n, 0,"
            " extract(epoch FROM clock_timestamp()) FROM filling"
        )
        if analyze:
            connection.execute("ANALYZE headgate.jobs, headgate.ready")
        connection.execute("CHECKPOINT")  # or one falls into the measurement
        return done.rowcount


def _submit(url: str, kinds: Kinds) -> int:
    store = open_store(url)
    count = 0
    try:
        jobs = _in_turn(list(kinds))
        while chunk := list(itertools.islice(jobs, _CHUNK)):
            store.submit(chunk)
            count += len(chunk)
    finally:
        store.close()
    return count


def _in_turn(kinds: list[tuple[NewJob, int]]) -> Iterator[NewJob]:
    most = max((copies for _, copies in kinds), default=0)
    for n in range(most):
        for job, copies in kinds:
            if n < copies:
                yield replace(job, id=new_id())
