-- name: insert
INSERT INTO workers (id, name, keeper, host, pid, queues, serves, tasks, concurrency, started_at,
                     state, boot)
VALUES (:id, :name, :keeper, :host, :pid, :queues, :serves, :tasks, :concurrency, :started_at,
        'alive', :boot_id)

-- name: mark
UPDATE workers SET state = :state WHERE id = :worker

-- name: know
UPDATE workers SET tasks = :tasks WHERE id = :worker

-- name: names
SELECT id, name FROM workers

-- name: known
SELECT name, host, pid FROM workers WHERE id = :worker

-- name: delete
DELETE FROM workers WHERE id = :worker

-- name: running
SELECT worker, count(*) AS n FROM running WHERE reserved = 0 GROUP BY worker

-- name: every
SELECT id, name, keeper, host, pid, queues, serves, tasks, concurrency, started_at, state,
       NULL AS lease_ends
FROM workers ORDER BY started_at, id
