-- name: mark
UPDATE headgate.attempts SET reason = :new
WHERE job = (SELECT n FROM headgate.jobs WHERE id = :job::text::uuid) AND token = :token
  AND reason = :old

-- name: since
SELECT count(*) FROM headgate.events WHERE at > :since AND kind = :kind
