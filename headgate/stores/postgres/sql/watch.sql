-- What those who watch are shown. Each of these reads no more rows than its bound, and is written
-- so that no plan can: ordered by a key, joined row by row, and with no equality of which a planner
-- without statistics would think that few rows have it, so that it would rather sort them all.

-- name: band_waiting
SELECT count(*) AS n, min(since) AS since FROM (
    SELECT since FROM headgate.ready
    WHERE queue = :queue AND priority = :priority AND band = :band
    ORDER BY turn, lane, place, job LIMIT :bound
) AS found

-- Hop from lane to lane, whatever stands in them; a lane is found by the row of its first job.
-- name: lanes
WITH RECURSIVE l AS (
    (SELECT r.turn, r.lane, r.job, r.since, 1 AS k FROM headgate.ready r
     WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band AND r.turn <= :last
       AND (r.turn, r.lane) >= (:turn, :lane)
       AND (:fresh::integer = 1 OR (r.turn, r.lane) > (:turn, :lane))
     ORDER BY r.turn, r.lane, r.place, r.job LIMIT 1)
    UNION ALL
    SELECT x.turn, x.lane, x.job, x.since, l.k + 1 FROM l CROSS JOIN LATERAL (
        SELECT r.turn, r.lane, r.job, r.since FROM headgate.ready r
        WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band
          AND (r.turn, r.lane) > (l.turn, l.lane) AND r.turn <= :last
        ORDER BY r.turn, r.lane, r.place, r.job LIMIT 1
    ) x WHERE l.k < :limit::integer
)
SELECT l.turn, l.lane, l.since, (SELECT j.id::text FROM headgate.jobs j WHERE j.n = l.job) AS id,
       h.n
FROM l CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM (
        SELECT 1 FROM headgate.ready q
        WHERE q.queue = :queue AND q.priority = :priority AND q.band = :band
          AND q.turn = l.turn AND q.lane = l.lane
        ORDER BY q.place, q.job LIMIT :counted) x
) h ORDER BY l.k

-- name: held_by_keys
SELECT coalesce(sum(units), 0)::integer AS held, count(*) AS holders, count(DISTINCT grp) AS keys
FROM (
    SELECT grp, units FROM headgate.slots
    WHERE epoch = headgate.epoch() AND grp >= :low AND grp < :high AND token IS NOT NULL
      AND (worker IS NOT NULL OR ends > headgate.clock())
    ORDER BY grp, slot LIMIT :rows
) AS found

-- name: held_groups
SELECT grp, sum(units)::integer AS held, count(*) AS holders, min(since) AS since FROM (
    SELECT grp, units, since FROM headgate.slots
    WHERE epoch = headgate.epoch() AND grp > :after AND grp >= :low AND grp < :high
      AND token IS NOT NULL
      AND (worker IS NOT NULL OR (ends > headgate.clock() AND (job IS NOT NULL OR holder <> '')))
    ORDER BY grp, slot LIMIT :rows
) AS found GROUP BY grp ORDER BY grp

-- name: ended
SELECT (b.span - 1)::integer AS span, s.state, h.n
FROM json_array_elements(:spans::json) WITH ORDINALITY AS b (cells, span)
CROSS JOIN (VALUES ('succeeded'), ('failed'), ('cancelled')) AS s (state)
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM (
        SELECT 1 FROM headgate.finished f
        WHERE f.state = s.state AND f.at >= (b.cells ->> 0)::float8
          AND f.at < (b.cells ->> 1)::float8
        ORDER BY f.at LIMIT :bound) x
) h

-- name: ends
SELECT j.id, j.task, j.queue, j.turn, f.state, j.created_at, j.run_at, f.started_at, f.at, f.slots
FROM (
    SELECT job, state, started_at, at, slots FROM headgate.finished
    WHERE state <= :state ORDER BY state DESC, at DESC LIMIT :limit
) f CROSS JOIN LATERAL (
    SELECT x.id::text AS id, x.task, x.queue, x.turn, x.created_at, x.run_at
    FROM headgate.jobs x WHERE x.n = f.job LIMIT 1
) j WHERE f.state = :state AND f.at >= :since

-- The ways through which a search goes, each of at most :look jobs.
-- name: by_number
SELECT n AS at, n AS job FROM headgate.jobs WHERE n < :at::bigint ORDER BY n DESC LIMIT :look

-- name: by_end
SELECT at, job FROM (
    SELECT state, at, job FROM headgate.finished
    WHERE (state, at) <= (:state, :at::float8) AND (at, job) < (:at::float8, :job::bigint)
    ORDER BY state DESC, at DESC, job DESC LIMIT :look
) AS found WHERE state = :state ORDER BY at DESC, job DESC

-- name: by_running
SELECT token AS at, job FROM headgate.running WHERE token < :at::bigint AND NOT reserved
ORDER BY token DESC LIMIT :look

-- name: by_scheduled
SELECT run_at AS at, job FROM headgate.scheduled
WHERE (run_at, job) > (:at::float8, :job::bigint) ORDER BY run_at, job LIMIT :look

-- name: by_given
SELECT x::bigint AS job FROM json_array_elements_text(:given::json) AS x

-- Where jobs stand that are ready, from a place on.
-- name: in_line
SELECT turn, lane, place, job FROM headgate.ready
WHERE (queue, priority, band, turn, lane, place, job)
      > (:queue, :priority, :band, :turn, :lane, :place::bigint, :job::bigint)
  AND (queue, priority, band, turn) <= (:queue, :priority, :band, :last)
ORDER BY queue, priority, band, turn, lane, place, job LIMIT :look

-- name: unrouted
SELECT task, job FROM headgate.unrouted
WHERE (task, job) > (:task, :job::bigint) AND task <= :last
ORDER BY task, job LIMIT :look

-- name: reserved
SELECT token, job FROM headgate.running WHERE token > :token::bigint AND reserved
ORDER BY token LIMIT :look

-- name: newest
SELECT n FROM headgate.jobs ORDER BY n DESC LIMIT 1

-- name: next_number
SELECT n, created_at FROM headgate.jobs WHERE n >= :n::bigint ORDER BY n LIMIT 1

-- name: created
SELECT created_at FROM headgate.jobs WHERE n = :n

-- name: of_jobs
FROM headgate.jobs j

-- name: searched
CROSS JOIN LATERAL (SELECT x.* FROM headgate.jobs x WHERE x.n = d.job LIMIT 1) j
LEFT JOIN LATERAL (SELECT x.* FROM headgate.finished x WHERE x.job = d.job LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT x.* FROM headgate.running x WHERE x.job = d.job LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT x.* FROM headgate.scheduled x WHERE x.job = d.job LIMIT 1) s ON true

-- name: is_numbered
j.n = ANY (ARRAY(SELECT x::bigint FROM json_array_elements_text(:found::json) AS x))

-- Among the latest :look only: a kind that is rare must not make a search of all.
-- name: events
SELECT seq, at, kind, subject, who, data FROM (
    SELECT * FROM headgate.events WHERE seq < :before::bigint ORDER BY seq DESC LIMIT :look
) AS found
WHERE (:kind = '' OR kind = :kind) AND (:subject = '' OR subject = :subject)
ORDER BY seq DESC LIMIT :limit

-- name: hold_scheduled
UPDATE headgate.scheduled SET reason = reason WHERE job = :job

-- name: relocate
UPDATE headgate.jobs SET queue = :queue, priority = :priority WHERE n = :job
