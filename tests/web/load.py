"""Many jobs and keys at once, written straight into the tables."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from headgate.limits import band_of
from headgate.stores.postgres.url import parse
from tests.web.scene import needs

_BAND = band_of("charge", needs("payments-api", "tenant/x"), "tenant")
_JOBS = """
WITH RECURSIVE g (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM g WHERE i < :count - 1)
INSERT INTO jobs (n, id, task, queue, priority, band, turn, lane, place, args, options, needs,
                  created_at, max_lost)
SELECT :start + i, printf('%08x-0000-7000-8000-%012x', :start + i, i), 'charge', 'default', 0,
       :band, k.key, json_array(k.key), 10000000 + :start + i, '{"tenant_id": "x"}', '{}',
       json_array(json_array(json_array('payments-api', NULL, 1), json_array('tenant', k.key, 1)),
                  json_array()), :now - 600, 3
FROM (SELECT i, CASE WHEN :keyed THEN printf('key-%06d', i) ELSE :key END AS key FROM g) k
"""
_READY = """
INSERT INTO ready SELECT queue, priority, band, turn, lane, place, n, 0, :now - 600 FROM jobs
WHERE n >= :start AND n < :start + :count
"""
_FINISHED = """
INSERT INTO finished (job, state, reason, attempt, at, token, outcome, worker, started_at, slots)
SELECT n, 'succeeded', '', 1, :now - n % 3000, n, 'succeeded', 'w', :now - n % 3000 - 1,
       '[["payments-api",0,1]]'
FROM jobs WHERE n >= :start AND n < :start + :count
"""


_PG_JOBS = """
INSERT INTO {schema}.jobs (n, id, task, queue, priority, band, turn, lane, place, args, options,
                           needs, created_at, max_lost)
SELECT %(start)s::bigint + i, (lpad(to_hex(%(start)s::bigint + i), 8, '0') || '-0000-7000-8000-'
       || lpad(to_hex(i), 12, '0'))::uuid, 'charge', 'default', 0, %(band)s, k.key,
       json_build_array(k.key)::text, 10000000 + %(start)s::bigint + i, '{{"tenant_id": "x"}}',
       '{{}}', '[[["payments-api",null,1],["tenant","' || k.key || '",1]],[]]', %(now)s - 600, 3
FROM (SELECT i, CASE WHEN %(keyed)s THEN 'key-' || lpad(i::text, 6, '0') ELSE %(key)s END AS key
      FROM generate_series(0, %(count)s::integer - 1) AS g (i)) k
"""
_PG_READY = """
INSERT INTO {schema}.ready (queue, priority, band, turn, lane, place, job, attempt, since, gen)
SELECT queue, priority, band, turn, lane, place, n, 0, %(now)s - 600,
       (SELECT gen FROM {schema}.generations ORDER BY n DESC LIMIT 1)
FROM {schema}.jobs WHERE n >= %(start)s::bigint AND n < %(start)s::bigint + %(count)s::integer
"""
_PG_FINISHED = """
INSERT INTO {schema}.finished (job, state, reason, attempt, at, token, outcome, worker, started_at,
                               slots)
SELECT n, 'succeeded', '', 1, %(now)s - n %% 3000, n, 'succeeded', 'w', %(now)s - n %% 3000 - 1,
       '[["payments-api",0,1]]'
FROM {schema}.jobs WHERE n >= %(start)s::bigint AND n < %(start)s::bigint + %(count)s::integer
"""


def any_of_it(step: tuple[int, str, str]) -> bool:
    return step[0] > 0


def fill_postgres(url: str, *, ended: int, hot: int, keys: int) -> None:
    """The same on PostgreSQL, which knows nothing of it: no statistics are gathered until some
    time after such a load, and here they never are."""
    address = parse(url)
    now = time.time()
    with psycopg.connect(address.conninfo, autocommit=True) as db:
        for table in ("jobs", "ready_0", "finished"):
            name = sql.Identifier(address.schema, table)
            db.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(name))
        schema = sql.Identifier(address.schema)

        def run(statement: LiteralString, cells: dict[str, object]) -> None:
            db.execute(sql.SQL(statement).format(schema=schema), cells)

        found = db.execute(sql.SQL("SELECT max(n) + 1 FROM {}.jobs").format(schema)).fetchone()
        assert found is not None
        start = found[0]
        steps = ((ended, "old", _PG_FINISHED), (hot, "hot", _PG_READY), (keys, "", _PG_READY))
        for count, key, statement in filter(any_of_it, steps):
            cells: dict[str, object] = {"start": start, "count": count, "now": now, "key": key}
            run(_PG_JOBS, {**cells, "band": _BAND, "keyed": not key})
            run(statement, cells)
            start += count
        # What is submitted from now on is numbered after these.
        db.execute("SELECT setval(%s, %s)", (f"{address.schema}.places", start))


def fill(file: Path, *, ended: int, hot: int, keys: int) -> None:
    """So many jobs that are over, in line for one key, and in line for a key each."""
    db = sqlite3.connect(file, timeout=30)
    db.execute("PRAGMA synchronous = OFF")
    (start,) = db.execute("SELECT max(n) + 1 FROM jobs").fetchone()
    now = time.time()
    steps = ((ended, "old", _FINISHED), (hot, "hot", _READY), (keys, "", _READY))
    for count, key, statement in filter(any_of_it, steps):
        params = {"start": start, "count": count, "now": now}
        db.execute(_JOBS, {**params, "band": _BAND, "key": key, "keyed": not key})
        db.execute(statement, params)
        start += count
    db.execute("UPDATE counters SET value = 30000000 WHERE name = 'place'")
    db.commit()
    db.close()
