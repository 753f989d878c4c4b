-- A worker with nothing to do looks. Where all that stands in line is one job, there is nothing to
-- choose: if it needs nothing, or one slot of a group that has room, it is taken at once, in the
-- same round trip, and nothing else is looked at; nor is there anything to look at where the line
-- is empty. `seen` is what `look` answers, as far as it was looked, `act` what `act` does, or null:
-- nothing was to be taken here. Where both are null, somebody else was at it: look again.
-- `p_version`: of the limits, as the worker knows them; a migration changes it, and whoever has not
-- heard of that is given nothing here. `p_lone`: what that version says of the lanes of jobs that
-- stood alone in line before: [band, lane, group, value, units].
CREATE OR REPLACE FUNCTION headgate.look_and_take(
    p_rings text[], p_worker text, p_queues text[], p_tasks text[], p_skip text[], p_cursors json,
    p_turns integer, p_lanes integer, p_wanted integer, p_heads json, p_due_since float8,
    p_op bigint, p_version bigint, p_lone json
) RETURNS json LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now float8;
    v_job record;
    v_shape json;
    v_empty boolean;
    v_plain boolean := false;
    v_known boolean := false;
    v_lone record;
    v_act json;
    v_began timestamptz;
    v_due float8;
    v_due_took float8;
    v_glance record;
    v_taken record;
    v_seen json;
