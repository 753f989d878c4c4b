-- name: one
SELECT s.grp, s.slot, s.token,
       coalesce((SELECT j.id::text FROM headgate.jobs j WHERE j.n = s.job), s.holder) AS holder, s.job, s.worker, s.worker_name, s.units, s.since,
       s.ends, '' AS boot, '' AS overdue
FROM headgate.slots s
WHERE s.epoch = headgate.epoch() AND s.grp = :grp AND s.slot = :slot AND s.token IS NOT NULL

-- In the row that an earlier holder left, if there is one: new index entries for every holder
-- would be dead ones soon.
-- name: take
INSERT INTO headgate.slots AS s (grp, epoch, slot, token, holder, job, worker, worker_name, units,
                                 since, ends)
VALUES (:grp, headgate.epoch(), :slot, :token, :holder, :job, :worker, :worker_name, :units,
        :since, :ends)
ON CONFLICT (epoch, grp, slot) DO UPDATE
SET token = excluded.token, holder = excluded.holder, job = excluded.job,
    worker = excluded.worker, worker_name = excluded.worker_name, units = excluded.units,
    since = excluded.since, ends = excluded.ends
WHERE s.token IS NULL

-- name: drop
UPDATE headgate.slots SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = :now
WHERE epoch = headgate.epoch() AND grp = :grp AND slot = :slot AND token = :token

-- name: take_now
SELECT outcome, slot, token, at
FROM headgate.take_slot(:grp, :units::integer, :holder, :worker, :lease::float8, :version, :said,
                        :value::integer, :carries)

-- name: drop_now
UPDATE headgate.slots SET token = NULL, job = NULL, worker = NULL, ends = NULL,
                          since = headgate.clock()
WHERE epoch = headgate.epoch() AND grp = :grp AND slot = :slot AND token = :token
RETURNING slot

-- name: extend_now
SELECT headgate.extend_slot(:grp, :slot::integer, :token, :seconds::float8)

-- name: expire
UPDATE headgate.slots SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = :now
WHERE epoch = headgate.epoch() AND token IS NOT NULL AND worker IS NULL AND ends <= :boot
  AND (:grp::text IS NULL OR grp = :grp)

-- Rows that nobody has held for long, in groups that nobody is at work in.
-- name: idle_groups
SELECT grp FROM (
    SELECT DISTINCT grp FROM headgate.slots
    WHERE epoch = headgate.epoch() AND token IS NULL AND since <= :before LIMIT :limit
) idle
WHERE pg_try_advisory_xact_lock(headgate.salt(), headgate.lock_key(grp))

-- name: delete_idle
DELETE FROM headgate.slots
WHERE epoch = headgate.epoch() AND grp = :grp AND token IS NULL AND since <= :before

-- Locked: who ends or loses this attempt at the same moment waits, or is waited for; then there is
-- nothing to extend any more.
-- name: running
SELECT slots FROM headgate.running WHERE token = :token FOR UPDATE

-- name: extend_attempt
UPDATE headgate.slots s SET ends = :ends
FROM json_array_elements(:slots::json) e
WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0 AND s.slot = (e ->> 1)::integer AND s.token = :token

-- name: mark_released
UPDATE headgate.running SET released = true WHERE token = :token AND NOT released

-- name: mark_retaken
UPDATE headgate.running SET released = false, slots = :slots WHERE token = :token

-- name: mark_overdue
UPDATE headgate.running SET overdue = :reason WHERE token = :token

-- name: groups_of_attempt
SELECT slots FROM headgate.running WHERE token = :token

-- Locked, as above: groups are given back, or taken again, by an attempt that is still running.
-- name: attempt
SELECT r.job, r.worker, r.slots, r.released, j.id::text AS id, w.name AS worker_name
FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
LEFT JOIN headgate.workers w ON w.id = r.worker
WHERE r.token = :token FOR UPDATE OF r

-- name: of_worker
SELECT grp, slot FROM headgate.slots
WHERE epoch = headgate.epoch() AND worker = :worker AND token IS NOT NULL

-- name: next_free
SELECT coalesce(max(slot) + 1, 0) FROM headgate.slots
WHERE epoch = headgate.epoch() AND grp = :grp
