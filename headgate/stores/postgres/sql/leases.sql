-- name: insert
INSERT INTO headgate.leases (worker, ends) VALUES (:worker, headgate.clock() + :lease)

-- A dead worker's lease is never renewed; one that has ended may be, as long as nobody has
-- taken it.
-- name: renew
UPDATE headgate.leases l SET ends = headgate.clock() + w.lease
FROM headgate.workers w WHERE l.worker = :worker AND w.id = l.worker AND NOT l.dead

-- name: expired
SELECT worker FROM headgate.leases WHERE ends <= headgate.clock() AND NOT dead ORDER BY worker

-- name: seize
SELECT worker FROM headgate.leases
WHERE worker = :worker AND ends <= headgate.clock() AND NOT dead FOR UPDATE SKIP LOCKED

-- name: seize_any
SELECT dead FROM headgate.leases WHERE worker = :worker FOR UPDATE

-- name: at_work
SELECT NOT pg_try_advisory_xact_lock(headgate.salt(), headgate.lock_key(:name))

-- name: bury
UPDATE headgate.leases SET dead = true WHERE worker = :worker

-- name: is_dead
SELECT dead FROM headgate.leases WHERE worker = :worker

-- name: delete
DELETE FROM headgate.leases WHERE worker = :worker

-- name: forget
DELETE FROM headgate.leases WHERE dead AND ends <= :before

-- name: lock_limits
SELECT pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(:limits))

-- name: lock_groups
SELECT pg_advisory_xact_lock_shared(headgate.salt(), headgate.lock_key(:limits)),
       headgate.lock(:groups)

-- Each answered by the first row of an index, or from a table as small as the fleet.
-- name: due_for_sweep
SELECT EXISTS (SELECT 1 FROM headgate.leases WHERE ends <= headgate.clock() AND NOT dead)
    OR EXISTS (SELECT 1 FROM headgate.leases WHERE dead AND ends <= :forgotten)
    OR coalesce((SELECT expires_at FROM headgate.jobs WHERE expires_at IS NOT NULL
                 ORDER BY expires_at LIMIT 1) <= :now, false)
    OR coalesce((SELECT run_at FROM headgate.scheduled ORDER BY run_at LIMIT 1) <= :now, false)
