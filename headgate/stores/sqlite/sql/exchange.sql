-- name: glance
SELECT (SELECT run_at FROM scheduled ORDER BY run_at LIMIT 1) AS next_due,
       (SELECT ends FROM slots
        WHERE worker IS NULL AND holder <> '' AND boot = :boot_id AND ends > :boot
        ORDER BY ends LIMIT 1) AS next_end,
       (SELECT CASE WHEN ends <= :now THEN -1 ELSE value END FROM counters WHERE name = 'limits')
           AS version,
       (SELECT ends FROM counters WHERE name = 'limits') AS words_end,
       EXISTS (SELECT 1 FROM unrouted) AS unrouted,
       EXISTS (SELECT 1 FROM reservations) AS reservations,
       EXISTS (SELECT 1 FROM cancels) AS cancels,
       EXISTS (SELECT 1 FROM refused) AS refused,
       (SELECT group_concat(name, char(10)) FROM queues WHERE paused = 1) AS paused

-- name: cancels
SELECT r.token, c.reason FROM cancels c JOIN running r ON r.job = c.job WHERE r.worker = :worker
