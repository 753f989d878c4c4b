-- name: prunable
SELECT job FROM finished WHERE state = :state AND at <= :before ORDER BY at LIMIT :limit

-- name: keys
DELETE FROM idempotency
WHERE key IN (SELECT j.idempotency_key FROM json_each(:jobs) JOIN jobs j ON j.n = value)
  AND job IN (SELECT value FROM json_each(:jobs))

-- name: attempts
DELETE FROM attempts WHERE job IN (SELECT value FROM json_each(:jobs))

-- name: finished
DELETE FROM finished WHERE job IN (SELECT value FROM json_each(:jobs))

-- name: jobs
DELETE FROM jobs WHERE n IN (SELECT value FROM json_each(:jobs))
