-- name: mark
UPDATE attempts SET reason = :new
WHERE job = (SELECT n FROM jobs WHERE id = :job) AND token = :token AND reason = :old

-- name: since
SELECT count(*) FROM events WHERE at > :since AND kind = :kind
