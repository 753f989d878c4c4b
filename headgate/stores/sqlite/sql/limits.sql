-- The version of all that is said about limits; -1 once a word has ended and nobody has said so yet.
-- name: version
SELECT CASE WHEN ends <= :now THEN -1 ELSE value END FROM counters WHERE name = 'limits'

-- name: bump
UPDATE counters SET value = value + 1, ends = (SELECT min(o.ends) FROM overrides o)
WHERE name = 'limits'

-- name: some_ended
SELECT 1 FROM counters WHERE name = 'limits' AND ends <= :now

-- name: declared
SELECT name, source, declarer, value, per, burst, release, at FROM declared ORDER BY name

-- name: declare
INSERT INTO declared (name, source, declarer, value, per, burst, release, at)
VALUES (:name, :source, :declarer, :value, :per, :burst, :release, :at)
ON CONFLICT (name, source, declarer) DO UPDATE
SET value = excluded.value, per = excluded.per, burst = excluded.burst, release = excluded.release, at = excluded.at

-- name: undeclare
DELETE FROM declared WHERE declarer = :declarer

-- name: carry
INSERT INTO carried (grp, value, at) VALUES (:grp, :value, :at) ON CONFLICT (grp) DO NOTHING

-- name: override
SELECT grp, what, value, who, reason, at, ends FROM overrides
WHERE grp = :grp AND what = :what

-- name: overrides
SELECT grp, what, value, who, reason, at, ends FROM overrides ORDER BY grp, what

-- name: ended
SELECT grp, what, value, who, reason, at, ends FROM overrides WHERE ends <= :now
ORDER BY ends, grp, what

-- name: set_override
INSERT INTO overrides (grp, what, value, who, reason, at, ends)
VALUES (:grp, :what, :value, :who, :reason, :at, :ends)
ON CONFLICT (grp, what) DO UPDATE
SET value = excluded.value, who = excluded.who, reason = excluded.reason, at = excluded.at,
    ends = excluded.ends

-- name: drop_override
DELETE FROM overrides WHERE grp = :grp AND what = :what

-- name: drop_ended
DELETE FROM slots WHERE grp = :grp AND worker IS NULL AND (boot <> :boot_id OR ends <= :boot)

-- name: slots_of_group
SELECT s.grp, s.slot, s.token, s.holder, s.job, s.worker, s.worker_name, s.units, s.since,
       s.ends, s.boot, coalesce(r.overdue, '') AS overdue
FROM slots s LEFT JOIN running r ON r.token = s.token
WHERE s.grp = :grp ORDER BY s.slot

-- name: carried
SELECT value FROM carried WHERE grp = :grp

-- name: held
SELECT slot, token, units, worker, since, ends, boot FROM slots WHERE grp = :grp

-- name: held_by_any
SELECT grp, slot, token, units, worker, since, ends, boot FROM slots
WHERE grp IN (SELECT value FROM json_each(:groups))

-- name: reservations
SELECT grp, lane, job, units, ends, boot FROM reservations

-- name: forget_carried
DELETE FROM carried WHERE grp IN (
    SELECT c.grp FROM carried c WHERE c.at <= :before AND NOT EXISTS (
        SELECT 1 FROM slots s WHERE s.grp = c.grp AND s.token IS NOT NULL)
    ORDER BY c.at LIMIT :limit
)
