-- name: one
SELECT s.grp, s.slot, s.token, s.holder, s.job, s.worker, s.worker_name, s.units, s.since,
       s.ends, s.boot, '' AS overdue
FROM slots s WHERE s.grp = :grp AND s.slot = :slot

-- name: take
INSERT INTO slots (grp, slot, token, holder, job, worker, worker_name, units, since, ends, boot)
VALUES (:grp, :slot, :token, :holder, :job, :worker, :worker_name, :units, :since, :ends, :boot)

-- name: drop
DELETE FROM slots WHERE grp = :grp AND slot = :slot AND token = :token

-- name: extend
UPDATE slots SET ends = :ends, boot = :boot_id
WHERE grp = :grp AND slot = :slot AND token = :token

-- Starts of another boot may still count by the wall clock, at most for the longest period there is.
-- name: expire
DELETE FROM slots
WHERE worker IS NULL AND (:grp IS NULL OR grp = :grp)
  AND (CASE WHEN boot = :boot_id THEN ends <= :boot
            ELSE holder <> '' OR abs(since - :now) > 31 * 86400.0 END)

-- name: some_expired
SELECT 1 FROM slots WHERE worker IS NULL AND holder <> '' AND (boot <> :boot_id OR ends <= :boot)
UNION ALL
SELECT 1 FROM slots WHERE worker IS NULL AND holder = '' AND boot = :boot_id AND ends <= :boot
LIMIT 1

-- name: running
SELECT slots FROM running WHERE token = :token

-- name: extend_attempt
UPDATE slots SET ends = :ends, boot = :boot_id WHERE token = :token

-- name: mark_released
UPDATE running SET released = 1 WHERE token = :token AND released = 0

-- name: mark_retaken
UPDATE running SET released = 0, slots = :slots WHERE token = :token

-- name: mark_overdue
UPDATE running SET overdue = :reason WHERE token = :token

-- name: groups_of_attempt
SELECT slots FROM running WHERE token = :token

-- name: attempt
SELECT r.job, r.worker, r.slots, r.released, j.id, w.name AS worker_name
FROM running r JOIN jobs j ON j.n = r.job LEFT JOIN workers w ON w.id = r.worker
WHERE r.token = :token

-- name: of_worker
SELECT grp, slot FROM slots WHERE worker = :worker

-- name: next_free
SELECT coalesce(max(slot) + 1, 0) FROM slots WHERE grp = :grp
