-- Locked: who ends or loses the attempt waits for our commit; reports of its progress do not.
-- name: attempt
SELECT job, attempt FROM headgate.running WHERE token = :token FOR KEY SHARE

-- Told again after a lost answer: it is there already.
-- name: put
INSERT INTO headgate.outputs (job, token, seq, attempt, stream, at, start, data)
VALUES (:job, :token, :seq, :attempt, :stream, :at, :start, :data)
ON CONFLICT DO NOTHING

-- name: forget
DELETE FROM headgate.outputs
WHERE job = :job AND token = :token AND seq >= :first AND seq < :last

-- name: after
SELECT o.token, o.attempt, o.seq, o.stream, o.at, o.start, o.data
FROM headgate.outputs o
WHERE o.job = :job AND (o.token, o.seq) > (:token, :seq)
ORDER BY o.token, o.seq LIMIT :limit

-- name: before
SELECT o.token, o.attempt, o.seq, o.stream, o.at, o.start, o.data
FROM headgate.outputs o
WHERE o.job = :job AND (o.token, o.seq) < (:token, :seq)
ORDER BY o.token DESC, o.seq DESC LIMIT :limit

-- name: prune
DELETE FROM headgate.outputs
WHERE job = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))
