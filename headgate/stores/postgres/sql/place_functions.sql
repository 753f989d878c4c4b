-- Places under caps: taken in any transaction, at any level of isolation.
--
-- A cap is exact because each place is a row with a key of its own: of two who want the same one,
-- one gets it, whatever either of them can see. A place is free when its holder does not count
-- any more; that is looked up when somebody wants it, so that ends of jobs need not be told.
--
-- Who submits shares a lock on the group with all others who do, takes a place that nobody is
-- trying for, and waits for a rival's transaction only where all other places are held for sure.
-- Many at once, and who finds holders above the cap (it was lowered), have the group for
-- themselves. Groups come in one order, so that no two wait for each other. A snapshot that is too
-- old to decide ends in a serialization failure: PostgreSQL's own, at the unique key or at a row
-- that has changed since.

-- What the holders of places do, and whether they count there.
CREATE OR REPLACE FUNCTION headgate.holders(p_grp text, p_rule text, p_above integer DEFAULT 0)
RETURNS TABLE (place integer, job uuid, until float8, n bigint, state text, counts boolean,
               held boolean)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
    SELECT x.place, x.job, x.until, x.n, x.state,
           CASE p_rule WHEN 'waiting' THEN x.state IN ('waiting', 'reserved')
                       WHEN 'period' THEN x.until > headgate.clock()
                       ELSE x.state <> 'over' END,
           EXISTS (SELECT 1 FROM headgate.held h WHERE h.job = x.job)
    FROM (
        SELECT p.place, p.job, p.until, j.n,
               CASE WHEN j.n IS NULL OR f.job IS NOT NULL THEN 'over' WHEN r.job IS NULL THEN 'waiting'
                    WHEN r.reserved THEN 'reserved' ELSE 'running' END AS state
        FROM headgate.cap_places p
        LEFT JOIN headgate.jobs j ON j.id = p.job
        LEFT JOIN headgate.finished f ON f.job = j.n
        LEFT JOIN headgate.running r ON r.job = j.n
        WHERE p.grp = p_grp AND p.rule = p_rule AND p.place > p_above AND p.job IS NOT NULL
    ) x
    ORDER BY x.place
$$;

-- Does the holder of one place count there now?
CREATE OR REPLACE FUNCTION headgate.counts(p_rule text, p_job uuid) RETURNS boolean
LANGUAGE sql STABLE
SET enable_seqscan = off SET jit = off
AS $$
    SELECT EXISTS (
        SELECT 1 FROM headgate.jobs j
        WHERE j.id = p_job AND NOT EXISTS (SELECT 1 FROM headgate.finished f WHERE f.job = j.n)
          AND (p_rule <> 'waiting' OR NOT EXISTS (
              SELECT 1 FROM headgate.running r WHERE r.job = j.n AND NOT r.reserved)))
$$;

CREATE OR REPLACE FUNCTION headgate.place_key(p_grp text, p_rule text, p_place integer)
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT headgate.lock_key(E'\x01place ' || p_place || ' ' || p_rule || ' ' || p_grp)
$$;