BEGIN
    SELECT r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job, r.since,
           r.attempt + 1 AS attempt, r.gen, r.ctid AS tid INTO v_job
    FROM headgate.ready r
    -- Down to the job: jobs that were submitted together have the same place, and where they are
    -- in two generations any of them could come first. What is before it would not be seen below.
    ORDER BY r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job LIMIT 1;
    v_empty := v_job.job IS NULL;
    IF NOT v_empty AND (p_queues IS NULL OR v_job.queue = ANY (p_queues)) THEN
        v_shape := v_job.band::json;
        IF (v_shape ->> 0) = ANY (p_tasks) THEN
            v_plain := v_job.lane = '' AND json_array_length(v_shape -> 1) = 0
                       AND json_array_length(v_shape -> 2) = 0;
            IF NOT v_plain AND p_lone IS NOT NULL THEN
                SELECT e ->> 2 AS grp, (e ->> 3)::integer AS value, (e ->> 4)::integer AS units
                INTO v_lone FROM json_array_elements(p_lone) e
                WHERE e ->> 0 = v_job.band AND e ->> 1 = v_job.lane;
                v_known := FOUND;
            END IF;
        END IF;
    END IF;
    IF v_plain THEN
        -- As in `act`: one round trip of a worker at a time, and nobody declares it dead meanwhile.
        PERFORM pg_advisory_xact_lock(headgate.salt(),
                                      headgate.lock_key(E'\x01worker ' || p_worker));
    END IF;
    v_now := headgate.clock();
    IF v_empty OR v_plain OR v_known THEN
        -- How long this takes is told, as `look` does: where dead rows stand in the way, the
        -- next look begins behind them.
        v_began := clock_timestamp();
        SELECT s.run_at INTO v_due FROM headgate.scheduled s
        WHERE s.run_at >= p_due_since ORDER BY s.run_at LIMIT 1;
        v_due_took := extract(epoch FROM clock_timestamp() - v_began)::float8;
        SELECT CASE WHEN c.ends <= v_now THEN -1 ELSE c.value END AS version, c.ends,
               EXISTS (SELECT 1 FROM headgate.unrouted) AS unrouted,
               EXISTS (SELECT 1 FROM headgate.leases l
                       WHERE l.worker > '' AND l.ends <= v_now AND NOT l.dead) AS expired,
               EXISTS (SELECT 1 FROM headgate.leases l
                       WHERE l.worker = p_worker AND NOT l.dead) AS alive,
               NOT v_empty AND (
                   EXISTS (SELECT 1 FROM headgate.queues q WHERE q.name = v_job.queue AND q.paused)
                   OR EXISTS (
                       SELECT 1 FROM headgate.ready r
                       WHERE (r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job) >
                             (v_job.queue, v_job.priority, v_job.band, v_job.turn, v_job.lane,
                              v_job.place, v_job.job))) AS more
        INTO v_glance FROM headgate.counters c WHERE c.name = 'limits';
        -- Who is to stop is told by `look`.
        IF v_empty AND NOT EXISTS (SELECT 1 FROM headgate.cancels) THEN
            RETURN json_build_object('seen', json_build_object(
                'now', v_now, 'version', v_glance.version, 'bands', '{}'::text[],
                'turns', '{}'::text[], 'lanes', '{}'::text[], 'next_due', v_due,
                'due_took', v_due_took, 'next_end', v_glance.ends, 'unrouted', v_glance.unrouted,
                'expired', v_glance.expired), 'act', NULL);
        ELSIF NOT v_empty AND v_glance.version = p_version AND coalesce(v_due > v_now, true)
              -- What has to be done first, and whatever is a choice, is left to the caller.
              AND NOT (v_glance.more OR v_glance.unrouted OR v_glance.expired) THEN
            v_seen := json_build_object(
                'now', v_now, 'version', v_glance.version,
                'bands', json_build_array(json_build_array(v_job.queue, v_job.priority, v_job.band)),
                'turns', json_build_array(
                    json_build_array(0, NULL, ARRAY[v_job.turn], true, '{}'::text[], true)),
                'lanes', json_build_array(json_build_array(
                    0, v_job.turn, v_job.lane, 1, false, v_job.place, v_job.job, v_job.since)),
                'next_due', v_due, 'due_took', v_due_took, 'next_end', v_glance.ends);
            IF v_plain THEN
                IF NOT v_glance.alive THEN
                    RETURN json_build_object('seen', v_seen, 'act', json_build_object('dead', true));
                END IF;
                -- Somebody else may be taking it right now; or has taken it, and its row may be another
                -- job's by now. One that was moved on to another generation is found by the next look.
                DELETE FROM headgate.ready r WHERE r.gen = v_job.gen AND r.ctid = ANY (ARRAY(
                    SELECT x.ctid FROM headgate.ready x
                    WHERE x.gen = v_job.gen AND x.ctid = v_job.tid AND x.job = v_job.job
                    FOR UPDATE SKIP LOCKED));
                IF FOUND THEN
                    WITH taken AS (
                        INSERT INTO headgate.running (token, job, worker, attempt, started_at, ready_at,
                                                      slots, op)
                        VALUES (nextval('headgate.tokens'), v_job.job, p_worker, v_job.attempt, v_now,
                                v_job.since, '[]', p_op)
                        RETURNING token
                    )
                    SELECT json_build_array(json_build_array(
                               t.token, j.id, v_job.attempt, 1, v_job.since, j.created_at, j.args,
                               j.options, '{}'::text[],
                               CASE WHEN v_job.attempt > 1 THEN headgate.history(j.n) END,
                               CASE WHEN j.caps IS NULL THEN 0 WHEN j.caps LIKE '%"waiting"%' THEN 2
                                    ELSE 1 END)) AS claimed,
                           CASE WHEN j.expires_at <= v_now AND v_job.attempt = 1 THEN ARRAY[t.token] END
                               AS expired
                    INTO v_taken
                    FROM taken t CROSS JOIN headgate.jobs j WHERE j.n = v_job.job;
                    RETURN json_build_object('seen', v_seen, 'act', json_build_object(
                        'now', v_now, 'claimed', v_taken.claimed, 'expired', v_taken.expired,
                        'version', v_glance.version));
                END IF;
                RETURN json_build_object('seen', v_seen, 'act', json_build_object(
                    'now', v_now, 'version', v_glance.version));
            -- Whether there is room is decided by `act`, under the lock of the group. This is only not
            -- to ask it in vain: who waits for that is told by `look`.
            ELSIF v_lone.units + coalesce((
                    SELECT sum(s.units) FROM headgate.slots s
                    WHERE s.grp = v_lone.grp AND s.token IS NOT NULL
                      AND s.epoch = (SELECT e.epoch FROM headgate.epochs e
                                     ORDER BY e.epoch DESC LIMIT 1)
                      AND (s.worker IS NOT NULL OR s.ends > v_now)), 0) <= v_lone.value
                  AND NOT EXISTS (SELECT 1 FROM headgate.reservations r
                                  WHERE r.grp = v_lone.grp AND r.ends > v_now)
            THEN
                v_act := headgate.act(
                    p_worker, p_op, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
                    '{}', '{}', '{}', '{}', '{}', '{}', ARRAY[v_job.queue],
                    ARRAY[v_job.priority], ARRAY[v_job.band], ARRAY[v_job.turn],
                    ARRAY[v_job.lane], ARRAY[v_job.place], ARRAY[v_lone.grp],
                    ARRAY[v_lone.value], NULL, NULL, ARRAY[1], ARRAY[0], ARRAY[1],
                    ARRAY[v_lone.units], p_version, ARRAY[1]);
                IF (v_act ->> 'dead')::boolean OR v_act ->> 'claimed' IS NOT NULL THEN
                    RETURN json_build_object('seen', v_seen, 'act', v_act);
                END IF;
                -- To look now would be to keep others waiting for the locks of that group and of the
                -- limits meanwhile: it is for a transaction of its own.
                RETURN json_build_object('seen', NULL, 'act', NULL);
            END IF;
        END IF;
    END IF;
    v_seen := headgate.look(p_rings, p_worker, p_queues, p_tasks, p_skip, p_cursors, p_turns,
                            p_lanes, p_wanted, p_heads, p_due_since);
    RETURN json_build_object('seen', v_seen, 'act', NULL);
END $$;
