-- name: record
INSERT INTO events (at, kind, subject, who, data) VALUES (?, ?, ?, ?, ?)

-- name: last
SELECT seq, at, kind, subject, who, data FROM events
WHERE (:kind IS NULL OR kind = :kind) AND (:subject IS NULL OR subject = :subject)
ORDER BY seq DESC LIMIT :limit

-- The last one stays: a copy of the store that is made anew knows by it which numbers were given.
-- name: forget
DELETE FROM events WHERE seq IN (
    SELECT seq FROM events
    WHERE at <= :before AND seq < (SELECT max(seq) FROM events) LIMIT :limit)
