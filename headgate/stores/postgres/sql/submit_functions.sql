-- Submit, in any transaction: rows are inserted, nothing is locked and nobody is waited for. The
-- one exception is an idempotency key that another open transaction has used.
--
-- `jobs` is a JSON array of objects; what a job brings as JSON (arguments, options, needs) are
-- texts in it. The answer has a row per job, in order. A key that belongs to other work makes
-- `conflict` true in the one row that is answered then, and nothing is stored; the transaction
-- goes on.
CREATE OR REPLACE FUNCTION headgate.submit(jobs text, quiet boolean DEFAULT false)
RETURNS TABLE (number integer, id text, existing boolean, conflict boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now float8 := headgate.clock();
    v_gen smallint := headgate.generation();
    v_jobs json := jobs::json;
    v_job record;
    v_known record;
    v_n bigint;
    v_places jsonb := '{}';  -- number → the place of a job whose key is new
    v_met jsonb := '{}';     -- number → the id of the job that its key has met
    v_own jsonb := '{}';     -- key → what this call has just used it for
    v_keys text[] := '{}';
BEGIN
    -- In the order of the keys, so that two who use the same ones do not wait for each other.
    FOR v_job IN
        SELECT x.number, x.id, x.task, x.key, x.digest
        FROM ROWS FROM (json_to_recordset(v_jobs) AS (id text, task text, key text, digest text))
            WITH ORDINALITY AS x (id, task, key, digest, number)
        WHERE x.key IS NOT NULL ORDER BY x.key, x.number
    LOOP
        IF v_own ? v_job.key THEN
            SELECT v_own -> v_job.key ->> 'id' AS id, v_own -> v_job.key ->> 'task' AS task,
                   v_own -> v_job.key ->> 'digest' AS digest INTO v_known;
        ELSE
            v_n := nextval('headgate.places');
            LOOP
                INSERT INTO headgate.idempotency (key, job, digest)
                VALUES (v_job.key, v_n, v_job.digest) ON CONFLICT (key) DO NOTHING;
                IF FOUND THEN
                    v_known := NULL;
                    EXIT;
                END IF;
                -- By a statement of its own: the one above may have waited for the commit of
                -- what it met, and its snapshot is from before. Pruned since then: try again.
                SELECT j.id::text AS id, j.task, i.digest INTO v_known
                FROM headgate.idempotency i JOIN headgate.jobs j ON j.n = i.job
                WHERE i.key = v_job.key;
                EXIT WHEN FOUND;
            END LOOP;
        END IF;
        IF v_known IS NULL THEN
            v_places := v_places || jsonb_build_object(v_job.number::text, v_n);
            v_own := v_own || jsonb_build_object(v_job.key, jsonb_build_object(
                'id', v_job.id, 'task', v_job.task, 'digest', v_job.digest));
            v_keys := v_keys || v_job.key;
        ELSIF v_known.digest <> v_job.digest
            OR headgate.own_name(v_known.task) <> headgate.own_name(v_job.task)
        THEN
            DELETE FROM headgate.idempotency WHERE key = ANY (v_keys);
            RETURN QUERY SELECT v_job.number::integer, v_known.id, true, true;
            RETURN;
        ELSE
            v_met := v_met || jsonb_build_object(v_job.number::text, v_known.id);
        END IF;
    END LOOP;

    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT x.*,
               CASE WHEN v_met ? x.number::text THEN NULL
                    WHEN v_places ? x.number::text THEN (v_places ->> x.number::text)::bigint
                    ELSE nextval('headgate.places') END AS n,
               coalesce(x.run_at, v_now + greatest(0, x.delay)) AS due
        FROM ROWS FROM (json_to_recordset(v_jobs) AS (
            id uuid, task text, queue text, priority smallint, band text, turn text, lane text,
            args text, options text, needs text, carried text, delay float8, run_at float8,
            expires float8, max_lost integer, key text, parent text, caps text, held boolean
        )) WITH ORDINALITY AS x (
            id, task, queue, priority, band, turn, lane, args, options, needs, carried, delay,
            run_at, expires, max_lost, key, parent, caps, held, number)
    ), stored AS (
        -- A job that is there already is the same submit again, after a lost answer.
        INSERT INTO headgate.jobs (n, id, task, queue, priority, band, turn, lane, place, args,
                                   options, needs, carried, created_at, run_at, expires,
                                   expires_at, max_lost, idempotency_key, parent, caps)
        SELECT g.n, g.id, g.task, g.queue, g.priority, g.band, g.turn, g.lane,
               (greatest(g.due, v_now) * 1e6)::bigint, g.args,
               g.options, g.needs, g.carried, v_now, CASE WHEN g.due > v_now THEN g.due END,
               g.expires, g.due + g.expires, g.max_lost, g.key, g.parent, g.caps
        FROM given g WHERE g.n IS NOT NULL
        ON CONFLICT (id) DO NOTHING
        RETURNING n
    ), unrouted AS (
        INSERT INTO headgate.unrouted (task, job)
        SELECT g.task, g.n FROM given g JOIN stored s ON s.n = g.n WHERE g.band = ''
          AND g.held IS NULL
    ), scheduled AS (
        INSERT INTO headgate.scheduled (run_at, job, attempt, keeps_place, reason)
        SELECT g.due, g.n, 0, false, 'delayed' FROM given g JOIN stored s ON s.n = g.n
        WHERE g.band <> '' AND g.due > v_now AND g.held IS NULL
    ), ready AS (
        INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt, since,
                                    gen)
        SELECT g.queue, g.priority, g.band, g.turn, g.lane, (v_now * 1e6)::bigint, g.n, 0, v_now,
               v_gen
        FROM given g JOIN stored s ON s.n = g.n
        WHERE g.band <> '' AND g.due <= v_now AND g.held IS NULL
    )
    SELECT g.number::integer, coalesce(v_met ->> g.number::text, g.id::text),
           NOT EXISTS (SELECT 1 FROM stored s WHERE s.n = g.n), false
    FROM given g ORDER BY g.number;
    IF NOT quiet THEN
        -- Whoever listens when this commits, be it in an hour.
        PERFORM headgate.ring_anyway('work');
    END IF;
