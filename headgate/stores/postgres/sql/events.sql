-- name: record
INSERT INTO headgate.events (at, kind, subject, who, data) VALUES (?, ?, ?, ?, ?)

-- name: last
SELECT seq, at, kind, subject, who, data FROM headgate.events
WHERE (:kind::text IS NULL OR kind = :kind) AND (:subject::text IS NULL OR subject = :subject)
ORDER BY seq DESC LIMIT :limit

-- name: forget
DELETE FROM headgate.events WHERE seq IN (SELECT seq FROM headgate.events WHERE at <= :before LIMIT :limit)
