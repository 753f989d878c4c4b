"""Many jobs and keys at once, written straight into the tables of SQLite."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from headgate.limits import band_of
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


def fill(file: Path, *, ended: int, hot: int, keys: int) -> None:
    """So many jobs that are over, in line for one key, and in line for a key each."""
    db = sqlite3.connect(file, timeout=30)
    db.execute("PRAGMA synchronous = OFF")
    (start,) = db.execute("SELECT max(n) + 1 FROM jobs").fetchone()
    now = time.time()
    for count, key, sql in ((ended, "old", _FINISHED), (hot, "hot", _READY), (keys, "", _READY)):
        params = {"start": start, "count": count, "now": now}
        db.execute(_JOBS, {**params, "band": _BAND, "key": key, "keyed": not key})
        db.execute(sql, params)
        start += count
    db.execute("UPDATE counters SET value = 30000000 WHERE name = 'place'")
    db.commit()
    db.close()
