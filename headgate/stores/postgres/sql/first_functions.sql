-- A worker with nothing to do looks. Where all that stands in line is one job that needs nothing,
-- there is nothing to choose: it is taken at once, in the same round trip, and nothing else is
-- looked at. `seen` is what `look` answers, of that one job only, `act` what `act` does, or null:
-- then `seen` is all that `look` sees. `p_version`: of the limits, as the worker knows them; a
-- migration changes it, and whoever has not heard of that is given nothing here.
CREATE OR REPLACE FUNCTION headgate.look_and_take(
    p_rings text[], p_worker text, p_queues text[], p_tasks text[], p_skip text[], p_cursors json,
    p_turns integer, p_lanes integer, p_wanted integer, p_heads json, p_due_since float8,
    p_op bigint, p_version bigint
) RETURNS json LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now float8 := headgate.clock();
    v_job record;
    v_glance record;
    v_shape json;
    v_began timestamptz;
    v_due float8;
    v_due_took float8;
    v_seen json;
    v_act json;
BEGIN
    SELECT r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job, r.since INTO v_job
    FROM headgate.ready r
    -- Down to the job: jobs that were submitted together have the same place, and where they are
    -- in two generations any of them could come first. What is before it would not be seen below.
    ORDER BY r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job LIMIT 1;
    IF v_job.lane = '' AND (p_queues IS NULL OR v_job.queue = ANY (p_queues)) THEN
        v_shape := v_job.band::json;
        IF (v_shape ->> 0) = ANY (p_tasks) AND json_array_length(v_shape -> 1) = 0
           AND json_array_length(v_shape -> 2) = 0 THEN
            -- How long this takes is told, as `look` does: where dead rows stand in the way, the
            -- next look begins behind them.
            v_began := clock_timestamp();
            SELECT s.run_at INTO v_due FROM headgate.scheduled s
            WHERE s.run_at >= p_due_since ORDER BY s.run_at LIMIT 1;
            v_due_took := extract(epoch FROM clock_timestamp() - v_began)::float8;
            SELECT c.value AS version, c.ends INTO v_glance FROM headgate.counters c
            WHERE c.name = 'limits' AND c.value = p_version
              AND coalesce(c.ends > v_now, true)
              AND NOT EXISTS (
                  SELECT 1 FROM headgate.ready r
                  WHERE (r.queue, r.priority, r.band, r.turn, r.lane, r.place, r.job) >
                        (v_job.queue, v_job.priority, v_job.band, v_job.turn, v_job.lane,
                         v_job.place, v_job.job))
              -- What has to be done first is left to the caller.
              AND NOT EXISTS (SELECT 1 FROM headgate.queues q
                              WHERE q.name = v_job.queue AND q.paused)
              AND NOT EXISTS (SELECT 1 FROM headgate.unrouted)
              AND NOT EXISTS (SELECT 1 FROM headgate.leases l
                              WHERE l.worker > '' AND l.ends <= v_now AND NOT l.dead);
            IF v_glance.version IS NOT NULL AND coalesce(v_due > v_now, true) THEN
                v_act := headgate.act(
                    w_id => p_worker, w_op => p_op,
                    f_token => '{}', f_state => '{}', f_reason => '{}', f_result => '{}',
                    f_error => '{}', f_ago => '{}', f_held => '{}', f_keep => '{}',
                    p_token => '{}', p_owner => '{}', p_ago => '{}',
                    r_token => '{}', r_fraction => '{}', r_text => '{}',
                    l_queue => ARRAY[v_job.queue], l_priority => ARRAY[v_job.priority],
                    l_band => ARRAY[v_job.band], l_turn => ARRAY[v_job.turn],
                    l_lane => ARRAY[v_job.lane], l_place => ARRAY[v_job.place],
                    g_name => '{}', g_value => '{}', g_per => NULL, g_burst => NULL,
                    n_lane => '{}', n_choice => '{}', n_group => '{}', n_units => '{}',
                    c_version => v_glance.version, c_order => '{1}');
                v_seen := json_build_object(
                    'now', v_now, 'version', v_glance.version,
                    'bands', json_build_array(
                        json_build_array(v_job.queue, v_job.priority, v_job.band)),
                    'turns', json_build_array(
                        json_build_array(0, NULL, ARRAY[v_job.turn], true, '{}'::text[], true)),
                    'lanes', json_build_array(json_build_array(
                        0, v_job.turn, v_job.lane, 1, false, v_job.place, v_job.job,
                        v_job.since)),
                    'next_due', v_due, 'due_took', v_due_took, 'next_end', v_glance.ends);
                RETURN json_build_object('seen', v_seen, 'act', v_act);
            END IF;
        END IF;
    END IF;
    v_seen := headgate.look(p_rings, p_worker, p_queues, p_tasks, p_skip, p_cursors, p_turns,
                            p_lanes, p_wanted, p_heads, p_due_since);
    RETURN json_build_object('seen', v_seen, 'act', NULL);
END $$;
