-- A worker with nothing to do looks. Where all that it finds is one job that needs nothing, there
-- is nothing to choose: it is taken at once, in the same round trip. `seen` is what `look` answers,
-- `act` what `act` does, or null. `p_version`: of the limits, as the worker knows them; a migration
-- changes it, and whoever has not heard of that is given nothing here.
CREATE OR REPLACE FUNCTION headgate.look_and_take(
    p_rings text[], p_worker text, p_queues text[], p_tasks text[], p_skip text[], p_cursors json,
    p_turns integer, p_lanes integer, p_wanted integer, p_heads json, p_due_since float8,
    p_op bigint, p_version bigint
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    v_seen json := headgate.look(p_rings, p_worker, p_queues, p_tasks, p_skip, p_cursors, p_turns,
                                 p_lanes, p_wanted, p_heads, p_due_since);
    v_band json := v_seen -> 'bands' -> 0;
    v_lane json := v_seen -> 'lanes' -> 0;
    v_act json;
BEGIN
    IF json_array_length(v_seen -> 'lanes') = 1 AND json_array_length(v_seen -> 'bands') = 1
        AND v_lane ->> 3 = '1' AND v_lane ->> 4 = 'false'
        -- Read, not searched for: a task may have any name, that of an empty list too.
        AND json_array_length((v_band ->> 2)::json -> 1) = 0
        AND json_array_length((v_band ->> 2)::json -> 2) = 0 AND v_lane ->> 2 = ''
        -- What has to be done first is left to the caller.
        AND v_seen ->> 'paused' IS NULL AND v_seen ->> 'expired' = 'false'
        AND v_seen ->> 'unrouted' = 'false'
        AND (v_seen ->> 'version')::bigint >= 0 AND (v_seen ->> 'version')::bigint = p_version
        AND coalesce((v_seen ->> 'next_due')::float8 > (v_seen ->> 'now')::float8, true)
    THEN
        v_act := headgate.act(
            w_id => p_worker, w_op => p_op,
            f_token => '{}', f_state => '{}', f_reason => '{}', f_result => '{}', f_error => '{}',
            f_ago => '{}', f_held => '{}', f_keep => '{}',
            p_token => '{}', p_owner => '{}', p_ago => '{}',
            r_token => '{}', r_fraction => '{}', r_text => '{}',
            l_queue => ARRAY[v_band ->> 0], l_priority => ARRAY[(v_band ->> 1)::smallint],
            l_band => ARRAY[v_band ->> 2], l_turn => ARRAY[v_lane ->> 1],
            l_lane => ARRAY[v_lane ->> 2], l_place => ARRAY[(v_lane ->> 5)::bigint],
            g_name => '{}', g_value => '{}', g_per => NULL, g_burst => NULL,
            n_lane => '{}', n_choice => '{}', n_group => '{}', n_units => '{}',
            c_version => (v_seen ->> 'version')::bigint, c_order => '{1}');
    END IF;
    RETURN json_build_object('seen', v_seen, 'act', v_act);
END $$;
