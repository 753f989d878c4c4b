-- name: version
SELECT value FROM counters WHERE name = 'limits'

-- name: bump
UPDATE counters SET value = value + 1 WHERE name = 'limits'

-- name: declared
SELECT name, source, declarer, value, release, at FROM declared ORDER BY name

-- name: declare
INSERT INTO declared (name, source, declarer, value, release, at)
VALUES (:name, :source, :declarer, :value, :release, :at)
ON CONFLICT (name, source, declarer) DO UPDATE
SET value = excluded.value, release = excluded.release, at = excluded.at

-- name: undeclare
DELETE FROM declared WHERE declarer = :declarer

-- name: carry
INSERT INTO carried (grp, value, at) VALUES (:grp, :value, :at) ON CONFLICT (grp) DO NOTHING

-- name: override
SELECT value, has_value, paused, who, reason, at FROM overrides WHERE grp = :grp

-- name: overrides
SELECT grp, value, has_value, paused, who, reason, at FROM overrides ORDER BY grp

-- name: set_override
INSERT INTO overrides (grp, value, has_value, paused, who, reason, at)
VALUES (:grp, :value, :has_value, :paused, :who, :reason, :at)
ON CONFLICT (grp) DO UPDATE
SET value = excluded.value, has_value = excluded.has_value, paused = excluded.paused,
    who = excluded.who, reason = excluded.reason, at = excluded.at

-- name: drop_override
DELETE FROM overrides WHERE grp = :grp

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
SELECT slot, units, worker, ends, boot FROM slots WHERE grp = :grp

-- name: held_by_any
SELECT grp, slot, units, worker, ends, boot FROM slots
WHERE grp IN (SELECT value FROM json_each(:groups))

-- name: reservations
SELECT grp, lane, job, units, ends, boot FROM reservations
