-- name: submit
SELECT number, id, existing, conflict FROM headgate.submit(:jobs, true)

-- The same as one text.
-- name: submit_now
SELECT json_agg(json_build_array(number, id, existing, conflict) ORDER BY number)::text
FROM headgate.submit(:jobs, true)

-- name: submit_one
SELECT headgate.submit_one(?::uuid, ?, ?, ?::smallint, ?, ?, ?, ?, ?, ?, ?::integer, ?, ?,
                           ?::float8)::text

-- name: submit_capped
SELECT number, id, existing, conflict, refused, follows FROM headgate.submit_capped(:jobs, true)

-- name: generation
SELECT headgate.generation()

-- name: copy_jobs
COPY headgate.jobs (n, id, task, queue, priority, band, turn, lane, place, args, options, needs,
                    carried, created_at, run_at, expires, expires_at, max_lost, parent)
FROM STDIN

-- name: copy_ready
COPY headgate.ready (queue, priority, band, turn, lane, place, job, attempt, since, gen)
FROM STDIN

-- name: copy_scheduled
COPY headgate.scheduled (run_at, job, attempt, keeps_place, reason) FROM STDIN

-- name: copy_unrouted
COPY headgate.unrouted (task, job) FROM STDIN
