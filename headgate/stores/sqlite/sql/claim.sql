-- name: queues
WITH RECURSIVE q (queue) AS (
    SELECT (SELECT queue FROM ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM ready r WHERE r.queue > q.queue ORDER BY r.queue LIMIT 1)
    FROM q WHERE q.queue IS NOT NULL
)
SELECT queue FROM q WHERE queue IS NOT NULL

-- name: priorities
WITH RECURSIVE p (priority) AS (
    SELECT (SELECT priority FROM ready WHERE queue = :queue ORDER BY priority LIMIT 1)
    UNION ALL
    SELECT (SELECT r.priority FROM ready r
            WHERE r.queue = :queue AND r.priority > p.priority ORDER BY r.priority LIMIT 1)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT priority FROM p WHERE priority IS NOT NULL

-- name: bands
WITH RECURSIVE b (band) AS (
    SELECT (SELECT band FROM ready WHERE queue = :queue AND priority = :priority
            ORDER BY band LIMIT 1)
    UNION ALL
    SELECT (SELECT r.band FROM ready r
            WHERE r.queue = :queue AND r.priority = :priority AND r.band > b.band
            ORDER BY r.band LIMIT 1)
    FROM b WHERE b.band IS NOT NULL
)
SELECT band FROM b WHERE band IS NOT NULL

-- name: turns_from_start
WITH RECURSIVE t (turn) AS (
    SELECT (SELECT turn FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band
            ORDER BY turn LIMIT 1)
    UNION ALL
    SELECT (SELECT r.turn FROM ready r
            WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
              AND r.turn > t.turn ORDER BY r.turn LIMIT 1)
    FROM t WHERE t.turn IS NOT NULL
    LIMIT :limit
)
SELECT turn FROM t WHERE turn IS NOT NULL

-- name: turns_after
WITH RECURSIVE t (turn) AS (
    SELECT (SELECT turn FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band AND turn > :after
            ORDER BY turn LIMIT 1)
    UNION ALL
    SELECT (SELECT r.turn FROM ready r
            WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
              AND r.turn > t.turn ORDER BY r.turn LIMIT 1)
    FROM t WHERE t.turn IS NOT NULL
    LIMIT :limit
)
SELECT turn FROM t WHERE turn IS NOT NULL

-- name: has_turn
SELECT 1 FROM ready
WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn LIMIT 1

-- name: lanes_from_start
WITH RECURSIVE l (lane) AS (
    SELECT (SELECT lane FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn
            ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM ready r
            WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
              AND r.turn = :turn AND r.lane > l.lane ORDER BY r.lane LIMIT 1)
    FROM l WHERE l.lane IS NOT NULL
    LIMIT :limit
)
SELECT lane FROM l WHERE lane IS NOT NULL

-- name: lanes_after
WITH RECURSIVE l (lane) AS (
    SELECT (SELECT lane FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn
              AND lane > :after ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT r.lane FROM ready r
            WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
              AND r.turn = :turn AND r.lane > l.lane ORDER BY r.lane LIMIT 1)
    FROM l WHERE l.lane IS NOT NULL
    LIMIT :limit
)
SELECT lane FROM l WHERE lane IS NOT NULL

-- name: heads
SELECT r.place, r.job, r.attempt, r.since, j.id, j.task, j.args, j.options, j.created_at,
       j.expires_at
FROM ready r JOIN jobs j ON j.n = r.job
WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band AND r.turn = :turn
  AND r.lane = :lane AND r.place > :after
ORDER BY r.place LIMIT :limit

-- name: first_of_band
SELECT turn, lane, place, job FROM ready
WHERE queue = :queue AND priority = :priority AND band = :band
ORDER BY turn, lane, place LIMIT 1

-- name: delete_ready
DELETE FROM ready
WHERE queue = ? AND priority = ? AND band = ? AND turn = ? AND lane = ? AND place = ?

-- name: insert_running
INSERT INTO running (token, job, worker, attempt, started_at, ready_at, slots)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: insert_slot
INSERT INTO slots (grp, slot, token, holder, job, worker, worker_name, units, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: others_granted_since
SELECT 1 FROM slots s JOIN running r ON r.token = s.token JOIN jobs j ON j.n = r.job
WHERE s.grp = :grp AND s.since > :since
  AND NOT (j.band = :band AND j.turn = :turn AND j.lane = :lane) LIMIT 1

-- name: reserved_by_others
SELECT grp, lane, job FROM reservations
WHERE grp = :grp AND lane <> :lane AND boot = :boot_id AND ends > :boot

-- name: reserve
INSERT INTO reservations (grp, lane, job, units, ends, boot)
VALUES (:grp, :lane, :job, :units, :ends, :boot_id)
ON CONFLICT (grp) DO UPDATE SET lane = excluded.lane, job = excluded.job,
    units = excluded.units, ends = excluded.ends, boot = excluded.boot

-- name: renew_reservation
UPDATE reservations SET ends = :ends, boot = :boot_id
WHERE lane = :lane AND ends < :worth

-- name: unreserve
DELETE FROM reservations WHERE lane = :lane

-- name: paused_queues
SELECT name FROM queues WHERE paused = 1
