-- A pinned horizon must not matter. While another session holds an old snapshot no dead row can
-- be removed, and whoever reads the start of a range in an index passes over all that died there.
-- So the tables that are read by range are left behind instead of being cleaned:
--
-- * `ready` has generations. New rows go to the current one; an old one runs empty as its jobs are
--   taken, and is truncated as a whole as soon as nobody has it open. That is possible under an
--   idle snapshot. An open producer keeps the one generation that it wrote to, a dump those that
--   were there when it began: they are read on, and stay as small as they were then.
-- * `slots` has epochs, the first column of its key. All rows move on to a new epoch at once,
--   and what died before lies outside the range that is read. Nothing is truncated, so this is
--   possible under a dump, and no snapshot ever sees other rows than those of its own time.
--
-- These functions run with the rights of the role that migrated: the role that works may not
-- change tables. They do one fixed thing each, wait for a lock for a moment at most, and answer
-- NULL when somebody else is at it.

-- The oldest transaction whose effects some session may not see yet, and its age in transactions;
-- per generation its number, size in pages, whether it is the current one, for how long it has not
-- been, and whether every transaction that may still write to it has ended; of the slots by how
-- many pages they grew in this epoch, and how many rows there are. Sizes are true at once, while
-- statistics come late: what was counted before a table was emptied may be added after it.
CREATE OR REPLACE FUNCTION headgate.wear() RETURNS json LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_age bigint;
    v_horizon xid;
    v_current bigint;
BEGIN
    SELECT age(h.xid), h.xid INTO v_age, v_horizon FROM (
        SELECT unnest(ARRAY[a.backend_xmin, a.backend_xid]) AS xid FROM pg_stat_activity a
        WHERE a.pid <> pg_backend_pid()
          AND (a.datid IS NULL OR a.datname = current_database())
        UNION ALL SELECT p.transaction FROM pg_prepared_xacts p
        WHERE p.database = current_database()
        UNION ALL SELECT s.xmin FROM pg_replication_slots s
    ) h WHERE h.xid IS NOT NULL ORDER BY age(h.xid) DESC LIMIT 1;
    SELECT g.n INTO v_current FROM headgate.generations g ORDER BY g.n DESC LIMIT 1;
    RETURN json_build_object(
        'age', coalesce(v_age, 0),
        'horizon', coalesce(v_horizon::text, ''),
        'generations', (
            SELECT json_agg(json_build_array(
                p.gen, pg_relation_size(p.oid) / current_setting('block_size')::integer,
                g.n IS NOT NULL AND g.n = v_current,
                headgate.clock() - (SELECT x.at FROM headgate.generations x WHERE x.n > g.n
                                    ORDER BY x.n LIMIT 1),
                coalesce(v_next - g.retired > coalesce(v_age, 0), g.n IS NULL)))
            FROM (
                SELECT c.oid, substr(c.relname, 7)::smallint AS gen
                FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                WHERE i.inhparent = 'headgate.ready'::regclass
            ) p LEFT JOIN headgate.generations g ON g.gen = p.gen),
        'slots', (
            SELECT json_build_array(
                pg_relation_size('headgate.slots') / current_setting('block_size')::integer
                    - e.pages,
                pg_stat_get_live_tuples('headgate.slots'::regclass))
            FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1));
END $$;

-- One at a time, in any process. A transaction that examines where all jobs are takes it too.
CREATE OR REPLACE FUNCTION headgate.may_compact() RETURNS boolean LANGUAGE sql AS $$
    SELECT pg_try_advisory_xact_lock(headgate.salt(), headgate.lock_key(E'\x01compact'))
$$;