END $$;

-- The same for one job that may start at once and has neither key nor cap, which is most of them:
-- two rows. True: it is there already.
CREATE OR REPLACE FUNCTION headgate.submit_one(
    p_id uuid, p_task text, p_queue text, p_priority smallint, p_band text, p_turn text,
    p_lane text, p_args text, p_options text, p_needs text, p_max_lost integer, p_carried text,
    p_parent text, p_expires float8
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now float8 := headgate.clock();
    v_gen smallint := headgate.generation();
    v_n bigint;
BEGIN
    INSERT INTO headgate.jobs (n, id, task, queue, priority, band, turn, lane, place, args, options,
                               needs, carried, created_at, expires, expires_at, max_lost, parent)
    VALUES (nextval('headgate.places'), p_id, p_task, p_queue, p_priority, p_band, p_turn, p_lane,
            (v_now * 1e6)::bigint, p_args, p_options, p_needs, p_carried, v_now, p_expires,
            v_now + p_expires, p_max_lost, p_parent)
    ON CONFLICT (id) DO NOTHING
    RETURNING n INTO v_n;
    IF v_n IS NULL THEN
        RETURN true;
    END IF;
    INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt, since, gen)
    VALUES (p_queue, p_priority, p_band, p_turn, p_lane, (v_now * 1e6)::bigint, v_n, 0, v_now,
            v_gen);
    RETURN false;
END $$;

-- A task's own name, where it is known by this one too: a job that was submitted under an alias
-- got its own name when it was stamped.
CREATE OR REPLACE FUNCTION headgate.own_name(name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT c.task FROM headgate.catalogue c WHERE c.name = own_name.name), name)
$$;
