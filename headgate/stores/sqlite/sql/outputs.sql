-- name: attempt
SELECT job, attempt FROM running WHERE token = :token

-- Told again after a lost answer: it is there already.
-- name: put
INSERT INTO outputs (job, token, seq, attempt, stream, at, start, data)
VALUES (:job, :token, :seq, :attempt, :stream, :at, :start, :data)
ON CONFLICT DO NOTHING

-- name: forget
DELETE FROM outputs WHERE job = :job AND token = :token AND seq >= :first AND seq < :last

-- name: after
SELECT o.token, o.attempt, o.seq, o.stream, o.at, o.start, o.data
FROM outputs o
WHERE o.job = :job AND (o.token, o.seq) > (:token, :seq)
ORDER BY o.token, o.seq LIMIT :limit

-- name: before
SELECT o.token, o.attempt, o.seq, o.stream, o.at, o.start, o.data
FROM outputs o
WHERE o.job = :job AND (o.token, o.seq) < (:token, :seq)
ORDER BY o.token DESC, o.seq DESC LIMIT :limit

-- name: prune
DELETE FROM outputs WHERE job IN (SELECT value FROM json_each(:jobs))
