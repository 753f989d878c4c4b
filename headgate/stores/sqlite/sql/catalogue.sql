-- name: put
INSERT INTO catalogue (name, task, spec, release, at) VALUES (:name, :task, :spec, :release, :at)
ON CONFLICT (name) DO UPDATE
SET task = excluded.task, spec = excluded.spec, release = excluded.release, at = excluded.at,
    gone = NULL

-- name: known
SELECT task, release FROM catalogue WHERE name = :name

-- name: spec
SELECT spec FROM catalogue WHERE name = :name

-- name: every
SELECT spec FROM catalogue WHERE name = task ORDER BY name
