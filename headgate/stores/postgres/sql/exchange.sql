-- name: act
SELECT headgate.act(
    ?, ?::bigint,
    ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[], ?::float8[], ?::text[], ?::boolean[],
    ?::bigint[], ?::bigint[], ?::float8[],
    ?::bigint[], ?::float8[], ?::text[],
    ?::text[], ?::smallint[], ?::text[], ?::text[], ?::text[], ?::bigint[],
    ?::text[], ?::integer[], ?::float8[], ?::integer[],
    ?::integer[], ?::integer[], ?::integer[], ?::integer[],
    ?::bigint, ?::integer[]
)::text AS answer

-- name: look
SELECT headgate.look(?::text[], ?, ?::text[], ?::text[], ?::text[], ?::json, ?::integer, ?::integer,
                     ?::integer, ?::json, ?::float8)::text AS answer

-- name: look_and_take
SELECT headgate.look_and_take(?::text[], ?, ?::text[], ?::text[], ?::text[], ?::json, ?::integer,
                              ?::integer, ?::integer, ?::json, ?::float8, ?::bigint,
                              ?::bigint, ?::json)::text AS answer

-- name: granted
SELECT headgate.claimed_by(?, ?::bigint)::text AS answer

-- name: ring
SELECT headgate.ring(w) FROM unnest(?::text[]) w
