-- name: insert_finished
INSERT INTO finished (job, state, reason, result, error, attempt, at)
VALUES (:job, :state, :reason, :result, :error, :attempt, :at)

-- name: insert_ready
INSERT INTO ready (queue, priority, band, turn, lane, place, job, attempt, since)
SELECT queue, priority, band, turn, lane, place, n, :attempt, :since FROM jobs WHERE n = :job

-- name: delete_cancel
DELETE FROM cancels WHERE job = :job

-- name: insert_scheduled
INSERT INTO scheduled (run_at, job, attempt, keeps_place, reason)
VALUES (:run_at, :job, :attempt, :keeps_place, :reason)
