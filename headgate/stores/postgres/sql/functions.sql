-- Functions that every operation shares. Created anew by each migration.

-- The store's clock. Tests set `headgate.now` to hold it in their hand.
CREATE OR REPLACE FUNCTION headgate.clock() RETURNS float8 LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT coalesce(nullif(current_setting('headgate.now', true), '')::float8,
                    extract(epoch FROM clock_timestamp())::float8)
$$;

-- The advisory lock that stands for a group (or for anything else with a name) is
-- (salt, lock_key): the salt keeps apart two schemas of one database, and us from others.
CREATE OR REPLACE FUNCTION headgate.salt() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtext('headgate.salt')
$$;

CREATE OR REPLACE FUNCTION headgate.lock_key(name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtext(name)
$$;

-- Lock all these groups until the end of the transaction, in the one order that everybody
-- keeps. What is read to decide comes in a later statement.
CREATE OR REPLACE FUNCTION headgate.lock(groups text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    key integer;
BEGIN
    FOR key IN SELECT DISTINCT headgate.lock_key(g) FROM unnest(groups) AS g ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(headgate.salt(), key);
    END LOOP;
END $$;

-- Wake who listens for `what`, at commit, if anybody does: a notification takes a lock that
-- all databases of the server share. To be called in a transaction that begins after what
-- there is to be found was committed: an ear that opens after this look finds it by itself.
-- Ears are of real processes and go by the real time, whatever clock a test holds.
CREATE OR REPLACE FUNCTION headgate.ring(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM headgate.ears e
        WHERE e.what = ring.what AND e.ends > extract(epoch FROM clock_timestamp())
    ) THEN
        PERFORM pg_notify('headgate.bells', ring.what);
    END IF;
END $$;

-- Wake who listens for `what` when this transaction commits, be that in an hour: who will
-- listen then cannot be known now.
CREATE OR REPLACE FUNCTION headgate.ring_anyway(what text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('headgate.bells', what)
$$;

-- The generation of `ready` that new rows go to. Any other would do, and is read as well; so
-- nothing is lost by a producer that asked before it changed.
CREATE OR REPLACE FUNCTION headgate.generation() RETURNS smallint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_sort = off AS $$
    SELECT gen FROM headgate.generations ORDER BY n DESC LIMIT 1
$$;
