-- name: insert
INSERT INTO headgate.workers (id, name, keeper, host, pid, queues, serves, tasks, concurrency,
                              started_at, state, lease)
VALUES (:id, :name, :keeper, :host, :pid, :queues, :serves, :tasks, :concurrency, :started_at,
        'alive', :lease)

-- name: mark
UPDATE headgate.workers SET state = :state WHERE id = :worker

-- name: know
UPDATE headgate.workers SET tasks = :tasks WHERE id = :worker

-- name: names
SELECT id, name FROM headgate.workers

-- name: known
SELECT name, host, pid FROM headgate.workers WHERE id = :worker

-- name: delete
DELETE FROM headgate.workers WHERE id = :worker

-- name: running
SELECT worker, count(*) AS n FROM headgate.running WHERE NOT reserved GROUP BY worker

-- name: every
SELECT w.id, w.name, w.keeper, w.host, w.pid, w.queues, w.serves, w.tasks, w.concurrency,
       w.started_at, w.state, l.ends AS lease_ends, coalesce(l.ends > headgate.clock() AND NOT l.dead, false)
       AS alive
FROM headgate.workers w LEFT JOIN headgate.leases l ON l.worker = w.id
ORDER BY w.started_at, w.id
