-- Rows that another transaction takes over just now are passed over: they are not ours any more,
-- should it commit. The others are written to, though nothing changes: who cannot see that the job
-- waits again, because its snapshot is older, must not take its place.
-- name: own
UPDATE headgate.cap_places p SET job = p.job
FROM (
    SELECT grp, rule, place FROM headgate.cap_places WHERE job = :job::uuid
    FOR UPDATE SKIP LOCKED
) x
WHERE p.grp = x.grp AND p.rule = x.rule AND p.place = x.place
RETURNING p.grp, p.rule, p.place

-- name: append
SELECT headgate.append_place(:grp, :rule, :job::uuid)

-- Nobody waits here: what is being taken over needs no clearing.
-- name: clear
UPDATE headgate.cap_places p SET job = NULL
FROM (
    SELECT grp, rule, place FROM headgate.cap_places
    WHERE job = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::uuid))
      AND rule <> 'period'
    FOR UPDATE SKIP LOCKED
) x
WHERE p.grp = x.grp AND p.rule = x.rule AND p.place = x.place

-- name: clear_pruned
UPDATE headgate.cap_places p SET job = NULL
FROM (
    SELECT grp, rule, place FROM headgate.cap_places
    WHERE rule <> 'period' AND job = ANY (ARRAY(
        SELECT j.id FROM headgate.jobs j WHERE j.caps IS NOT NULL
          AND j.n = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json)::bigint))))
    FOR UPDATE SKIP LOCKED
) x
WHERE p.grp = x.grp AND p.rule = x.rule AND p.place = x.place

-- A group of which no place is taken needs no rows. Only where nobody is at work in it: who is
-- shares the lock that is tried for here.
-- name: forget
DELETE FROM headgate.cap_places p USING (
    SELECT v.grp FROM (
        SELECT DISTINCT grp FROM (
            SELECT grp FROM headgate.cap_places
            WHERE job IS NULL OR (rule = 'period' AND until <= :now) LIMIT 1000) w
    ) v
    WHERE NOT EXISTS (SELECT 1 FROM headgate.cap_places q WHERE q.grp = v.grp
                      AND q.job IS NOT NULL AND (q.rule <> 'period' OR q.until > :now))
      AND pg_try_advisory_xact_lock(headgate.salt(), headgate.lock_key(E'\x01cap ' || v.grp))
) g
WHERE p.grp = g.grp AND (p.job IS NULL OR (p.rule = 'period' AND p.until <= :now))

-- name: some_held
SELECT 1 FROM headgate.held LIMIT 1

-- name: is_held
SELECT 1 FROM headgate.held WHERE job = :job::uuid LIMIT 1

-- Those of whom nobody runs any more that they wait for. By their marks, which are locked: a job
-- is settled by one at a time, and what somebody else settles just now is passed over.
-- name: held
SELECT j.id::text AS job, h.after::text AS after, h.kind, h.grp
FROM headgate.unrouted u JOIN headgate.jobs j ON j.n = u.job
LEFT JOIN headgate.held h ON h.job = j.id
WHERE u.task = E'\x01held' AND (:job::text IS NULL OR j.id = :job::text::uuid)
  AND NOT EXISTS (SELECT 1 FROM headgate.held x JOIN headgate.jobs o ON o.id = x.after
                  JOIN headgate.running r ON r.job = o.n WHERE x.job = j.id)
ORDER BY u.job, h.after LIMIT :limit FOR UPDATE OF u SKIP LOCKED

-- Is anybody to be taken out of line by what was committed since?
-- name: some_replaced
SELECT 1 FROM headgate.held h JOIN headgate.jobs j ON j.id = h.after
WHERE h.kind = 'replace'
  AND NOT EXISTS (SELECT 1 FROM headgate.held x JOIN headgate.jobs o ON o.id = x.after
                  JOIN headgate.running r ON r.job = o.n WHERE x.job = h.job)
LIMIT 1

-- name: inherit
INSERT INTO headgate.held (job, after, kind, grp)
SELECT :job::uuid, h.after, h.kind, h.grp FROM headgate.held h WHERE h.job = :after::uuid
ON CONFLICT (job, after) DO NOTHING

-- name: delete_held_for
DELETE FROM headgate.held WHERE job = :job::uuid AND after = :after::uuid

-- name: delete_held
DELETE FROM headgate.held WHERE job = :job::uuid

-- name: set_place
UPDATE headgate.jobs SET place = :place WHERE n = :job

-- name: unplaced
SELECT j.id::text AS id, j.caps FROM headgate.jobs j
WHERE j.caps IS NOT NULL AND NOT EXISTS (SELECT 1 FROM headgate.finished f WHERE f.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM headgate.running r WHERE r.job = j.n AND NOT r.reserved)
  AND EXISTS (SELECT 1 FROM json_array_elements(j.caps::json) c
      WHERE c ->> 1 <> 'period' AND NOT EXISTS (
          SELECT 1 FROM headgate.cap_places p
          WHERE p.job = j.id AND p.grp = c ->> 0 AND p.rule = c ->> 1))

-- name: unplaced_running
SELECT j.id::text AS id, j.caps FROM headgate.jobs j
JOIN headgate.running r ON r.job = j.n AND NOT r.reserved
WHERE j.caps IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_array_elements(j.caps::json) c
    WHERE c ->> 1 = 'total' AND NOT EXISTS (
        SELECT 1 FROM headgate.cap_places p
        WHERE p.job = j.id AND p.grp = c ->> 0 AND p.rule = 'total'))

-- name: unmarked
SELECT j.n, j.id::text AS id FROM headgate.jobs j
WHERE j.id IN (SELECT job FROM headgate.held)
  AND NOT EXISTS (SELECT 1 FROM headgate.unrouted u WHERE u.task = :held AND u.job = j.n)

-- A row that somebody else counts in just now is left to it: there is one more, and both count.
-- name: counted
SELECT seq, data FROM headgate.events
WHERE at >= :since AND kind = :kind AND subject = :subject
ORDER BY at LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: count
UPDATE headgate.events SET data = :data WHERE seq = :seq
