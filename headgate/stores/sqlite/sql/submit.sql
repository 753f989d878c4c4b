-- name: insert_job
INSERT INTO jobs (n, id, task, queue, priority, band, turn, lane, place, args, options, needs,
                  created_at, run_at, expires, expires_at, max_lost, idempotency_key, parent)
VALUES (:n, :id, :task, :queue, :priority, :band, :turn, :lane, :n, :args, :options, :needs,
        :created_at, :run_at, :expires, :expires_at, :max_lost, :idempotency_key, :parent)

-- name: insert_ready
INSERT INTO ready (queue, priority, band, turn, lane, place, job, attempt, since)
VALUES (:queue, :priority, :band, :turn, :lane, :n, :n, 0, :since)

-- name: insert_unrouted
INSERT INTO unrouted (task, job) VALUES (:task, :n)

-- name: idempotent
SELECT j.id, j.task, i.digest FROM idempotency i JOIN jobs j ON j.n = i.job WHERE i.key = :key

-- name: insert_idempotency
INSERT INTO idempotency (key, job, digest) VALUES (:key, :job, :digest)

-- name: own_name
SELECT task FROM catalogue WHERE name = :task

-- name: id_exists
SELECT 1 FROM jobs WHERE id = :id

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