-- Try for a place of which there is no row. The lock tells others that we do: our row they
-- cannot see before we commit.
CREATE OR REPLACE FUNCTION headgate.try_new_place(
    p_grp text, p_rule text, p_place integer, p_job uuid
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(headgate.salt(), headgate.place_key(p_grp, p_rule, p_place))
    THEN
        RETURN false;
    END IF;
    INSERT INTO headgate.cap_places (grp, rule, place, job) VALUES (p_grp, p_rule, p_place, p_job)
    ON CONFLICT (grp, rule, place) DO NOTHING;
    RETURN FOUND;
END $$;

-- Put the job into a free place up to the cap; NULL: all are held by jobs that count.
CREATE OR REPLACE FUNCTION headgate.take_free_place(
    p_grp text, p_rule text, p_cap integer, p_job uuid
) RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    v_place integer;
    v_last integer;
    v_rival integer;
    v_there boolean;
    v_free record;
BEGIN
    LOOP
        v_rival := NULL;
        -- One that was cleared, and that nobody is taking just now.
        SELECT p.place INTO v_place FROM headgate.cap_places p
        WHERE p.grp = p_grp AND p.rule = p_rule AND p.job IS NULL AND p.place <= p_cap
        ORDER BY p.place LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE headgate.cap_places SET job = p_job
            WHERE grp = p_grp AND rule = p_rule AND place = v_place;
            RETURN v_place;
        END IF;
        -- A new one behind the last.
        SELECT coalesce(max(p.place), 0) INTO v_last FROM headgate.cap_places p
        WHERE p.grp = p_grp AND p.rule = p_rule;
        v_place := v_last + 1;
        WHILE v_place <= p_cap LOOP
            IF headgate.try_new_place(p_grp, p_rule, v_place, p_job) THEN
                RETURN v_place;
            END IF;
            v_rival := coalesce(v_rival, v_place);
            v_place := v_place + 1;
        END LOOP;
        v_there := false;
        -- One whose holder counts no more, or one that was never used.
        FOR v_free IN
            SELECT h.place, h.job, true AS there FROM headgate.holders(p_grp, p_rule) h
            WHERE h.place <= p_cap AND NOT h.counts
            UNION ALL
            -- Cleared, and somebody is taking it.
            SELECT p.place, NULL, true FROM headgate.cap_places p
            WHERE p.grp = p_grp AND p.rule = p_rule AND p.job IS NULL AND p.place <= p_cap
            UNION ALL
            SELECT s.place, NULL, false FROM generate_series(1, least(p_cap, v_last)) s (place)
            WHERE NOT EXISTS (SELECT 1 FROM headgate.cap_places p
                WHERE p.grp = p_grp AND p.rule = p_rule AND p.place = s.place)
              AND (SELECT count(*) FROM headgate.cap_places p WHERE p.grp = p_grp
                   AND p.rule = p_rule AND p.place <= p_cap) < least(p_cap, v_last)
        LOOP
            IF NOT v_free.there THEN
                IF headgate.try_new_place(p_grp, p_rule, v_free.place, p_job) THEN
                    RETURN v_free.place;
                END IF;
            ELSE
                PERFORM 1 FROM headgate.cap_places p
                WHERE p.grp = p_grp AND p.rule = p_rule AND p.place = v_free.place
                  AND p.job IS NOT DISTINCT FROM v_free.job
                FOR UPDATE SKIP LOCKED;
                -- It is ours now; whether its holder counts is asked again, by a statement that
                -- began after the lock: the job may have been given a second life meanwhile.
                IF FOUND AND NOT headgate.counts(p_rule, v_free.job) THEN
                    UPDATE headgate.cap_places SET job = p_job
                    WHERE grp = p_grp AND rule = p_rule AND place = v_free.place;
                    RETURN v_free.place;
                END IF;
            END IF;
            IF v_rival IS NULL OR v_rival > v_free.place THEN
                v_rival := v_free.place;
                v_there := v_free.there;
            END IF;
        END LOOP;
        IF v_rival IS NULL THEN
            RETURN NULL;
        END IF;
        -- All that is left depends on transactions that have not ended. Wait for one of them, and
        -- look again: any place may have become free meanwhile.
        IF v_there THEN
            PERFORM 1 FROM headgate.cap_places p
            WHERE p.grp = p_grp AND p.rule = p_rule AND p.place = v_rival FOR UPDATE;
        ELSE
            PERFORM pg_advisory_xact_lock(
                headgate.salt(), headgate.place_key(p_grp, p_rule, v_rival));
        END IF;
    END LOOP;
END $$;

-- Put the job into a place whatever the cap says, above `p_above`: it counts there, and moves down
-- before the next place is given out. Waits for nobody.
CREATE OR REPLACE FUNCTION headgate.append_place(
    p_grp text, p_rule text, p_job uuid, p_above integer DEFAULT 0
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_place integer;
BEGIN
    SELECT greatest(coalesce(max(p.place), 0), p_above) + 1 INTO v_place
    FROM headgate.cap_places p WHERE p.grp = p_grp AND p.rule = p_rule;
    WHILE NOT headgate.try_new_place(p_grp, p_rule, v_place, p_job) LOOP
        v_place := v_place + 1;
    END LOOP;
    RETURN v_place;
END $$;

CREATE OR REPLACE FUNCTION headgate.stands_above(p_grp text, p_rule text, p_cap integer)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM headgate.holders(p_grp, p_rule, p_cap) h WHERE h.counts)
$$;

-- A place for the job, or NULL. Who stands above the cap comes first; for that one must have the
-- group alone, and who does not begins again when it meets one.
CREATE OR REPLACE FUNCTION headgate.take_place(
    p_grp text, p_rule text, p_cap integer, p_job uuid, p_alone boolean
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_above record;
    v_place integer;
BEGIN
    IF p_alone THEN
        FOR v_above IN SELECT * FROM headgate.holders(p_grp, p_rule, p_cap) LOOP
            -- Who found its place locked by somebody who then let go of it stands in two.
            IF v_above.counts AND NOT EXISTS (
                SELECT 1 FROM headgate.cap_places p
                WHERE p.job = v_above.job AND p.grp = p_grp AND p.rule = p_rule
                  AND p.place < v_above.place)
            THEN
                v_place := headgate.take_free_place(p_grp, p_rule, p_cap, v_above.job);
                IF v_place IS NULL THEN
                    RETURN NULL;
                END IF;
            END IF;
            UPDATE headgate.cap_places SET job = NULL
            WHERE grp = p_grp AND rule = p_rule AND place = v_above.place AND job = v_above.job;
        END LOOP;
        RETURN headgate.take_free_place(p_grp, p_rule, p_cap, p_job);
    END IF;
    IF headgate.stands_above(p_grp, p_rule, p_cap) THEN
        RAISE EXCEPTION 'somebody stands above the cap' USING ERRCODE = 'HG001';
    END IF;
    v_place := headgate.take_free_place(p_grp, p_rule, p_cap, p_job);
    -- Somebody may have come to stand there before what we took was free.
    IF v_place IS NOT NULL AND headgate.stands_above(p_grp, p_rule, p_cap) THEN
        RAISE EXCEPTION 'somebody stands above the cap' USING ERRCODE = 'HG001';
    END IF;
    RETURN v_place;
END $$;

-- The one place of a period, or NULL.
CREATE OR REPLACE FUNCTION headgate.take_period(p_grp text, p_job uuid, p_seconds float8)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_until float8;
BEGIN
    LOOP
        SELECT p.until INTO v_until FROM headgate.cap_places p
        WHERE p.grp = p_grp AND p.rule = 'period' AND p.place = 1;
        IF NOT FOUND THEN
            -- Waits for a rival: whether there is a period depends on it.
            INSERT INTO headgate.cap_places (grp, rule, place, job, until)
            VALUES (p_grp, 'period', 1, p_job, headgate.clock() + p_seconds)
            ON CONFLICT (grp, rule, place) DO NOTHING;
            IF FOUND THEN
                RETURN 1;
            END IF;
        ELSIF v_until > headgate.clock() THEN
            RETURN NULL;
        ELSE
            UPDATE headgate.cap_places SET job = p_job, until = headgate.clock() + p_seconds
            WHERE grp = p_grp AND rule = 'period' AND place = 1
              AND (until IS NULL OR until <= headgate.clock());
            IF FOUND THEN
                RETURN 1;
            END IF;
        END IF;
    END LOOP;
END $$;
