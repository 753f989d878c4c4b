-- What a claim looks up beside its view.

-- The bands there are, in order: hop from one to the next, whatever stands in them.
-- name: bands
WITH RECURSIVE b AS (
    (SELECT r.queue, r.priority, r.band FROM headgate.ready r
     ORDER BY r.queue, r.priority, r.band LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority, n.band FROM b CROSS JOIN LATERAL (
        SELECT r.queue, r.priority, r.band FROM headgate.ready r
        WHERE (r.queue, r.priority, r.band) > (b.queue, b.priority, b.band)
        ORDER BY r.queue, r.priority, r.band LIMIT 1
    ) n
)
SELECT queue, priority, band FROM b

-- name: has_turn
SELECT 1 FROM headgate.ready
WHERE queue = :queue AND priority = :priority AND band = :band AND turn = :turn LIMIT 1

-- name: lanes
WITH RECURSIVE l AS (
    (SELECT r.lane, r.place, 1 AS n FROM headgate.ready r
     WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band AND r.turn = :turn
       AND r.lane > :after
     ORDER BY r.lane, r.place LIMIT 1)
    UNION ALL
    SELECT x.lane, x.place, l.n + 1 FROM l CROSS JOIN LATERAL (
        SELECT r.lane, r.place FROM headgate.ready r
        WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band AND r.turn = :turn
          AND r.lane > l.lane
        ORDER BY r.lane, r.place LIMIT 1
    ) x WHERE l.n < :limit
)
SELECT l.lane, least(h.n, 8) AS jobs, h.n > 8 AS more, h.place, h.job, h.since
FROM l CROSS JOIN LATERAL (
    SELECT count(*) AS n, min(x.place) AS place, min(x.job) AS job, min(x.since) AS since
    FROM (SELECT r.place, r.job, r.since FROM headgate.ready r
          WHERE r.queue = :queue AND r.priority = :priority AND r.band = :band AND r.turn = :turn
            AND r.lane = l.lane AND r.place >= l.place
          ORDER BY r.place, r.job LIMIT 9) x
) h WHERE h.n > 0 ORDER BY l.n

-- name: held
SELECT s.grp, sum(s.units)::integer AS held,
       json_agg(json_build_array(s.ends, s.units))
           FILTER (WHERE s.worker IS NULL AND s.job IS NULL AND s.holder = '') AS starts
FROM headgate.slots s
WHERE s.grp = ANY (:groups) AND s.token IS NOT NULL
  AND s.epoch = headgate.epoch()
  AND (s.worker IS NOT NULL OR s.ends > headgate.clock())
GROUP BY s.grp

-- name: count
SELECT * FROM headgate.count_lane(:queue, :priority, :band, :turn, :lane, :since, :most)

-- name: first_of_band
SELECT turn, lane, place, job FROM headgate.ready
WHERE queue = :queue AND priority = :priority AND band = :band
ORDER BY turn, lane, place, job LIMIT 1

-- name: carried_by
SELECT carried FROM headgate.jobs WHERE n = :job

-- name: others_granted
SELECT 1 FROM headgate.slots s LEFT JOIN headgate.jobs j ON j.n = s.job
WHERE s.epoch = headgate.epoch() AND s.grp = :grp AND s.token IS NOT NULL
  AND s.since > :since
  AND (j.band, j.turn, j.lane) IS DISTINCT FROM (:band, :turn, :lane) LIMIT 1

-- name: note_refused
INSERT INTO headgate.refused AS r (grp, worker, at) VALUES (:grp, :worker, headgate.clock())
ON CONFLICT (grp) DO UPDATE SET worker = excluded.worker, at = excluded.at
WHERE r.at < excluded.at - 0.5

-- Who renews several of them at this moment waits for none of these, nor we for it.
-- name: forget_refused
DELETE FROM headgate.refused WHERE grp = ANY (ARRAY(
    SELECT r.grp FROM headgate.refused r WHERE r.at <= :before FOR UPDATE SKIP LOCKED))