-- From now on new rows go to another generation: the first one that is empty, or a new one if
-- there are fewer than `most`. Attaching it waits for nobody who reads or writes `ready`.
CREATE OR REPLACE FUNCTION headgate.switch_generation(most integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
DECLARE
    v_current smallint;
    v_gens smallint[];
    v_gen smallint;
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    v_current := headgate.current_generation();
    SELECT array_agg(p.gen), min(p.gen) FILTER (WHERE p.empty AND p.gen <> v_current)
    INTO v_gens, v_gen
    FROM (
        -- A file without a page has no row in it, not even one of a transaction under way.
        SELECT substr(c.relname, 7)::smallint AS gen, pg_relation_size(c.oid) = 0 AS empty
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'headgate.ready'::regclass
    ) p;
    IF v_gen IS NULL THEN
        IF cardinality(v_gens) >= most THEN
            RETURN false;
        END IF;
        SELECT min(n) INTO v_gen FROM generate_series(0, most) n WHERE n <> ALL (v_gens);
        EXECUTE format(
            'CREATE TABLE headgate.ready_%s (LIKE headgate.ready INCLUDING DEFAULTS,'
            ' PRIMARY KEY (queue, priority, band, turn, lane, place, job))', v_gen);
        EXECUTE format(
            'ALTER TABLE headgate.ready ATTACH PARTITION headgate.ready_%s FOR VALUES IN (%s)',
            v_gen, v_gen);
        -- Used from the next time on: who claims and has opened `ready` already may read it
        -- without this one for as long as its statement lasts.
        RETURN true;
    END IF;
    DELETE FROM headgate.generations g WHERE g.gen = v_gen;
    INSERT INTO headgate.generations (gen, at) VALUES (v_gen, headgate.clock());
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Note who may still write to the generations that are not current any more: whoever asked for
-- the current one before the switch was committed has a snapshot from before this look.
CREATE OR REPLACE FUNCTION headgate.retire_generations() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    UPDATE headgate.generations g
    SET retired = pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    WHERE g.retired IS NULL AND g.gen <> headgate.current_generation();
    RETURN true;
END $$;

-- Move some of the rows that are left in an old generation to the current one, if no more than
-- `few` are left (-1: there are more): what cannot run now must not keep it. Who takes or cancels one of them just now keeps it, and who looked for it
-- in the old place looks again.
CREATE OR REPLACE FUNCTION headgate.move_generation(gen smallint, few integer, most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_current smallint;
    v_moved integer;
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    v_current := headgate.generation();
    IF v_current = gen THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT count(*) FROM (SELECT 1 FROM headgate.ready_%s LIMIT $1) x', gen)
    INTO v_moved USING few + 1;
    IF v_moved > few THEN
        RETURN -1;
    END IF;
    EXECUTE format(
        'WITH gone AS (DELETE FROM headgate.ready_%s r WHERE r.ctid = ANY (ARRAY('
        '    SELECT x.ctid FROM headgate.ready_%s x LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING r.*)'
        ' INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt,'
        '                             since, gen)'
        ' SELECT queue, priority, band, turn, lane, place, job, attempt, since, $2 FROM gone',
        gen, gen) USING most, v_current;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    RETURN v_moved;
END $$;

-- Truncate an old generation in which there is no row. A claim that waits here meanwhile takes
-- its snapshot after it got the lock, so it sees what was moved elsewhere before. The answer is
-- `done`, `rows` (there are some), or `locked` (somebody has it open).
CREATE OR REPLACE FUNCTION headgate.empty_generation(gen smallint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
DECLARE
    v_rows boolean;
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM headgate.ready_%s)', gen) INTO v_rows;
    IF v_rows OR headgate.current_generation() = gen THEN
        RETURN 'rows';
    END IF;
    -- Nobody can have an uncommitted row in it once this lock is ours: so what is seen by the
    -- next statement is all there is.
    EXECUTE format('LOCK TABLE headgate.ready_%s IN ACCESS EXCLUSIVE MODE', gen);
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM headgate.ready_%s)', gen) INTO v_rows;
    IF v_rows THEN
        RETURN 'rows';
    END IF;
    EXECUTE format('TRUNCATE headgate.ready_%s', gen);
    RETURN 'done';
EXCEPTION WHEN lock_not_available THEN
    RETURN 'locked';
END $$;

-- Drop an empty generation, so that in quiet times there is one again. Only after every
-- transaction has ended that may have chosen it for a row (`wear` tells); never the first.
CREATE OR REPLACE FUNCTION headgate.drop_generation(gen smallint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '30ms' AS $$
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    IF gen = 0 OR headgate.current_generation() = gen THEN
        RETURN false;
    END IF;
    LOCK TABLE ONLY headgate.ready IN ACCESS EXCLUSIVE MODE;
    IF pg_relation_size(format('headgate.ready_%s', gen)::regclass) > 0 THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE headgate.ready_%s', gen);
    DELETE FROM headgate.generations g WHERE g.gen = drop_generation.gen;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- All slots move on to a new epoch. The lock lets everybody read, a dump included, and nobody
-- write: who grants or frees slots does all of that before it or after it, and reads the epoch
-- in the same statement as the slots, from one snapshot. One that was read by an earlier
-- statement could be over by then, and every group would look free.
CREATE OR REPLACE FUNCTION headgate.renew_slots() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    v_epoch bigint;
BEGIN
    IF NOT headgate.may_compact() THEN
        RETURN NULL;
    END IF;
    LOCK TABLE headgate.slots IN EXCLUSIVE MODE;
    SELECT e.epoch + 1 INTO v_epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1;
    UPDATE headgate.slots SET epoch = v_epoch;
    DELETE FROM headgate.epochs;
    INSERT INTO headgate.epochs (epoch, pages) VALUES (
        v_epoch,
        pg_relation_size('headgate.slots') / current_setting('block_size')::integer);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
