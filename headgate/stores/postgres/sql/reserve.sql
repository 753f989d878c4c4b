-- name: reserved_by_others
SELECT grp, lane, job FROM headgate.reservations
WHERE grp = :grp AND lane <> :lane AND ends > :boot

-- name: reserve
INSERT INTO headgate.reservations (grp, lane, job, units, ends)
VALUES (:grp, :lane, :job, :units, :ends)
ON CONFLICT (grp) DO UPDATE SET lane = excluded.lane, job = excluded.job,
    units = excluded.units, ends = excluded.ends

-- name: renew_reservation
UPDATE headgate.reservations SET ends = :ends WHERE lane = :lane AND ends < :worth

-- name: unreserve
DELETE FROM headgate.reservations WHERE lane = :lane
