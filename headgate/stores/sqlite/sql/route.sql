-- name: unrouted_tasks
WITH RECURSIVE t (task) AS (
    SELECT (SELECT task FROM unrouted ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT u.task FROM unrouted u WHERE u.task > t.task ORDER BY u.task LIMIT 1)
    FROM t WHERE t.task IS NOT NULL
)
SELECT task FROM t WHERE task IS NOT NULL

-- name: unrouted
SELECT j.id, j.task, j.args, j.options FROM unrouted u JOIN jobs j ON j.n = u.job
WHERE u.task = :task ORDER BY u.job LIMIT :limit

-- name: unrouted_job
SELECT j.n, j.id, j.task, j.run_at, j.created_at
FROM jobs j JOIN unrouted u ON u.job = j.n AND u.task = j.task WHERE j.id = :id

-- name: delete_unrouted
DELETE FROM unrouted WHERE task = :task AND job = :job

-- name: stamp
UPDATE jobs SET task = :task, queue = :queue, priority = :priority, band = :band, turn = :turn,
    lane = :lane, needs = :needs, expires = :expires, expires_at = :expires_at,
    max_lost = :max_lost
WHERE n = :n
