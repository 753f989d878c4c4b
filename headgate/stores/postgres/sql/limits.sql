-- The version of all that is said about limits; -1 once a word has ended and nobody has said so yet.
-- name: version
SELECT CASE WHEN ends <= :now THEN -1 ELSE value END FROM headgate.counters WHERE name = 'limits'

-- name: bump
UPDATE headgate.counters SET value = value + 1, ends = (SELECT min(o.ends) FROM headgate.overrides o)
WHERE name = 'limits'

-- name: some_ended
SELECT 1 FROM headgate.counters WHERE name = 'limits' AND ends <= :now

-- name: declared
SELECT name, source, declarer, value, per, burst, release, at FROM headgate.declared ORDER BY name

-- name: declare
INSERT INTO headgate.declared (name, source, declarer, value, per, burst, release, at)
VALUES (:name, :source, :declarer, :value, :per, :burst, :release, :at)
ON CONFLICT (name, source, declarer) DO UPDATE
SET value = excluded.value, per = excluded.per, burst = excluded.burst, release = excluded.release, at = excluded.at

-- name: undeclare
DELETE FROM headgate.declared WHERE declarer = :declarer

-- name: carry
INSERT INTO headgate.carried (grp, value, at) VALUES (:grp, :value, :at) ON CONFLICT (grp) DO NOTHING

-- name: override
SELECT grp, what, value, who, reason, at, ends FROM headgate.overrides
WHERE grp = :grp AND what = :what

-- name: overrides
SELECT grp, what, value, who, reason, at, ends FROM headgate.overrides ORDER BY grp, what

-- name: ended
SELECT grp, what, value, who, reason, at, ends FROM headgate.overrides WHERE ends <= :now
ORDER BY ends, grp, what

-- name: set_override
INSERT INTO headgate.overrides (grp, what, value, who, reason, at, ends)
VALUES (:grp, :what, :value, :who, :reason, :at, :ends)
ON CONFLICT (grp, what) DO UPDATE
SET value = excluded.value, who = excluded.who, reason = excluded.reason, at = excluded.at,
    ends = excluded.ends

-- name: drop_override
DELETE FROM headgate.overrides WHERE grp = :grp AND what = :what

-- name: drop_ended
UPDATE headgate.slots SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = :now
WHERE epoch = headgate.epoch() AND grp = :grp AND token IS NOT NULL AND worker IS NULL
  AND ends <= :boot

-- name: slots_of_group
SELECT s.grp, s.slot, s.token, coalesce(j.id::text, s.holder) AS holder, s.job, s.worker,
       s.worker_name, s.units, s.since, s.ends, '' AS boot, coalesce(r.overdue, '') AS overdue
FROM headgate.slots s
LEFT JOIN LATERAL (SELECT x.overdue FROM headgate.running x WHERE x.token = s.token LIMIT 1) r
    ON true
LEFT JOIN LATERAL (SELECT x.id FROM headgate.jobs x WHERE x.n = s.job LIMIT 1) j ON true
WHERE s.epoch = headgate.epoch() AND s.grp = :grp AND s.token IS NOT NULL ORDER BY s.slot

-- name: carried
SELECT value FROM headgate.carried WHERE grp = :grp

-- name: held
SELECT slot, token, units, worker, since, ends, '' AS boot FROM headgate.slots
WHERE epoch = headgate.epoch() AND grp = :grp AND token IS NOT NULL

-- name: held_by_any
SELECT grp, slot, token, units, worker, since, ends, '' AS boot FROM headgate.slots
WHERE epoch = headgate.epoch() AND token IS NOT NULL
  AND grp = ANY (ARRAY(SELECT json_array_elements_text(:groups::json)))

-- name: reservations
SELECT grp, lane, job, units, ends, '' AS boot FROM headgate.reservations

-- name: forget_carried
DELETE FROM headgate.carried WHERE grp = ANY (ARRAY(
    SELECT c.grp FROM headgate.carried c WHERE c.at <= :before AND NOT EXISTS (
        SELECT 1 FROM headgate.slots s WHERE s.epoch = headgate.epoch() AND s.grp = c.grp AND s.token IS NOT NULL)
    ORDER BY c.at LIMIT :limit
))
