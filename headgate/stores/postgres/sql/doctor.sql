-- name: workerless
SELECT token FROM headgate.running r
WHERE NOT EXISTS (SELECT 1 FROM headgate.workers w WHERE w.id = r.worker)

-- name: holderless
SELECT grp, slot, token FROM headgate.slots s
WHERE s.epoch = headgate.epoch() AND s.token IS NOT NULL AND s.job IS NOT NULL
  AND s.worker IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM headgate.running r WHERE r.token = s.token)

-- Slots that were passed on belong to another attempt of the same worker: they are held. A start
-- under a rate (-2) is not held at all.
-- name: slotless
SELECT DISTINCT r.token, r.slots FROM headgate.running r, json_array_elements(r.slots::json) e
WHERE NOT r.released AND NOT r.reserved AND (e ->> 1)::integer <> -2
  AND NOT EXISTS (SELECT 1 FROM headgate.slots s WHERE s.epoch = headgate.epoch() AND s.grp = e ->> 0
      AND s.slot = (e ->> 1)::integer AND s.worker = r.worker AND s.token IS NOT NULL)

-- name: nowhere
SELECT j.n, j.band, j.task, j.run_at,
       coalesce((SELECT max(attempt) FROM headgate.attempts a WHERE a.job = j.n), 0) AS attempt
FROM headgate.jobs j
WHERE NOT EXISTS (SELECT 1 FROM headgate.finished f WHERE f.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM headgate.running r WHERE r.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM headgate.scheduled s WHERE s.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM headgate.unrouted u WHERE u.task = j.task AND u.job = j.n)
  AND NOT EXISTS (SELECT 1 FROM headgate.held h WHERE h.job = j.id)
  AND NOT EXISTS (SELECT 1 FROM headgate.ready q WHERE q.queue = j.queue
      AND q.priority = j.priority AND q.band = j.band AND q.turn = j.turn AND q.lane = j.lane
      AND q.place = j.place AND q.job = j.n)

-- name: bodiless
SELECT queue, priority, band, turn, lane, place, job AS n FROM headgate.ready q
WHERE NOT EXISTS (SELECT 1 FROM headgate.jobs j WHERE j.n = q.job)

-- name: elsewhere
SELECT queue, priority, band, turn, lane, place, job AS n FROM headgate.ready q
WHERE EXISTS (SELECT 1 FROM headgate.finished f WHERE f.job = q.job)
   OR EXISTS (SELECT 1 FROM headgate.running r WHERE r.job = q.job)
   OR EXISTS (SELECT 1 FROM headgate.scheduled s WHERE s.job = q.job)

-- name: twice
SELECT count(*) FROM headgate.running r JOIN headgate.finished f ON f.job = r.job

-- name: dead
SELECT count(*) FROM headgate.workers w LEFT JOIN headgate.leases l ON l.worker = w.id
WHERE l.worker IS NULL OR l.dead OR l.ends <= headgate.clock()

-- name: leaseless
SELECT w.id, w.name FROM headgate.workers w LEFT JOIN headgate.leases l ON l.worker = w.id
WHERE l.worker IS NULL OR l.dead
