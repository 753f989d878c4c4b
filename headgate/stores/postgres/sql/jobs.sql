-- name: columns
SELECT j.n, j.id::text AS id, j.task, j.queue, j.priority, j.band, j.turn, j.lane, j.place,
       j.args, j.options, j.needs, j.carried, j.created_at, j.run_at, j.expires, j.expires_at,
       j.max_lost, j.idempotency_key, j.parent,
       f.state AS f_state, f.reason AS f_reason, f.result, f.error, f.attempt AS f_attempt,
       f.at AS f_at, r.token, r.worker, r.attempt AS r_attempt, r.started_at, r.ready_at, r.slots,
       r.progress, r.progress_text, r.overdue, r.released, r.reserved, w.name AS worker_name,
       s.run_at AS s_run_at, s.reason AS s_reason, s.attempt AS s_attempt,
       q.since, q.attempt AS q_attempt, c.reason AS c_reason, j.caps,
       EXISTS (SELECT 1 FROM headgate.held h WHERE h.job = j.id) AS held

-- name: tables
FROM headgate.jobs j
LEFT JOIN headgate.finished f ON f.job = j.n
LEFT JOIN headgate.running r ON r.job = j.n
LEFT JOIN headgate.workers w ON w.id = r.worker
LEFT JOIN headgate.scheduled s ON s.job = j.n
LEFT JOIN headgate.ready q ON q.queue = j.queue AND q.priority = j.priority AND q.band = j.band
    AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place AND q.job = j.n
LEFT JOIN headgate.cancels c ON c.job = j.n

-- What a search looks at; the rest is looked up for the few that it finds.
-- name: searched
FROM headgate.jobs j
LEFT JOIN headgate.finished f ON f.job = j.n
LEFT JOIN headgate.running r ON r.job = j.n
LEFT JOIN headgate.scheduled s ON s.job = j.n

-- By the index of ends, and from each to its job: never more than :look of them.
-- name: latest
SELECT x.job
FROM (SELECT job, at FROM headgate.finished WHERE state = :state ORDER BY at DESC LIMIT :look) x
WHERE (SELECT j.task FROM headgate.jobs j WHERE j.n = x.job) = :task
ORDER BY x.at DESC LIMIT 1

-- name: is_found
j.n = ANY (ARRAY(found))

-- A text that is no id is the id of no job.
-- name: is_job
j.id = (CASE WHEN :id::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        THEN :id::text::uuid END)

-- name: is_after
j.n < (SELECT n FROM headgate.jobs WHERE id = (
    CASE WHEN :after::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    THEN :after::text::uuid END))

-- name: is_among
j.id = ANY (ARRAY(
    SELECT given.id::uuid FROM json_array_elements_text(:ids::json) AS given (id)
    WHERE given.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'))

-- name: is_scheduled
s.job IS NOT NULL

-- name: is_running
(r.job IS NOT NULL AND NOT r.reserved)

-- name: is_ready
(f.job IS NULL AND s.job IS NULL AND (r.job IS NULL OR r.reserved))

-- name: is_succeeded
f.state = 'succeeded'

-- name: is_failed
f.state = 'failed'

-- name: is_cancelled
f.state = 'cancelled'

-- name: is_in_group
(strpos(j.needs, :cells) > 0 OR strpos(j.needs, :named) > 0
 OR strpos(coalesce(r.slots, ''), :held) > 0)

-- name: is_saying
(strpos(j.args, :text) > 0 OR strpos(coalesce(f.error, ''), :text) > 0 OR j.id::text = :text)

-- name: id_of
SELECT id::text FROM headgate.jobs WHERE n = :n

-- name: attempts
SELECT a.token, a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.reason, a.slots,
       a.error
FROM headgate.attempts a JOIN headgate.jobs j ON j.n = a.job WHERE j.id = (
    CASE WHEN :id::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN :id::text::uuid END)
UNION ALL
SELECT f.token, f.attempt, f.worker, f.started_at, f.at, f.outcome, f.reason, f.slots, f.error
FROM headgate.finished f JOIN headgate.jobs j ON j.n = f.job WHERE f.token IS NOT NULL AND j.id = (
    CASE WHEN :id::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN :id::text::uuid END)
UNION ALL
SELECT r.token, r.attempt, coalesce(w.name, r.worker), r.started_at, NULL, 'running', r.overdue,
       r.slots, NULL
FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
LEFT JOIN headgate.workers w ON w.id = r.worker
WHERE NOT r.reserved AND j.id = (
    CASE WHEN :id::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN :id::text::uuid END)
ORDER BY 1

-- name: ahead
SELECT count(*) FROM (
    SELECT 1 FROM headgate.ready
    WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn
      AND lane = :lane AND (place, job) < (:place, :n)
    LIMIT 1001
) AS found

-- name: delete_ready
DELETE FROM headgate.ready WHERE queue = :queue AND priority = :priority AND band = :band
    AND turn = :turn AND lane = :lane AND place = :place AND job = :n

-- name: request_cancel
INSERT INTO headgate.cancels (job, at, who, reason) VALUES (:job, :at, :who, :reason)
ON CONFLICT (job) DO NOTHING

-- name: expiring
SELECT n, id::text AS id FROM headgate.jobs
WHERE expires_at IS NOT NULL AND expires_at <= :now
ORDER BY expires_at LIMIT :limit

-- name: delete_scheduled
DELETE FROM headgate.scheduled WHERE job = :job

-- name: delete_unrouted
DELETE FROM headgate.unrouted WHERE task = :task AND job = :job

-- name: insert_unrouted
INSERT INTO headgate.unrouted (task, job) VALUES (:task, :job) ON CONFLICT DO NOTHING

-- name: unreserve
DELETE FROM headgate.reservations WHERE job = :job

-- name: expiry_spent
UPDATE headgate.jobs SET expires_at = NULL WHERE n = :job

-- name: keep_last_attempt
INSERT INTO headgate.attempts (job, token, attempt, worker, started_at, ended_at, outcome, reason,
                               slots, error)
SELECT job, token, attempt, worker, started_at, at, outcome, reason, slots, error
FROM headgate.finished WHERE job = :job AND token IS NOT NULL
ON CONFLICT DO NOTHING

-- name: delete_finished
DELETE FROM headgate.finished WHERE job = :job

-- name: set_aside
UPDATE headgate.attempts SET outcome = outcome || ' (before)'
WHERE job = :job AND outcome IN ('error', 'lost')

-- name: renew_place
UPDATE headgate.jobs SET place = (:now * 1e6)::bigint, expires_at = :now + expires WHERE n = :job
