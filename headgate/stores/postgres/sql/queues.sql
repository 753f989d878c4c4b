-- name: every
SELECT name, paused, who, reason, at FROM headgate.queues

-- name: paused
SELECT who, reason FROM headgate.queues WHERE name = :queue AND paused

-- name: put
INSERT INTO headgate.queues (name, paused, who, reason, at) VALUES (:name, :paused, :who, :reason, :at)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, who = excluded.who,
    reason = excluded.reason, at = excluded.at
