-- Bounded counts are ordered by the key, so that no plan reads more than the bound.
-- name: queue_waiting
SELECT count(*) FROM (
    SELECT 1 FROM headgate.ready WHERE queue = :queue
    ORDER BY priority, band, turn, lane, place LIMIT :limit
) AS found

-- name: queue_running
SELECT j.queue, count(*) AS n FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
WHERE NOT r.reserved GROUP BY j.queue

-- name: queue_reserved
SELECT j.queue, count(*) AS n FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
WHERE r.reserved GROUP BY j.queue

-- name: queue_scheduled
SELECT j.queue, count(*) AS n
FROM (SELECT job FROM headgate.scheduled ORDER BY run_at, job LIMIT :limit) s
JOIN headgate.jobs j ON j.n = s.job GROUP BY j.queue

-- name: queue_oldest
SELECT min(since) FROM (
    SELECT since FROM headgate.ready WHERE queue = :queue
    ORDER BY priority, band, turn, lane, place LIMIT :limit
) AS found

-- name: running_tasks
SELECT DISTINCT j.task, j.queue FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job

-- name: retrying
SELECT j.task, j.queue, j.band, j.lane
FROM headgate.scheduled s JOIN headgate.jobs j ON j.n = s.job WHERE s.attempt > 0 LIMIT 1000

-- name: due_tasks
SELECT j.task, j.queue, j.band, j.lane
FROM headgate.scheduled s JOIN headgate.jobs j ON j.n = s.job WHERE s.run_at <= :now LIMIT 1000

-- name: band_lanes
WITH RECURSIVE l AS (
    (SELECT r.turn, r.lane, 1 AS n FROM headgate.ready r
     WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
     ORDER BY r.turn, r.lane LIMIT 1)
    UNION ALL
    SELECT x.turn, x.lane, l.n + 1 FROM l CROSS JOIN LATERAL (
        SELECT r.turn, r.lane FROM headgate.ready r
        WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
          AND (r.turn, r.lane) > (l.turn, l.lane)
        ORDER BY r.turn, r.lane LIMIT 1
    ) x WHERE l.n < 1000
)
SELECT turn, lane FROM l

-- name: reserver
SELECT j.id::text FROM headgate.reservations r JOIN headgate.jobs j ON j.n = r.job
WHERE r.grp = :grp

-- name: groups
SELECT grp FROM headgate.overrides WHERE what <> 'weight' UNION
SELECT grp FROM headgate.carried UNION
SELECT grp FROM headgate.slots WHERE epoch = headgate.epoch() AND token IS NOT NULL

-- name: head
SELECT q.place, q.since, j.id::text AS id FROM headgate.ready q JOIN headgate.jobs j ON j.n = q.job
WHERE q.queue = :queue AND q.priority = :priority AND q.band = :band AND q.turn = :turn
  AND q.lane = :lane ORDER BY q.place LIMIT 1

-- name: overdue
SELECT j.id::text AS id, j.task, r.overdue, r.started_at, coalesce(w.name, r.worker) AS worker
FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job LEFT JOIN headgate.workers w ON w.id = r.worker
WHERE r.overdue <> '' ORDER BY r.started_at LIMIT 100

-- Who stands before it, though it may need nothing of what they do.
-- name: before
SELECT count(*) FROM (
    SELECT 1 FROM headgate.ready WHERE queue = :queue AND priority < :priority
    ORDER BY priority, band, turn, lane, place LIMIT 1001
) AS found

-- The last that ended well: how long does such a job take? Bounded, whatever there is.
-- name: durations
SELECT f.at - f.started_at AS took FROM (
    SELECT job, at, started_at FROM headgate.finished
    WHERE state = 'succeeded' ORDER BY at DESC LIMIT 500
) f JOIN headgate.jobs j ON j.n = f.job
WHERE j.task = :task AND f.started_at IS NOT NULL LIMIT 100

-- name: stands_for
SELECT after::text AS after, kind, grp FROM headgate.held WHERE job = :id::uuid LIMIT 1
