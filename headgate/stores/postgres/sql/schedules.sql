-- Schedules and their ticks.

-- name: every
SELECT s.*, EXISTS (SELECT 1 FROM headgate.schedule_declarers d
                    LEFT JOIN headgate.declarers p ON p.declarer = d.declarer
                    WHERE d.schedule = s.name AND p.declarer IS NOT NULL AND p.gone IS NULL) AS live
FROM headgate.schedules s ORDER BY s.name

-- name: one
SELECT s.*, EXISTS (SELECT 1 FROM headgate.schedule_declarers d
                    LEFT JOIN headgate.declarers p ON p.declarer = d.declarer
                    WHERE d.schedule = s.name AND p.declarer IS NOT NULL AND p.gone IS NULL) AS live
FROM headgate.schedules s WHERE s.name = :name

-- name: declarers
SELECT schedule, declarer FROM headgate.schedule_declarers ORDER BY schedule, declarer

-- name: declarers_of
SELECT schedule, declarer FROM headgate.schedule_declarers WHERE schedule = :name ORDER BY declarer

-- name: due
SELECT s.*, true AS live FROM headgate.schedules s
WHERE s.next_at <= :now AND NOT s.paused
  AND s.name <> ALL (ARRAY(SELECT json_array_elements_text(:without::json)))
ORDER BY s.next_at, s.name LIMIT :limit

-- name: next
SELECT min(next_at) AS next_at FROM headgate.schedules WHERE next_at > :now AND NOT paused

-- What is being ticked by somebody else just now is not answered, where that can be.
-- name: lock
SELECT name, spec, digest, next_at, planned, paused FROM headgate.schedules
WHERE name = ANY (ARRAY(SELECT json_array_elements_text(:names::json))) ORDER BY name
FOR UPDATE SKIP LOCKED

-- Waits for who ticks it, so that what is read next is what that has left.
-- name: lock_one
SELECT name, spec FROM headgate.schedules WHERE name = :name FOR UPDATE

-- The runs that may not be over, oldest first, and how each of them is. One that a worker has
-- reserved may have started without the store knowing yet.
-- name: open_runs
SELECT r.schedule, r.job::text AS job,
       CASE WHEN j.n IS NULL OR f.job IS NOT NULL THEN 'over'
            WHEN x.job IS NOT NULL THEN 'running'
            ELSE 'waiting' END AS state
FROM headgate.schedule_runs r
LEFT JOIN headgate.jobs j ON j.id = r.job
LEFT JOIN headgate.finished f ON f.job = j.n
LEFT JOIN headgate.running x ON x.job = j.n
WHERE r.schedule = ANY (ARRAY(SELECT json_array_elements_text(:names::json)))
ORDER BY r.schedule, r.job

-- Of these jobs, those that are in line and that nobody is claiming right now; nobody can until the
-- end of the transaction.
-- name: hold_ready
SELECT j.id::text AS id FROM headgate.jobs j
JOIN headgate.ready q ON q.queue = j.queue AND q.priority = j.priority AND q.band = j.band
    AND q.turn = j.turn AND q.lane = j.lane AND q.place = j.place AND q.job = j.n
WHERE j.id = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json))::uuid[])
FOR UPDATE OF q SKIP LOCKED

-- The same for those that are not due yet: a claim puts into line what is due, and takes it.
-- name: hold_scheduled
SELECT j.id::text AS id, q.run_at FROM headgate.jobs j JOIN headgate.scheduled q ON q.job = j.n
WHERE j.id = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json))::uuid[])
FOR UPDATE OF q SKIP LOCKED

-- Those that wait for somebody to say what they need: to be claimed takes two more transactions.
-- name: unrouted
SELECT j.id::text AS id FROM headgate.jobs j JOIN headgate.unrouted q ON q.task = j.task AND q.job = j.n
WHERE j.id = ANY (ARRAY(SELECT json_array_elements_text(:jobs::json))::uuid[])

-- name: add_run
INSERT INTO headgate.schedule_runs (schedule, job) VALUES (:schedule, :job::text::uuid)

-- name: drop_run
DELETE FROM headgate.schedule_runs WHERE schedule = :schedule AND job = :job::text::uuid

-- name: origin
SELECT id::text AS id, options FROM headgate.jobs WHERE n = :job

-- name: merge_ticks
UPDATE headgate.ticks SET outcome = CASE WHEN outcome = 'run' THEN 'merged' ELSE outcome END,
    job = :into::text
WHERE schedule = :schedule AND job = :job::text

