-- What those who watch are shown. Each of these reads no more rows than its bound.

-- name: band_waiting
SELECT count(*) AS n, min(since) AS since FROM (
    SELECT since FROM ready
    WHERE queue = :queue AND priority = :priority AND band = :band LIMIT :bound
) AS found

-- Hop from lane to lane, whatever stands in them; a lane is found by the row of its first job. The
-- next is looked for in the same turn and then in the turns after it: by both at once, all jobs of
-- the lane would be passed on the way.
-- name: lanes
WITH RECURSIVE l (turn, lane, place, job, since) AS (
    SELECT * FROM (
        SELECT * FROM (
            SELECT turn, lane, place, job, since FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn
              AND lane >= :lane || CASE WHEN :fresh THEN '' ELSE char(1) END
            ORDER BY lane, place LIMIT 1)
        UNION ALL
        SELECT * FROM (
            SELECT turn, lane, place, job, since FROM ready
            WHERE queue = :queue AND priority = :priority AND band = :band AND turn > :turn
              AND turn <= :last
            ORDER BY turn, lane, place LIMIT 1)
        ORDER BY turn, lane LIMIT 1)
    UNION ALL
    SELECT r.turn, r.lane, r.place, r.job, r.since FROM l CROSS JOIN ready r
    WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
      AND (r.turn, r.lane, r.place) = (
        SELECT y.turn, y.lane, y.place FROM (
            SELECT * FROM (
                SELECT x.turn, x.lane, x.place FROM ready x
                WHERE x.queue = :queue AND x.priority = :priority AND x.band = :band
                  AND x.turn = l.turn AND x.lane > l.lane
                ORDER BY x.lane, x.place LIMIT 1)
            UNION ALL
            SELECT * FROM (
                SELECT x.turn, x.lane, x.place FROM ready x
                WHERE x.queue = :queue AND x.priority = :priority AND x.band = :band
                  AND x.turn > l.turn AND x.turn <= :last
                ORDER BY x.turn, x.lane, x.place LIMIT 1)
        ) AS y ORDER BY y.turn, y.lane LIMIT 1)
    LIMIT :limit
)
SELECT l.turn, l.lane, l.since, (SELECT j.id FROM jobs j WHERE j.n = l.job) AS id,
       (SELECT count(*) FROM (
            SELECT 1 FROM ready q
            WHERE q.queue = :queue AND q.priority = :priority AND q.band = :band
              AND q.turn = l.turn AND q.lane = l.lane LIMIT :counted)) AS n
FROM l

-- name: held_by_keys
SELECT coalesce(sum(units), 0) AS held, count(*) AS holders, count(DISTINCT grp) AS keys FROM (
    SELECT grp, units FROM slots
    WHERE grp >= :low AND grp < :high
      AND (worker IS NOT NULL OR (boot = :boot_id AND ends > :boot))
    LIMIT :rows
) AS found

-- name: held_groups
SELECT grp, sum(units) AS held, count(*) AS holders, min(since) AS since FROM (
    SELECT grp, units, since FROM slots
    WHERE grp > :after AND grp >= :low AND grp < :high
      AND (worker IS NOT NULL OR (boot = :boot_id AND ends > :boot AND holder <> ''))
    ORDER BY grp, slot LIMIT :rows
) AS found GROUP BY grp ORDER BY grp

-- name: ended
SELECT b.key AS span, s.value AS state,
       (SELECT count(*) FROM (
            SELECT 1 FROM finished f
            WHERE f.state = s.value AND f.at >= json_extract(b.value, '$[0]')
              AND f.at < json_extract(b.value, '$[1]') LIMIT :bound)) AS n
FROM json_each(:spans) b CROSS JOIN json_each('["succeeded","failed","cancelled"]') s

-- name: ends
SELECT j.id, j.task, j.queue, j.turn, f.state, j.created_at, j.run_at, f.started_at, f.at, f.slots
FROM (
    SELECT job, state, started_at, at, slots FROM finished
    WHERE state = :state AND at >= :since ORDER BY at DESC LIMIT :limit
) f CROSS JOIN jobs j ON j.n = f.job

-- The ways through which a search goes, each of at most :look jobs.
-- name: by_number
SELECT n AS at, n AS job FROM jobs WHERE n < :at ORDER BY n DESC LIMIT :look

-- name: by_end
SELECT at, job FROM finished WHERE state = :state AND (at, job) < (:at, :job)
ORDER BY at DESC, job DESC LIMIT :look

-- name: by_running
SELECT token AS at, job FROM running
WHERE token < :at AND reserved = 0
ORDER BY token DESC LIMIT :look

-- name: by_scheduled
SELECT run_at AS at, job FROM scheduled WHERE (run_at, job) > (:at, :job)
ORDER BY run_at, job LIMIT :look

-- name: by_given
SELECT value AS job FROM json_each(:given)

-- Where jobs stand that are ready, from a place on.
-- name: in_line
SELECT turn, lane, place, job FROM ready
WHERE queue = :queue AND priority = :priority AND band = :band AND turn <= :last
  AND (turn, lane, place) > (:turn, :lane, :place)
ORDER BY turn, lane, place LIMIT :look

-- name: unrouted
SELECT task, job FROM unrouted
WHERE (task, job) > (:task, :job) AND task <= :last
ORDER BY task, job LIMIT :look

-- name: reserved
SELECT token, job FROM running WHERE token > :token AND reserved = 1 ORDER BY token LIMIT :look

-- name: newest
SELECT n FROM jobs ORDER BY n DESC LIMIT 1

-- name: next_number
SELECT n, created_at FROM jobs WHERE n >= :n ORDER BY n LIMIT 1

-- name: created
SELECT created_at FROM jobs WHERE n = :n

-- name: of_jobs
FROM jobs j

-- name: searched
CROSS JOIN jobs j ON j.n = d.job
LEFT JOIN finished f ON f.job = j.n
LEFT JOIN running r ON r.job = j.n
LEFT JOIN scheduled s ON s.job = j.n

-- name: is_numbered
j.n IN (SELECT value FROM json_each(:found))

-- Among the latest :look only: a kind that is rare must not make a search of all.
-- name: events
SELECT seq, at, kind, subject, who, data FROM (
    SELECT * FROM events WHERE seq < :before ORDER BY seq DESC LIMIT :look
) AS found
WHERE (:kind = '' OR kind = :kind) AND (:subject = '' OR subject = :subject)
ORDER BY seq DESC LIMIT :limit

-- name: hold_scheduled
UPDATE scheduled SET reason = reason WHERE job = :job

-- name: relocate
UPDATE jobs SET queue = :queue, priority = :priority WHERE n = :job
