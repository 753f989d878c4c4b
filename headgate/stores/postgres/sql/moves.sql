-- name: insert_finished
INSERT INTO headgate.finished (job, state, reason, result, error, attempt, at, token, outcome,
                               worker, started_at, slots)
VALUES (:job, :state, :reason, :result, :error, :attempt, :at, :token, :outcome, :worker,
        :started_at, :slots)

-- name: who_wants_to_know
SELECT j.id::text AS id, j.queue, j.priority, j.turn, j.args, c.spec
FROM headgate.jobs j JOIN headgate.catalogue c ON c.name = j.task
WHERE j.n = :job AND strpos(c.spec, '"on_aborted":"') > 0

-- name: insert_ready
SELECT headgate.line_up(:job, :attempt::integer, :since)

-- name: delete_cancel
DELETE FROM headgate.cancels WHERE job = :job

-- name: insert_scheduled
INSERT INTO headgate.scheduled (run_at, job, attempt, keeps_place, reason)
VALUES (:run_at, :job, :attempt, :keeps_place, :reason)

-- What somebody else promotes just now is passed over.
-- name: due
SELECT run_at, job, attempt, keeps_place FROM headgate.scheduled
WHERE run_at >= :since AND run_at <= :now ORDER BY run_at, job LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: delete_scheduled
DELETE FROM headgate.scheduled WHERE run_at = ? AND job = ?

-- name: set_place
UPDATE headgate.jobs SET place = (:run_at * 1e6)::bigint WHERE n = :job

-- name: promote
SELECT headgate.line_up(x.job, x.attempt, x.since)
FROM (SELECT ?::integer AS attempt, ?::float8 AS since, ?::bigint AS job) x
