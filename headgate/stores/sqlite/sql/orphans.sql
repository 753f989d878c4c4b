-- What no worker that is there declares any more.

-- name: declared_by
INSERT INTO declarers (declarer, at) VALUES (:declarer, :at)
ON CONFLICT (declarer) DO UPDATE SET at = excluded.at, gone = NULL

-- name: declarers
SELECT declarer, gone FROM declarers

-- name: tasks
SELECT name, task, gone FROM catalogue

-- name: declarers_gone
UPDATE declarers SET gone = :gone WHERE declarer IN (SELECT value FROM json_each(:names))

-- name: tasks_gone
UPDATE catalogue SET gone = :gone WHERE name IN (SELECT value FROM json_each(:names))

-- Declarations of those who are gone, and whether somebody who is there declares the same.
-- name: stale
SELECT d.name, d.declarer, d.source, d.value, r.gone,
       EXISTS (SELECT 1 FROM declared o LEFT JOIN declarers p ON p.declarer = o.declarer
               WHERE o.name = d.name AND (p.gone IS NULL OR p.gone > :before)) AS live
FROM declared d JOIN declarers r ON r.declarer = d.declarer
WHERE r.gone <= :before ORDER BY d.name, d.declarer

-- name: undeclare
DELETE FROM declared WHERE name = :name AND declarer = :declarer

-- name: forget_declarers
DELETE FROM declarers WHERE gone <= :before
  AND NOT EXISTS (SELECT 1 FROM declared d WHERE d.declarer = declarers.declarer)

-- name: long_gone
SELECT name, spec FROM catalogue WHERE gone <= :before AND name = task

-- name: forget_task
DELETE FROM catalogue WHERE name = :name

-- name: holds
SELECT 1 FROM slots WHERE (grp = :name OR grp LIKE :keys ESCAPE '!') LIMIT 1

-- name: waiting
SELECT DISTINCT j.band, j.task FROM (
    SELECT job FROM scheduled ORDER BY run_at LIMIT 1000
) s JOIN jobs j ON j.n = s.job
UNION SELECT DISTINCT j.band, j.task FROM running r JOIN jobs j ON j.n = r.job
UNION SELECT DISTINCT '', task FROM unrouted
