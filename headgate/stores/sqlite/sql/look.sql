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

-- name: band_lanes
SELECT DISTINCT turn, lane FROM ready
WHERE queue = :queue AND priority = :priority AND band = :band LIMIT 1000

-- name: reserver
SELECT j.id FROM reservations r JOIN jobs j ON j.n = r.job WHERE r.grp = :grp

-- name: groups
SELECT grp FROM overrides UNION SELECT grp FROM carried UNION SELECT grp FROM slots
