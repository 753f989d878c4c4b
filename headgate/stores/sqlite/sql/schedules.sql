-- Schedules and their ticks.

-- name: every
SELECT s.*, EXISTS (SELECT 1 FROM schedule_declarers d
                    LEFT JOIN declarers p ON p.declarer = d.declarer
                    WHERE d.schedule = s.name AND p.declarer IS NOT NULL AND p.gone IS NULL) AS live
FROM schedules s ORDER BY s.name

-- name: one
SELECT s.*, EXISTS (SELECT 1 FROM schedule_declarers d
                    LEFT JOIN declarers p ON p.declarer = d.declarer
                    WHERE d.schedule = s.name AND p.declarer IS NOT NULL AND p.gone IS NULL) AS live
FROM schedules s WHERE s.name = :name

-- name: declarers
SELECT schedule, declarer FROM schedule_declarers ORDER BY schedule, declarer

-- name: declarers_of
SELECT schedule, declarer FROM schedule_declarers WHERE schedule = :name ORDER BY declarer

-- name: due
SELECT s.*, 1 AS live FROM schedules s
WHERE s.next_at <= :now AND s.paused = 0
  AND s.name NOT IN (SELECT value FROM json_each(:without))
ORDER BY s.next_at, s.name LIMIT :limit

-- name: next
SELECT min(next_at) AS next_at FROM schedules WHERE next_at > :now AND paused = 0

-- What is being ticked by somebody else just now is not answered, where that can be.
-- name: lock
SELECT name, spec, digest, next_at, planned, paused FROM schedules
WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name

-- name: lock_one
SELECT name, spec FROM schedules WHERE name = :name

-- The runs that may not be over, oldest first, and how each of them is. One that a worker has
-- reserved may have started without the store knowing yet.
-- name: open_runs
SELECT r.schedule, r.job,
       CASE WHEN j.n IS NULL OR f.job IS NOT NULL THEN 'over'
            WHEN x.job IS NOT NULL THEN 'running'
            ELSE 'waiting' END AS state
FROM schedule_runs r
LEFT JOIN jobs j ON j.id = r.job
LEFT JOIN finished f ON f.job = j.n
LEFT JOIN running x ON x.job = j.n
WHERE r.schedule IN (SELECT value FROM json_each(:names))
ORDER BY r.schedule, r.job

-- Of these jobs, those that are in line and that nobody is claiming right now; nobody can until the
-- end of the transaction.
-- name: hold_ready
SELECT j.id FROM jobs j
JOIN ready q ON q.queue = j.queue AND q.priority = j.priority AND q.band = j.band
    AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place AND q.job = j.n
WHERE j.id IN (SELECT value FROM json_each(:jobs))

-- The same for those that are not due yet: a claim puts into line what is due, and takes it.
-- name: hold_scheduled
SELECT j.id, q.run_at FROM jobs j JOIN scheduled q ON q.job = j.n
WHERE j.id IN (SELECT value FROM json_each(:jobs))

-- Those that wait for somebody to say what they need: to be claimed takes two more transactions.
-- name: unrouted
SELECT j.id FROM jobs j JOIN unrouted q ON q.task = j.task AND q.job = j.n
WHERE j.id IN (SELECT value FROM json_each(:jobs))

-- name: add_run
INSERT INTO schedule_runs (schedule, job) VALUES (:schedule, :job)

-- name: drop_run
DELETE FROM schedule_runs WHERE schedule = :schedule AND job = :job

-- name: origin
SELECT id, options FROM jobs WHERE n = :job

-- name: merge_ticks
UPDATE ticks SET outcome = CASE WHEN outcome = 'run' THEN 'merged' ELSE outcome END,
    job = :into
WHERE schedule = :schedule AND job = :job

-- name: merge_last
UPDATE schedules SET last_job = :into WHERE name = :schedule AND last_job = :job

-- name: known_ticks
SELECT schedule, at FROM ticks
WHERE schedule IN (SELECT value FROM json_each(:names)) AND at >= :since

-- name: add_tick
INSERT INTO ticks (schedule, at, outcome, job, recorded_at, through, count, who)
VALUES (:schedule, :at, :outcome, :job, :recorded_at, :through, :count, :who)

-- name: move
UPDATE schedules
SET next_at = :next_at, planned = 1, last_at = coalesce(:last_at, last_at),
    last_run_at = coalesce(:last_run_at, last_run_at), last_job = coalesce(:last_job, last_job)
WHERE name = :name

-- name: ran
UPDATE schedules SET last_run_at = :at, last_job = :job WHERE name = :name

-- name: ticks
SELECT schedule, at, outcome, job, recorded_at, through, count, who FROM ticks
WHERE schedule = :name ORDER BY at DESC LIMIT :limit

-- name: declared
SELECT name, digest, times, release FROM schedules
WHERE name IN (SELECT value FROM json_each(:names)) ORDER BY name

-- name: insert
INSERT INTO schedules (name, spec, digest, times, task, release, at, since, next_at, planned)
VALUES (:name, :spec, :digest, :times, :task, :release, :at, :at, 0, 0)

-- name: change
UPDATE schedules SET spec = :spec, digest = :digest, times = :times, task = :task,
    release = :release, at = :at
WHERE name = :name

-- name: replan
UPDATE schedules SET since = :at, next_at = 0, planned = 0 WHERE name = :name

-- name: declare
INSERT INTO schedule_declarers (schedule, declarer) VALUES (:schedule, :declarer)
ON CONFLICT (schedule, declarer) DO NOTHING

-- name: undeclare
DELETE FROM schedule_declarers
WHERE declarer = :declarer AND schedule NOT IN (SELECT value FROM json_each(:names))

-- name: undeclared
SELECT name FROM schedules s
WHERE NOT EXISTS (SELECT 1 FROM schedule_declarers d WHERE d.schedule = s.name) ORDER BY name

-- Schedules of which every declarer is gone, and since when the last of them is.
-- name: abandoned
SELECT s.name, s.task, max(coalesce(p.gone, 0)) AS gone
FROM schedules s
JOIN schedule_declarers d ON d.schedule = s.name
LEFT JOIN declarers p ON p.declarer = d.declarer
GROUP BY s.name, s.task
HAVING sum(p.declarer IS NOT NULL AND p.gone IS NULL) = 0
ORDER BY s.name

-- name: forget_declarers
DELETE FROM schedule_declarers WHERE declarer IN (
    SELECT declarer FROM declarers WHERE gone <= :before
) AND EXISTS (
    SELECT 1 FROM schedule_declarers o JOIN declarers p ON p.declarer = o.declarer
    WHERE o.schedule = schedule_declarers.schedule AND p.gone IS NULL
)

-- name: forget
DELETE FROM schedules WHERE name = :name

-- name: forget_declarations
DELETE FROM schedule_declarers WHERE schedule = :name

-- name: forget_runs
DELETE FROM schedule_runs WHERE schedule = :name

-- name: pause
UPDATE schedules SET paused = 1, who = :who, reason = :reason WHERE name = :name

-- name: resume
UPDATE schedules SET paused = 0, who = '', reason = '', since = :now,
    next_at = CASE WHEN next_at IS NULL THEN NULL ELSE 0 END,
    planned = CASE WHEN next_at IS NULL THEN planned ELSE 0 END
WHERE name = :name

-- name: prune
DELETE FROM ticks WHERE (schedule, at) IN (
    SELECT schedule, at FROM ticks WHERE recorded_at <= :before ORDER BY recorded_at LIMIT :limit
)
