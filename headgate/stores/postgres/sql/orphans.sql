-- What no worker that is there declares any more.

-- name: declared_by
INSERT INTO headgate.declarers (declarer, at) VALUES (:declarer, :at)
ON CONFLICT (declarer) DO UPDATE SET at = excluded.at, gone = NULL

-- name: declarers
SELECT declarer, gone FROM headgate.declarers

-- name: tasks
SELECT name, task, gone FROM headgate.catalogue

-- name: declarers_gone
UPDATE headgate.declarers SET gone = :gone WHERE declarer = ANY (ARRAY(SELECT json_array_elements_text(:names::json)))

-- name: tasks_gone
UPDATE headgate.catalogue SET gone = :gone WHERE name = ANY (ARRAY(SELECT json_array_elements_text(:names::json)))

-- Declarations of those who are gone, and whether somebody who is there declares the same.
-- name: stale
SELECT d.name, d.declarer, d.source, d.value, r.gone,
       EXISTS (SELECT 1 FROM headgate.declared o LEFT JOIN headgate.declarers p ON p.declarer = o.declarer
               WHERE o.name = d.name AND (p.gone IS NULL OR p.gone > :before)) AS live
FROM headgate.declared d JOIN headgate.declarers r ON r.declarer = d.declarer
WHERE r.gone <= :before ORDER BY d.name, d.declarer

-- name: undeclare
DELETE FROM headgate.declared WHERE name = :name AND declarer = :declarer

-- name: forget_declarers
DELETE FROM headgate.declarers WHERE gone <= :before
  AND NOT EXISTS (SELECT 1 FROM headgate.declared d WHERE d.declarer = declarers.declarer)

-- name: long_gone
SELECT name, spec FROM headgate.catalogue WHERE gone <= :before AND name = task

-- name: forget_task
DELETE FROM headgate.catalogue WHERE name = :name

-- name: holds
SELECT 1 FROM headgate.slots WHERE epoch = headgate.epoch() AND token IS NOT NULL AND (grp = :name OR grp LIKE :keys ESCAPE '!') LIMIT 1

-- name: waiting
SELECT DISTINCT j.band, j.task FROM (
    SELECT job FROM headgate.scheduled ORDER BY run_at LIMIT 1000
) s JOIN headgate.jobs j ON j.n = s.job
UNION SELECT DISTINCT j.band, j.task FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
UNION SELECT DISTINCT '', task FROM headgate.unrouted
