-- Bounded counts are ordered by the key, so that no plan reads more than the bound. Jobs are found
-- row by row (LATERAL … LIMIT 1), which no plan can turn round: after a large load there are no
-- statistics yet, and a join would go through all jobs to find the few that run. A queue is looked
-- at from its first row on and told from others outside: of an equality the planner would think
-- that few rows have it, and sort them all.
-- name: queue_waiting
SELECT count(*) FROM (
    SELECT queue FROM headgate.ready WHERE queue >= :queue
    ORDER BY queue, priority, band, turn, lane, place, job LIMIT :limit
) AS found WHERE queue = :queue

-- name: queue_running
SELECT j.queue, count(*) AS n FROM headgate.running r
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = r.job LIMIT 1) j
WHERE NOT r.reserved GROUP BY j.queue

-- name: queue_reserved
SELECT j.queue, count(*) AS n FROM headgate.running r
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = r.job LIMIT 1) j
WHERE r.reserved GROUP BY j.queue

-- name: queue_scheduled
SELECT j.queue, count(*) AS n
FROM (SELECT job FROM headgate.scheduled ORDER BY run_at, job LIMIT :limit) s
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = s.job LIMIT 1) j
GROUP BY j.queue

-- name: queue_oldest
SELECT min(since) FROM (
    SELECT queue, since FROM headgate.ready WHERE queue >= :queue
    ORDER BY queue, priority, band, turn, lane, place, job LIMIT :limit
) AS found WHERE queue = :queue

-- name: running_tasks
SELECT DISTINCT j.task, j.queue FROM headgate.running r
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = r.job LIMIT 1) j

-- name: retrying
SELECT j.task, j.queue, j.band, j.lane
FROM headgate.scheduled s
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = s.job LIMIT 1) j
WHERE s.attempt > 0 LIMIT 1000

-- name: due_tasks
SELECT j.task, j.queue, j.band, j.lane
FROM headgate.scheduled s
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = s.job LIMIT 1) j
WHERE s.run_at <= :now LIMIT 1000

-- name: reserver
SELECT j.id::text FROM headgate.reservations r JOIN headgate.jobs j ON j.n = r.job
WHERE r.grp = :grp

-- name: groups
SELECT grp FROM headgate.overrides WHERE what <> 'weight' UNION
SELECT grp FROM headgate.carried UNION
SELECT grp FROM headgate.slots WHERE epoch = headgate.epoch() AND token IS NOT NULL

-- A page of groups, in the order of their names: each is found by one row, whatever it holds.
-- name: carried_groups
SELECT grp FROM headgate.carried WHERE grp > :after ORDER BY grp LIMIT :limit

-- name: slot_groups
WITH RECURSIVE g AS (
    (SELECT s.grp, 1 AS k FROM headgate.slots s
     WHERE s.epoch = headgate.epoch() AND s.grp > :after ORDER BY s.grp, s.slot LIMIT 1)
    UNION ALL
    SELECT n.grp, g.k + 1 FROM g CROSS JOIN LATERAL (
        SELECT s.grp FROM headgate.slots s
        WHERE s.epoch = headgate.epoch() AND s.grp > g.grp ORDER BY s.grp, s.slot LIMIT 1
    ) n WHERE g.k < :limit::integer
)
SELECT g.grp, EXISTS (
    SELECT 1 FROM headgate.slots s
    WHERE s.epoch = headgate.epoch() AND s.grp = g.grp AND s.token IS NOT NULL
) AS held FROM g ORDER BY g.k

-- name: overdue
SELECT j.id::text AS id, j.task, r.overdue, r.started_at, coalesce(w.name, r.worker) AS worker
FROM headgate.running r
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = r.job LIMIT 1) j
LEFT JOIN headgate.workers w ON w.id = r.worker
WHERE r.overdue <> '' ORDER BY r.started_at LIMIT 100

-- Who stands before it, though it may need nothing of what they do.
-- name: before
SELECT count(*) FROM (
    SELECT queue, priority FROM headgate.ready WHERE queue >= :queue
    ORDER BY queue, priority, band, turn, lane, place, job LIMIT 1001
) AS found WHERE queue = :queue AND priority < :priority

-- The last that ended well: how long does such a job take? Bounded, whatever there is.
-- name: durations
SELECT f.at - f.started_at AS took FROM (
    SELECT job, at, started_at, state FROM headgate.finished
    WHERE state <= 'succeeded' ORDER BY state DESC, at DESC LIMIT 500
) f
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = f.job LIMIT 1) j
WHERE f.state = 'succeeded' AND j.task = :task AND f.started_at IS NOT NULL LIMIT 100

-- name: stands_for
SELECT after::text AS after, kind, grp FROM headgate.held WHERE job = :id::uuid LIMIT 1
