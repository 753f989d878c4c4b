-- Locked: whoever else ends, loses, extends or cancels this attempt waits, and then finds
-- another state of it. What depends on the lock is read by later statements. Joined by = ANY, as in
-- `act`: never through all that is dead in `running`.
-- name: running
SELECT r.token, r.job, r.worker, r.attempt, r.started_at, r.ready_at, r.slots, r.reserved,
       j.id::text AS id, j.max_lost, j.caps
FROM headgate.running r JOIN headgate.jobs j ON j.n = ANY (ARRAY[r.job])
WHERE r.token = :token FOR UPDATE OF r

-- name: cancelled
SELECT reason FROM headgate.cancels WHERE job = :job

-- name: running_of_worker
SELECT token FROM headgate.running WHERE worker = :worker ORDER BY token

-- name: delete_running
DELETE FROM headgate.running WHERE token = :token

-- The attempt names its slots, so they are found by their key; the token is the fence.
-- name: free_slots
UPDATE headgate.slots s SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = :now
FROM json_array_elements(:slots::json) e
WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0 AND s.slot = (e ->> 1)::integer AND s.token = :token

-- name: free_lost_slots
UPDATE headgate.slots s SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = :now
FROM json_array_elements(:slots::json) e
WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0 AND s.slot = (e ->> 1)::integer AND s.token = :token
  AND s.worker IS NOT NULL

-- name: keep_extended_slots
UPDATE headgate.slots s SET worker = NULL
FROM json_array_elements(:slots::json) e
WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0 AND s.slot = (e ->> 1)::integer AND s.token = :token AND s.ends > :boot

-- Locked: who takes its worker for dead waits, or has taken this attempt away by now.
-- name: mine
SELECT slots, reserved FROM headgate.running
WHERE token = :token AND worker = :worker FOR UPDATE

-- name: start_reserved
UPDATE headgate.running SET reserved = false, started_at = :at, slots = :slots
WHERE token = :token

-- name: pass_slots
UPDATE headgate.slots s SET token = :token, since = :at, ends = NULL, job = j.n,
    holder = j.id::text
FROM json_array_elements(:slots::json) e,
     headgate.running r JOIN headgate.jobs j ON j.n = ANY (ARRAY[r.job])
WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0 AND s.slot = (e ->> 1)::integer AND s.token = :owner AND r.token = :token

-- name: give_back
SELECT headgate.give_back(:worker, :tokens::bigint[], :scheduled) AS tokens

-- name: insert_attempt
INSERT INTO headgate.attempts (job, token, attempt, worker, started_at, ended_at, outcome, reason,
                               slots, error)
VALUES (:job, :token, :attempt, :worker, :started_at, :ended_at, :outcome, :reason, :slots, :error)

-- name: count_attempts
SELECT count(*) FROM headgate.attempts WHERE job = :job AND outcome = :outcome

-- name: progress
UPDATE headgate.running SET progress = :fraction, progress_text = :text
WHERE token = :token AND worker = :worker
