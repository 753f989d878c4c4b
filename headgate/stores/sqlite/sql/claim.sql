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
       j.expires_at, j.caps
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

-- Starts under a rate. Nobody holds them: no job, no worker and no holder, only an end, and a token
-- that no attempt has. `since` is the first of them, so that a row does not go on for ever.
-- name: merge_starts
UPDATE slots SET units = units + :units, ends = max(ends, :ends)
WHERE grp = :grp AND slot = (
    SELECT s.slot FROM slots s
    WHERE s.grp = :grp AND s.worker IS NULL AND s.job IS NULL AND s.holder = ''
      AND s.boot = :boot_id AND s.ends > :boot AND abs(s.since - :now) < :step
    LIMIT 1)

-- name: insert_starts
INSERT INTO slots (grp, slot, token, holder, worker_name, units, since, ends, boot)
VALUES (:grp, :slot, :token, '', '', :units, :now, :ends, :boot_id)

-- name: others_granted_since
SELECT 1 FROM slots s LEFT JOIN jobs j ON j.n = s.job
WHERE s.grp = :grp AND s.since > :since
  AND NOT (j.band IS :band AND j.turn IS :turn AND j.lane IS :lane) LIMIT 1

-- name: paused_queues
SELECT name FROM queues WHERE paused = 1

-- name: refused_others
SELECT grp FROM refused WHERE worker <> :worker AND at > :since

-- name: note_refused
INSERT INTO refused (grp, worker, at) VALUES (:grp, :worker, :at)
ON CONFLICT (grp) DO UPDATE SET worker = excluded.worker, at = excluded.at WHERE at < :worth
