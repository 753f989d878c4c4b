-- name: running
SELECT r.token, r.job, r.worker, r.attempt, r.started_at, r.ready_at, r.slots, r.reserved,
       j.id, j.max_lost, j.caps
FROM running r JOIN jobs j ON j.n = r.job
WHERE r.token = :token

-- name: cancelled
SELECT reason FROM cancels WHERE job = :job

-- name: running_of_worker
SELECT token FROM running WHERE worker = :worker ORDER BY token

-- name: delete_running
DELETE FROM running WHERE token = :token

-- name: free_slots
DELETE FROM slots WHERE token = :token

-- name: free_lost_slots
DELETE FROM slots WHERE token = :token AND worker IS NOT NULL

-- name: mine
SELECT slots, reserved FROM running WHERE token = :token AND worker = :worker

-- name: start_reserved
UPDATE running SET reserved = 0, started_at = :at, slots = :slots WHERE token = :token

-- name: pass_slots
UPDATE slots SET token = :token, since = :at, ends = NULL, boot = NULL,
    (job, holder) = (SELECT j.n, j.id FROM running r JOIN jobs j ON j.n = r.job
                     WHERE r.token = :token)
WHERE token = :owner

-- name: keep_extended_slots
UPDATE slots SET worker = NULL
WHERE token = :token AND ends IS NOT NULL AND boot = :boot_id AND ends > :boot

-- name: insert_attempt
INSERT INTO attempts (job, token, attempt, worker, started_at, ended_at, outcome, reason, slots,
                      error)
VALUES (:job, :token, :attempt, :worker, :started_at, :ended_at, :outcome, :reason, :slots, :error)

-- name: count_attempts
SELECT count(*) FROM attempts WHERE job = :job AND outcome = :outcome

-- name: progress
UPDATE running SET progress = :fraction, progress_text = :text
WHERE token = :token AND worker = :worker
