-- What somebody else prunes just now is passed over: each is counted once.
-- name: prunable
SELECT job FROM headgate.finished WHERE state = :state AND at <= :before
ORDER BY at LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: keys
DELETE FROM headgate.idempotency i USING headgate.jobs j
WHERE j.n = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))
  AND i.key = j.idempotency_key AND i.job = j.n

-- name: attempts
DELETE FROM headgate.attempts
WHERE job = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))

-- name: finished
DELETE FROM headgate.finished
WHERE job = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))

-- name: jobs
DELETE FROM headgate.jobs
WHERE n = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))