-- Not where somebody ticks it right now: it may wait for what we hold.
-- name: merge_last
UPDATE headgate.schedules SET last_job = :into::text WHERE name IN (
    SELECT name FROM headgate.schedules WHERE name = :schedule AND last_job = :job::text
    FOR UPDATE SKIP LOCKED
)

-- name: known_ticks
SELECT schedule, at FROM headgate.ticks
WHERE schedule = ANY (ARRAY(SELECT json_array_elements_text(:names::json))) AND at >= :since

-- name: add_tick
INSERT INTO headgate.ticks (schedule, at, outcome, job, recorded_at, through, count, who)
VALUES (:schedule, :at, :outcome, :job, :recorded_at, :through, :count, :who)

-- name: move
UPDATE headgate.schedules
SET next_at = :next_at::float8, planned = true, last_at = coalesce(:last_at::float8, last_at),
    last_run_at = coalesce(:last_run_at::float8, last_run_at), last_job = coalesce(:last_job::text, last_job)
WHERE name = :name

-- name: ran
UPDATE headgate.schedules SET last_run_at = :at, last_job = :job WHERE name = :name

-- name: ticks
SELECT schedule, at, outcome, job, recorded_at, through, count, who FROM headgate.ticks
WHERE schedule = :name ORDER BY at DESC LIMIT :limit

-- Locked, in the order of their names as everywhere: a tick of the old times is over, or begins
-- after the new ones are there.
-- name: declared
SELECT name, digest, times, release FROM headgate.schedules
WHERE name = ANY (ARRAY(SELECT json_array_elements_text(:names::json))) ORDER BY name FOR UPDATE

-- name: insert
INSERT INTO headgate.schedules (name, spec, digest, times, task, release, at, since, next_at, planned)
VALUES (:name, :spec, :digest, :times, :task, :release, :at, :at, 0, false)

-- name: change
UPDATE headgate.schedules SET spec = :spec, digest = :digest, times = :times, task = :task,
    release = :release, at = :at
WHERE name = :name

-- name: replan
UPDATE headgate.schedules SET since = :at, next_at = 0, planned = false WHERE name = :name

-- name: declare
INSERT INTO headgate.schedule_declarers (schedule, declarer) VALUES (:schedule, :declarer)
ON CONFLICT (schedule, declarer) DO NOTHING

-- name: undeclare
DELETE FROM headgate.schedule_declarers
WHERE declarer = :declarer AND schedule <> ALL (ARRAY(SELECT json_array_elements_text(:names::json)))

-- name: undeclared
SELECT name FROM headgate.schedules s
WHERE NOT EXISTS (SELECT 1 FROM headgate.schedule_declarers d WHERE d.schedule = s.name) ORDER BY name

-- Schedules of which every declarer is gone, and since when the last of them is.
-- name: abandoned
SELECT s.name, s.task, max(coalesce(p.gone, 0)) AS gone
FROM headgate.schedules s
JOIN headgate.schedule_declarers d ON d.schedule = s.name
LEFT JOIN headgate.declarers p ON p.declarer = d.declarer
GROUP BY s.name, s.task
HAVING NOT bool_or(p.declarer IS NOT NULL AND p.gone IS NULL)
ORDER BY s.name

-- name: forget_declarers
DELETE FROM headgate.schedule_declarers WHERE declarer IN (
    SELECT declarer FROM headgate.declarers WHERE gone <= :before
) AND EXISTS (
    SELECT 1 FROM headgate.schedule_declarers o JOIN headgate.declarers p ON p.declarer = o.declarer
    WHERE o.schedule = schedule_declarers.schedule AND p.gone IS NULL
)

-- name: forget
DELETE FROM headgate.schedules WHERE name = :name

-- name: forget_declarations
DELETE FROM headgate.schedule_declarers WHERE schedule = :name

-- name: forget_runs
DELETE FROM headgate.schedule_runs WHERE schedule = :name

-- name: pause
UPDATE headgate.schedules SET paused = true, who = :who, reason = :reason WHERE name = :name

-- name: resume
UPDATE headgate.schedules SET paused = false, who = '', reason = '', since = :now,
    next_at = CASE WHEN next_at IS NULL THEN NULL ELSE 0 END,
    planned = CASE WHEN next_at IS NULL THEN planned ELSE false END
WHERE name = :name

-- What somebody else prunes just now is passed over.
-- name: prune
DELETE FROM headgate.ticks WHERE (schedule, at) IN (
    SELECT schedule, at FROM headgate.ticks WHERE recorded_at <= :before
    ORDER BY recorded_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
