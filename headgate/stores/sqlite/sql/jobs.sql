-- name: columns
SELECT j.*, NULL AS carried, f.state AS f_state, f.reason AS f_reason, f.result, f.error, f.attempt AS f_attempt,
       f.at AS f_at, r.token, r.worker, r.attempt AS r_attempt, r.started_at, r.ready_at, r.slots,
       r.progress, r.progress_text, r.overdue, r.released, r.reserved, w.name AS worker_name,
       s.run_at AS s_run_at, s.reason AS s_reason, s.attempt AS s_attempt,
       q.since, q.attempt AS q_attempt, c.reason AS c_reason,
       EXISTS (SELECT 1 FROM held h WHERE h.job = j.id) AS held

-- name: tables
FROM jobs j
LEFT JOIN finished f ON f.job = j.n
LEFT JOIN running r ON r.job = j.n
LEFT JOIN workers w ON w.id = r.worker
LEFT JOIN scheduled s ON s.job = j.n
LEFT JOIN ready q ON q.queue = j.queue AND q.priority = j.priority AND q.band = j.band
    AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place
LEFT JOIN cancels c ON c.job = j.n

-- What a search looks at; the rest is looked up for the few that it finds.
-- name: searched
FROM jobs j
LEFT JOIN finished f ON f.job = j.n
LEFT JOIN running r ON r.job = j.n
LEFT JOIN scheduled s ON s.job = j.n

-- By the index of ends, and from each to its job: never more than :look of them.
-- name: latest
SELECT x.job
FROM (SELECT job, at FROM finished WHERE state = :state ORDER BY at DESC LIMIT :look) x
WHERE (SELECT j.task FROM jobs j WHERE j.n = x.job) = :task
ORDER BY x.at DESC LIMIT 1

-- name: is_found
j.n IN (found)

-- name: is_job
j.id = :id

-- name: is_after
j.n < (SELECT n FROM jobs WHERE id = :after)

-- name: is_among
j.id IN (SELECT value FROM json_each(:ids))

-- name: is_scheduled
j.n IN (SELECT job FROM scheduled)

-- name: is_running
j.n IN (SELECT job FROM running WHERE reserved = 0)

-- name: is_ready
f.job IS NULL AND s.job IS NULL AND (r.job IS NULL OR r.reserved = 1)

-- name: is_succeeded
f.state = 'succeeded'

-- name: is_failed
f.state = 'failed'

-- name: is_cancelled
f.state = 'cancelled'

-- name: is_in_group
(instr(j.needs, :cells) OR instr(j.needs, :named) OR instr(coalesce(r.slots, ''), :held))

-- name: is_saying
(instr(j.args, :text) OR instr(coalesce(f.error, ''), :text) OR j.id = :text)

-- name: id_of
SELECT id FROM jobs WHERE n = :n

-- name: attempts
SELECT a.token, a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.reason, a.slots,
       a.error
FROM attempts a JOIN jobs j ON j.n = a.job WHERE j.id = :id
UNION ALL
SELECT f.token, f.attempt, f.worker, f.started_at, f.at, f.outcome, f.reason, f.slots, f.error
FROM finished f JOIN jobs j ON j.n = f.job WHERE j.id = :id AND f.token IS NOT NULL
UNION ALL
SELECT r.token, r.attempt, coalesce(w.name, r.worker), r.started_at, NULL, 'running', r.overdue,
       r.slots, NULL
FROM running r JOIN jobs j ON j.n = r.job LEFT JOIN workers w ON w.id = r.worker
WHERE j.id = :id AND r.reserved = 0
ORDER BY 1

-- name: ahead
SELECT count(*) FROM (
    SELECT 1 FROM ready
    WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn
      AND lane = :lane AND place < :place
    LIMIT 1001
) AS found

-- name: delete_ready
DELETE FROM ready WHERE queue = :queue AND priority = :priority AND band = :band
    AND turn = :turn AND lane = :lane AND place = :place

-- name: request_cancel
INSERT INTO cancels (job, at, who, reason) VALUES (:job, :at, :who, :reason)
ON CONFLICT (job) DO NOTHING

-- name: expiring
SELECT n, id FROM jobs WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit

-- name: delete_scheduled
DELETE FROM scheduled WHERE job = :job

-- name: delete_unrouted
DELETE FROM unrouted WHERE task = :task AND job = :job

-- name: insert_unrouted
INSERT INTO unrouted (task, job) VALUES (:task, :job)

-- name: unreserve
DELETE FROM reservations WHERE job = :job

-- name: expiry_spent
UPDATE jobs SET expires_at = NULL WHERE n = :job

-- name: keep_last_attempt
INSERT INTO attempts (job, token, attempt, worker, started_at, ended_at, outcome, reason, slots,
                      error)
SELECT job, token, attempt, worker, started_at, at, outcome, reason, slots, error
FROM finished WHERE job = :job AND token IS NOT NULL

-- name: delete_finished
DELETE FROM finished WHERE job = :job

-- name: set_aside
UPDATE attempts SET outcome = outcome || ' (before)'
WHERE job = :job AND outcome IN ('error', 'lost')

-- name: renew_place
UPDATE jobs SET place = :place,
    expires_at = CASE WHEN expires IS NULL THEN NULL ELSE :now + expires END
WHERE n = :job
