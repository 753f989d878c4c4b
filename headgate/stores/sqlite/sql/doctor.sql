-- name: workerless
SELECT token FROM running r WHERE NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = r.worker)

-- name: holderless
SELECT grp, slot, token FROM slots s
WHERE s.job IS NOT NULL AND s.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM running r WHERE r.token = s.token)

-- Slots that were passed on belong to another attempt of the same worker: they are held. A start
-- under a rate (-2) is not held at all.
-- name: slotless
SELECT DISTINCT r.token, r.slots FROM running r, json_each(r.slots) cells
WHERE r.released = 0 AND r.reserved = 0 AND json_extract(cells.value, '$[1]') <> -2
  AND NOT EXISTS (SELECT 1 FROM slots s WHERE s.grp = json_extract(cells.value, '$[0]')
      AND s.slot = json_extract(cells.value, '$[1]') AND s.worker = r.worker)

-- name: nowhere
SELECT j.n, j.band, j.task, j.run_at,
       coalesce((SELECT max(attempt) FROM attempts a WHERE a.job = j.n), 0) AS attempt
FROM jobs j
WHERE NOT EXISTS (SELECT 1 FROM finished f WHERE f.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM running r WHERE r.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM scheduled s WHERE s.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM unrouted u WHERE u.task = j.task AND u.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM held h WHERE h.job = j.id)
  AND NOT EXISTS (SELECT 1 FROM ready q WHERE q.queue = j.queue AND q.priority = j.priority
      AND q.band = j.band AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place)

-- name: bodiless
SELECT queue, priority, band, turn, lane, place, job AS n FROM ready q
WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.n = q.job)

-- name: elsewhere
SELECT queue, priority, band, turn, lane, place, job AS n FROM ready q
WHERE EXISTS (SELECT 1 FROM finished f WHERE f.job = q.job)
   OR EXISTS (SELECT 1 FROM running r WHERE r.job = q.job)
   OR EXISTS (SELECT 1 FROM scheduled s WHERE s.job = q.job)

-- name: twice
SELECT count(*) FROM running r JOIN finished f ON f.job = r.job
