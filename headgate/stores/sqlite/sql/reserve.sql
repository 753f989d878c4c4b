-- name: reserved_by_others
SELECT grp, lane, job FROM reservations
WHERE grp = :grp AND lane <> :lane AND boot = :boot_id AND ends > :boot

-- name: reserve
INSERT INTO reservations (grp, lane, job, units, ends, boot)
VALUES (:grp, :lane, :job, :units, :ends, :boot_id)
ON CONFLICT (grp) DO UPDATE SET lane = excluded.lane, job = excluded.job,
    units = excluded.units, ends = excluded.ends, boot = excluded.boot

-- name: renew_reservation
UPDATE reservations SET ends = :ends, boot = :boot_id
WHERE lane = :lane AND ends < :worth

-- name: unreserve
DELETE FROM reservations WHERE lane = :lane
