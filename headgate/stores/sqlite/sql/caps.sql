-- What the holder of a place does; a place without one is free.
-- name: holders
SELECT p.place, p.job, p.until, j.n,
       CASE WHEN j.n IS NULL OR f.job IS NOT NULL THEN 'over'
            WHEN r.job IS NULL THEN 'waiting'
            WHEN r.reserved = 1 THEN 'reserved'
            ELSE 'running' END AS state,
       r.started_at, EXISTS (SELECT 1 FROM held h WHERE h.job = p.job) AS held
FROM cap_places p LEFT JOIN jobs j ON j.id = p.job
LEFT JOIN finished f ON f.job = j.n LEFT JOIN running r ON r.job = j.n
WHERE p.grp = :grp AND p.rule = :rule AND p.place > :above AND p.job IS NOT NULL
ORDER BY p.place

-- name: vacant
SELECT place FROM cap_places
WHERE grp = :grp AND rule = :rule AND job IS NULL AND place <= :cap ORDER BY place LIMIT 1

-- name: last
SELECT coalesce(max(place), 0) FROM cap_places WHERE grp = :grp AND rule = :rule

-- name: place
SELECT place, job, until FROM cap_places WHERE grp = :grp AND rule = :rule AND place = :place

-- name: put
INSERT INTO cap_places (grp, rule, place, job, until)
VALUES (:grp, :rule, :place, :job, :until)
ON CONFLICT (grp, rule, place) DO UPDATE SET job = excluded.job, until = excluded.until

-- name: own
SELECT grp, rule, place FROM cap_places WHERE job = :job

-- name: append
INSERT INTO cap_places (grp, rule, place, job)
SELECT :grp, :rule, coalesce(max(place), 0) + 1, :job FROM cap_places
WHERE grp = :grp AND rule = :rule

-- name: clear
UPDATE cap_places SET job = NULL
WHERE job IN (SELECT value FROM json_each(:jobs)) AND rule <> 'period'

-- A group of which no place is taken needs no rows.
-- name: forget
DELETE FROM cap_places WHERE (grp, rule) IN (
    SELECT v.grp, v.rule FROM (
        SELECT DISTINCT grp, rule FROM cap_places WHERE job IS NULL LIMIT 1000) v
    WHERE NOT EXISTS (SELECT 1 FROM cap_places p
                      WHERE p.grp = v.grp AND p.rule = v.rule AND p.job IS NOT NULL)
) OR (rule = 'period' AND until <= :now)

-- name: insert_held
INSERT INTO held (job, after, kind, grp) VALUES (:job, :after, :kind, :grp)
ON CONFLICT (job, after) DO NOTHING

-- name: some_held
SELECT 1 FROM held LIMIT 1

-- name: is_held
SELECT 1 FROM held WHERE job = :job LIMIT 1

-- Those of whom nobody runs any more that they wait for.
-- name: held
SELECT j.id AS job, h.after, h.kind, h.grp
FROM unrouted u JOIN jobs j ON j.n = u.job LEFT JOIN held h ON h.job = j.id
WHERE u.task = char(1) || 'held' AND (:job IS NULL OR j.id = :job)
  AND NOT EXISTS (SELECT 1 FROM held x JOIN jobs o ON o.id = x.after
                  JOIN running r ON r.job = o.n WHERE x.job = j.id)
ORDER BY u.job, h.after LIMIT :limit

-- name: inherit
INSERT INTO held (job, after, kind, grp)
SELECT :job, h.after, h.kind, h.grp FROM held h WHERE h.job = :after
ON CONFLICT (job, after) DO NOTHING

-- name: delete_held_for
DELETE FROM held WHERE job = :job AND after = :after

-- name: delete_held
DELETE FROM held WHERE job = :job

-- name: set_place
UPDATE jobs SET place = :place WHERE n = :job

-- name: unplaced
SELECT j.id, j.caps FROM jobs j
WHERE j.caps IS NOT NULL AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM running r WHERE r.job = j.n AND r.reserved = 0)
  AND EXISTS (SELECT 1 FROM json_each(j.caps) c
      WHERE json_extract(c.value, '$[1]') <> 'period'
        AND NOT EXISTS (SELECT 1 FROM cap_places p WHERE p.job = j.id
            AND p.grp = json_extract(c.value, '$[0]') AND p.rule = json_extract(c.value, '$[1]')))

-- name: unplaced_running
SELECT j.id, j.caps FROM jobs j JOIN running r ON r.job = j.n AND r.reserved = 0
WHERE j.caps IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(j.caps) c
      WHERE json_extract(c.value, '$[1]') = 'total'
        AND NOT EXISTS (SELECT 1 FROM cap_places p WHERE p.job = j.id
            AND p.grp = json_extract(c.value, '$[0]') AND p.rule = 'total'))

-- name: unmarked
SELECT j.n, j.id FROM jobs j WHERE j.id IN (SELECT job FROM held)
  AND NOT EXISTS (SELECT 1 FROM unrouted u WHERE u.task = :held AND u.job = j.n)

-- name: clear_pruned
UPDATE cap_places SET job = NULL WHERE rule <> 'period' AND job IN (
    SELECT j.id FROM json_each(:jobs) JOIN jobs j ON j.n = value WHERE j.caps IS NOT NULL)

-- name: counted
SELECT seq, data FROM events
WHERE at >= :since AND kind = :kind AND subject = :subject ORDER BY at LIMIT 1

-- name: count
UPDATE events SET data = :data WHERE seq = :seq
