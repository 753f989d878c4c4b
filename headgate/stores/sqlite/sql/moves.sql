-- name: insert_finished
INSERT INTO finished (job, state, reason, result, error, attempt, at, token, outcome, worker,
                      started_at, slots)
VALUES (:job, :state, :reason, :result, :error, :attempt, :at, :token, :outcome, :worker,
        :started_at, :slots)

-- name: who_wants_to_know
SELECT j.id, j.queue, j.priority, j.turn, j.args, c.spec
FROM jobs j JOIN catalogue c ON c.name = j.task
WHERE j.n = :job AND instr(c.spec, '"on_aborted":"') > 0

-- name: insert_ready
INSERT INTO ready (queue, priority, band, turn, lane, place, job, attempt, since)
SELECT queue, priority, band, turn, lane, place, n, :attempt, :since FROM jobs WHERE n = :job

-- name: delete_cancel
DELETE FROM cancels WHERE job = :job

-- name: insert_scheduled
INSERT INTO scheduled (run_at, job, attempt, keeps_place, reason)
VALUES (:run_at, :job, :attempt, :keeps_place, :reason)

-- name: due
SELECT run_at, job, attempt, keeps_place FROM scheduled
WHERE run_at >= :since AND run_at <= :now ORDER BY run_at, job LIMIT :limit

-- name: delete_scheduled
DELETE FROM scheduled WHERE run_at = ? AND job = ?

-- name: set_place
UPDATE jobs SET place = :place WHERE n = :job

-- name: promote
INSERT INTO ready (queue, priority, band, turn, lane, place, job, attempt, since)
SELECT queue, priority, band, turn, lane, place, n, ?, ? FROM jobs WHERE n = ?
