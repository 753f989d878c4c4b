-- name: unrouted_tasks
WITH RECURSIVE t AS (
    (SELECT u.task FROM headgate.unrouted u ORDER BY u.task LIMIT 1)
    UNION ALL
    SELECT n.task FROM t CROSS JOIN LATERAL (
        SELECT u.task FROM headgate.unrouted u WHERE u.task > t.task ORDER BY u.task LIMIT 1
    ) n
)
SELECT task FROM t

-- name: unrouted
SELECT j.id::text AS id, j.task, j.args, j.options
FROM (SELECT u.job FROM headgate.unrouted u WHERE u.task = :task ORDER BY u.job LIMIT :limit) u
JOIN headgate.jobs j ON j.n = u.job ORDER BY u.job

-- name: unrouted_job
SELECT j.n, j.id::text AS id, j.task, j.run_at, j.created_at
FROM headgate.jobs j JOIN headgate.unrouted u ON u.job = j.n AND u.task = j.task
WHERE j.id = (CASE WHEN :id::text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
              THEN :id::text::uuid END)

-- name: delete_unrouted
DELETE FROM headgate.unrouted WHERE task = :task AND job = :job

-- name: stamp
UPDATE headgate.jobs SET task = :task, queue = :queue, priority = :priority, band = :band,
    turn = :turn, lane = :lane, needs = :needs, expires = :expires, expires_at = :expires_at,
    max_lost = :max_lost
WHERE n = :n
