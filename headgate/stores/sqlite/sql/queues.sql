-- name: every
SELECT name, paused, who, reason, at FROM queues

-- name: paused
SELECT who, reason FROM queues WHERE name = :queue AND paused = 1

-- name: put
INSERT INTO queues (name, paused, who, reason, at) VALUES (:name, :paused, :who, :reason, :at)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, who = excluded.who,
    reason = excluded.reason, at = excluded.at
