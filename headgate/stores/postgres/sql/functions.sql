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
-- there is to be found was committed, and that writes nothing: an ear that opens after this look
-- finds it by itself.
-- Ears are of real processes and go by the real time, whatever clock a test holds.
CREATE OR REPLACE FUNCTION headgate.ring(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM headgate.ears e
        WHERE e.what = ring.what AND e.ends > extract(epoch FROM clock_timestamp())
    ) THEN
        -- A notification is committed like a write, and heard only then. Nothing else is written
        -- in this transaction, and a ring need not outlive a crash: nobody waits for the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM pg_notify('headgate.bells', ring.what);
    END IF;
END $$;

-- Wake who listens for `what` when this transaction commits, be that in an hour: who will
-- listen then cannot be known now.
CREATE OR REPLACE FUNCTION headgate.ring_anyway(what text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('headgate.bells', what)
$$;

-- The generation of `ready` that new rows go to.
CREATE OR REPLACE FUNCTION headgate.current_generation() RETURNS smallint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_sort = off AS $$
    SELECT gen FROM headgate.generations ORDER BY n DESC LIMIT 1
$$;

-- The same, to insert into it by a later statement of this transaction. The lock is the one that
-- the insert will take; taken by itself, before, it sees to it that
-- * nobody empties or drops the generation between this answer and the insert;
-- * a generation that was attached after this session opened `ready` is known to it: a session
--   learns of such changes only when it takes a lock that it does not have.
-- Any other generation would do, and is read as well: a producer that asked before it changed
-- loses nothing. The first is always there, should a restored one not be.
CREATE OR REPLACE FUNCTION headgate.generation() RETURNS smallint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
    v_gen smallint;
BEGIN
    -- As `current_generation` does; every submit comes here, and a call costs as much as the look.
    SELECT g.gen INTO v_gen FROM headgate.generations g ORDER BY g.n DESC LIMIT 1;
    IF v_gen = 0 THEN  -- as a rule: nothing to be put together, looked up or parsed
        LOCK TABLE headgate.ready_0 IN ROW EXCLUSIVE MODE;
        RETURN v_gen;
    END IF;
    IF to_regclass(format('headgate.ready_%s', v_gen)) IS NULL THEN
        v_gen := 0;
    END IF;
    EXECUTE format('LOCK TABLE headgate.ready_%s IN ROW EXCLUSIVE MODE', v_gen);
    RETURN v_gen;
END $$;

-- Put a job into line, at its place.
CREATE OR REPLACE FUNCTION headgate.line_up(job bigint, attempt integer, since float8)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_gen smallint := headgate.generation();
BEGIN
    INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt, since, gen)
    SELECT j.queue, j.priority, j.band, j.turn, j.lane, j.place, j.n, line_up.attempt,
           line_up.since, v_gen
    FROM headgate.jobs j WHERE j.n = line_up.job;
END $$;

-- The epoch of all slots, as of the same moment as the statement that asks: it is stable, so it
-- looks at that statement's snapshot.
CREATE OR REPLACE FUNCTION headgate.epoch() RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_sort = off AS $$
    SELECT epoch FROM headgate.epochs ORDER BY epoch DESC LIMIT 1
$$;
