-- name: insert_job
INSERT INTO jobs (n, id, task, queue, priority, band, turn, lane, place, args, options, needs,
                  created_at, run_at, expires, expires_at, max_lost, idempotency_key, parent, caps)
VALUES (:n, :id, :task, :queue, :priority, :band, :turn, :lane, :n, :args, :options, :needs,
        :created_at, :run_at, :expires, :expires_at, :max_lost, :idempotency_key, :parent, :caps)

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
