-- name: wear
SELECT headgate.wear()::text

-- name: switch_generation
SELECT headgate.switch_generation(?::integer)

-- name: retire_generations
SELECT headgate.retire_generations()

-- name: move_generation
SELECT headgate.move_generation(?::smallint, ?::integer, ?::integer)

-- name: empty_generation
SELECT headgate.empty_generation(?::smallint)

-- name: drop_generation
SELECT headgate.drop_generation(?::smallint)

-- name: renew_slots
SELECT headgate.renew_slots()

-- Nobody moves rows of `ready` to another generation while we look where all jobs are.
-- name: lock
SELECT pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(E'\x01compact'))
