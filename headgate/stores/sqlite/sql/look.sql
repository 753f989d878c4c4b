-- name: queue_waiting
SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = :queue LIMIT :limit) AS found

-- name: queue_running
SELECT j.queue, count(*) AS n FROM running r JOIN jobs j ON j.n = r.job
WHERE r.reserved = 0 GROUP BY j.queue

-- name: queue_reserved
SELECT j.queue, count(*) AS n FROM running r JOIN jobs j ON j.n = r.job
WHERE r.reserved = 1 GROUP BY j.queue

-- name: queue_scheduled
SELECT j.queue, count(*) AS n
FROM (SELECT job FROM scheduled LIMIT :limit) s JOIN jobs j ON j.n = s.job GROUP BY j.queue

-- name: queue_oldest
SELECT min(since) FROM (SELECT since FROM ready WHERE queue = :queue LIMIT :limit) AS found

-- name: running_tasks
SELECT DISTINCT j.task, j.queue FROM running r JOIN jobs j ON j.n = r.job

-- name: retrying
SELECT j.task, j.queue, j.band, j.lane
FROM scheduled s JOIN jobs j ON j.n = s.job WHERE s.attempt > 0 LIMIT 1000

-- name: due_tasks
SELECT j.task, j.queue, j.band, j.lane
FROM scheduled s JOIN jobs j ON j.n = s.job WHERE s.run_at <= :now LIMIT 1000

-- name: reserver
SELECT j.id FROM reservations r JOIN jobs j ON j.n = r.job WHERE r.grp = :grp

-- name: groups
SELECT grp FROM overrides WHERE what <> 'weight' UNION SELECT grp FROM carried UNION SELECT grp FROM slots

-- A page of groups, in the order of their names: each is found by one row, whatever it holds.
-- name: carried_groups
SELECT grp FROM carried WHERE grp > :after ORDER BY grp LIMIT :limit

-- name: slot_groups
WITH RECURSIVE g AS (
    SELECT min(grp) AS grp, 1 AS k FROM slots WHERE grp > :after
    UNION ALL
    SELECT (SELECT min(s.grp) FROM slots s WHERE s.grp > g.grp), g.k + 1 FROM g
    WHERE g.grp IS NOT NULL AND g.k < :limit
)
SELECT grp, 1 AS held FROM g WHERE grp IS NOT NULL ORDER BY k

-- name: overdue
SELECT j.id AS id, j.task, r.overdue, r.started_at, coalesce(w.name, r.worker) AS worker
FROM running r JOIN jobs j ON j.n = r.job LEFT JOIN workers w ON w.id = r.worker
WHERE r.overdue <> '' ORDER BY r.started_at LIMIT 100

-- Who stands before it, though it may need nothing of what they do.
-- name: before
SELECT count(*) FROM (
    SELECT 1 FROM ready WHERE queue = :queue AND priority < :priority
    ORDER BY priority, band, turn, lane, place LIMIT 1001
) AS found

-- The last that ended well: how long does such a job take? Bounded, whatever there is.
-- name: durations
SELECT f.at - f.started_at AS took FROM (
    SELECT job, at, started_at FROM finished
    WHERE state = 'succeeded' ORDER BY at DESC LIMIT 500
) f JOIN jobs j ON j.n = f.job
WHERE j.task = :task AND f.started_at IS NOT NULL LIMIT 100

-- name: stands_for
SELECT after AS after, kind, grp FROM held WHERE job = :id LIMIT 1
