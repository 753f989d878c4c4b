-- Functions that every operation shares. Created anew by each migration.

-- The store's clock. Tests set `headgate.now` to hold it in their hand.
CREATE OR REPLACE FUNCTION headgate.clock() RETURNS float8 LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT coalesce(nullif(current_setting('headgate.now', true), '')::float8,
                    extract(epoch FROM clock_timestamp())::float8)
$$;

-- The advisory lock that stands for a group (or for anything else with a name).
CREATE OR REPLACE FUNCTION headgate.lock_key(name text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtext(name)
$$;

-- Wake who listens for `what`, at commit, if anybody does: a notification takes a lock that
-- all databases of the server share.
CREATE OR REPLACE FUNCTION headgate.ring(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM headgate.ears e WHERE e.what = ring.what AND e.ends > headgate.clock())
    THEN
        PERFORM pg_notify('headgate', ring.what);
    END IF;
END $$;
