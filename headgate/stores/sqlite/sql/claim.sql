-- The bands there are, in order: hop from one to the next, whatever stands in them.
-- name: bands
WITH RECURSIVE b (cells) AS (
    SELECT (SELECT json_array(queue, priority, band) FROM ready
            ORDER BY queue, priority, band LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue = json_extract(cells, '$[0]') AND r.priority = json_extract(cells, '$[1]')
           AND r.band > json_extract(cells, '$[2]') ORDER BY r.band LIMIT 1),
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue = json_extract(cells, '$[0]') AND r.priority > json_extract(cells, '$[1]')
         ORDER BY r.priority, r.band LIMIT 1),
        (SELECT json_array(r.queue, r.priority, r.band) FROM ready r
         WHERE r.queue > json_extract(cells, '$[0]')
         ORDER BY r.queue, r.priority, r.band LIMIT 1))
    FROM b WHERE cells IS NOT NULL
)
SELECT json_extract(cells, '$[0]') AS queue, json_extract(cells, '$[1]') AS priority,
       json_extract(cells, '$[2]') AS band
FROM b WHERE cells IS NOT NULL

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
INSERT INTO running (token, job, worker, attempt, started_at, ready_at, slots, reserved)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_slot
INSERT INTO slots (grp, slot, token, holder, job, worker, worker_name, units, since)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: others_granted_since
SELECT 1 FROM slots s LEFT JOIN jobs j ON j.n = s.job
WHERE s.grp = :grp AND s.since > :since
  AND NOT (j.band IS :band AND j.turn IS :turn AND j.lane IS :lane) LIMIT 1

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

-- name: refused_others
SELECT grp FROM refused WHERE worker <> :worker AND at > :since

-- name: note_refused
INSERT INTO refused (grp, worker, at) VALUES (:grp, :worker, :at)
ON CONFLICT (grp) DO UPDATE SET worker = excluded.worker, at = excluded.at WHERE at < :worth
