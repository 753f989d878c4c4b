-- Attempts that were reserved ahead and never started go back into line, many at a time, as if they
-- had not been granted. Those of which more has to be told are left for statements of their own: who
-- was asked to stop, counts under a cap, comes from a schedule, or holds something. The tokens of
-- those that went.
CREATE OR REPLACE FUNCTION headgate.give_back(p_worker text, p_tokens bigint[], p_scheduled text)
RETURNS bigint[] LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_tokens bigint[];
    v_jobs bigint[];
    v_attempts integer[];
    v_since float8[];
    v_gen smallint;
BEGIN
    -- Who cancels one of them holds this lock: the word is there for the next statement, or comes
    -- when the job is in line again.
    -- Joined by = ANY (ARRAY[…]), as in `act`: one search by token for each.
    PERFORM 1 FROM (SELECT t.token FROM unnest(p_tokens) t (token) ORDER BY t.token) t
    JOIN headgate.running r ON r.token = ANY (ARRAY[t.token])
    WHERE r.worker = p_worker AND r.reserved
    FOR UPDATE OF r;
    SELECT array_agg(r.token), array_agg(r.job), array_agg(r.attempt - 1), array_agg(r.ready_at)
    INTO v_tokens, v_jobs, v_attempts, v_since
    FROM unnest(p_tokens) t (token)
    JOIN headgate.running r ON r.token = ANY (ARRAY[t.token])
    JOIN headgate.jobs j ON j.n = ANY (ARRAY[r.job])
    WHERE r.worker = p_worker AND r.reserved AND r.slots = '[]'
      AND j.caps IS NULL AND strpos(j.options, p_scheduled) = 0
      AND NOT EXISTS (SELECT 1 FROM headgate.cancels c WHERE c.job = ANY (ARRAY[r.job]));
    IF v_tokens IS NULL THEN
        RETURN '{}';
    END IF;
    DELETE FROM headgate.running r USING unnest(v_tokens) t (token)
    WHERE r.token = ANY (ARRAY[t.token]);
    v_gen := headgate.generation();
    INSERT INTO headgate.ready (queue, priority, band, turn, lane, place, job, attempt, since, gen)
    SELECT j.queue, j.priority, j.band, j.turn, j.lane, j.place, j.n, x.attempt, x.since, v_gen
    FROM unnest(v_jobs, v_attempts, v_since) x (job, attempt, since)
    JOIN headgate.jobs j ON j.n = ANY (ARRAY[x.job]);
    RETURN v_tokens;
END $$;
