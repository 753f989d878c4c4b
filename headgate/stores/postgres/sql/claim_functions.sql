-- A worker's round trip: `act` tells what ended and takes what was chosen, `look` shows the
-- line for the next choice. The choice itself (turns, room, one-of) is made by the worker from
-- what it saw; here it is checked against what is true now. A choice may therefore be out of
-- date, which costs a start, and never exactness.
--
-- The settings on both functions keep one plan whatever the statistics say: every step is a
-- probe of a primary key.

-- Ring these bells, then say what stands in line. `p_skip`: bands that are not entered;
-- `p_cursors`: per queue and priority the turn to go on after, as {"queue": {"priority": "turn"}};
-- `p_heads`: where the bands of an earlier look began, as that told it: only these are looked at,
-- from there on, and no dead row before them is passed over. NULL: all there is. `p_due_since`: the
-- same for what is not due yet, by time; 0: all there is.
--
-- The answer: time, version of the limits, and by name
--   bands: [[queue, priority, band], …]; heads: [[queue, priority, band, turn, lane, place], …],
--          the first job of each; took: seconds that it took to come to the first
--   turns: [[band number, [turn, …] after the cursor, all?, [turn, …] from the start, all?], …]
--   lanes: [[band number, turn, lane, jobs up to a bound, more?, place, job, since], …]
--   held:  {group: units}; next_end: when the first slot taken by hand in one of them ends
--   starts: {group: [[when it ends to count, units], …]} of those that are rates
CREATE OR REPLACE FUNCTION headgate.look(
    p_rings text[], p_worker text, p_queues text[], p_tasks text[], p_skip text[], p_cursors json,
    p_turns integer, p_lanes integer, p_wanted integer, p_heads json DEFAULT NULL,
    p_due_since float8 DEFAULT 0
) RETURNS json LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_material = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now float8 := headgate.clock();
    v_bands json[] := '{}';
    v_heads json[] := '{}';
    v_began timestamptz;
    v_took float8;
    v_turns json;
    v_lanes json;
    v_groups text[] := '{}';
    v_more text[];
    v_names text[];
    v_band record;
    v_shape json;
    v_i integer := -1;
    -- The bands that are entered.
    o_number integer[] := '{}';
    o_queue text[] := '{}';
    o_priority smallint[] := '{}';
    o_band text[] := '{}';
    o_turn text[] := '{}';
    o_lane text[] := '{}';
    o_place bigint[] := '{}';
    o_names text[] := '{}';
    v_held json;
    v_starts json;
    v_next_end float8;
    v_due float8;
    v_due_took float8;
    v_glance record;
    v_what text;
BEGIN
    FOREACH v_what IN ARRAY p_rings LOOP
        PERFORM headgate.ring(v_what);
    END LOOP;
    v_began := clock_timestamp();
    FOR v_band IN
        -- Who arrives at a band, a turn or a lane has passed over the dead rows before its first
        -- job, and takes that job along: what follows begins there, and passes over none again.
        WITH RECURSIVE b AS (
            (SELECT r.queue, r.priority, r.band, r.turn, r.lane, r.place FROM headgate.ready r
             WHERE p_heads IS NULL
             ORDER BY r.queue, r.priority, r.band, r.turn, r.lane, r.place LIMIT 1)
            UNION ALL
            SELECT n.* FROM b CROSS JOIN LATERAL (
                SELECT r.queue, r.priority, r.band, r.turn, r.lane, r.place FROM headgate.ready r
                WHERE (r.queue, r.priority, r.band) > (b.queue, b.priority, b.band)
                ORDER BY r.queue, r.priority, r.band, r.turn, r.lane, r.place LIMIT 1
            ) n
        )
        SELECT * FROM b
        UNION ALL
        SELECT n.* FROM json_array_elements(p_heads) h CROSS JOIN LATERAL (
            SELECT r.queue, r.priority, r.band, r.turn, r.lane, r.place FROM headgate.ready r
            WHERE r.queue = h ->> 0 AND r.priority = (h ->> 1)::smallint AND r.band = h ->> 2
              AND (r.turn, r.lane, r.place) >= (h ->> 3, h ->> 4, (h ->> 5)::bigint)
            ORDER BY r.turn, r.lane, r.place LIMIT 1
        ) n
    LOOP
        v_took := coalesce(v_took, extract(epoch FROM clock_timestamp() - v_began)::float8);
        v_heads := v_heads || json_build_array(v_band.queue, v_band.priority, v_band.band,
                                               v_band.turn, v_band.lane, v_band.place);
        v_i := v_i + 1;
        v_bands := v_bands || json_build_array(v_band.queue, v_band.priority, v_band.band);
        v_shape := v_band.band::json;
        CONTINUE WHEN NOT ((v_shape ->> 0) = ANY (p_tasks))
            OR NOT (p_queues IS NULL OR v_band.queue = ANY (p_queues));
        -- The limits that the band needs as a whole, and the names that its keys belong to.
        v_names := '{}';
        IF json_array_length(v_shape -> 1) + json_array_length(v_shape -> 2) > 0 THEN
            SELECT coalesce(array_agg(need ->> 0) FILTER (WHERE need ->> 1 = '0'), '{}'),
                   coalesce(array_agg(need ->> 0) FILTER (WHERE need ->> 1 = '1'), '{}')
            INTO v_more, v_names
            FROM (
                SELECT e AS need FROM json_array_elements(v_shape -> 1) e
                UNION ALL
                SELECT e FROM json_array_elements(v_shape -> 2) m, json_array_elements(m) e
            ) needs;
            v_groups := v_groups || v_more;
        END IF;
        CONTINUE WHEN v_band.band = ANY (p_skip);
        o_number := o_number || v_i;
        o_queue := o_queue || v_band.queue;
        o_priority := o_priority || v_band.priority;
        o_band := o_band || v_band.band;
        o_turn := o_turn || v_band.turn;
        o_lane := o_lane || v_band.lane;
        o_place := o_place || v_band.place;
        o_names := o_names || to_json(v_names)::text;
    END LOOP;

    -- All of them in one statement: where there are many, to begin one costs more than to look.
    WITH t AS MATERIALIZED (
        SELECT o.*, c.cursor, a.turns[:p_turns] AS after, a.n <= p_turns AS all_after,
               w.turns[:w.most] AS start, w.n <= w.most AS all_start,
               a.lanes[:p_turns] || w.lanes[:w.most] AS lanes,
               a.places[:p_turns] || w.places[:w.most] AS places
        FROM unnest(o_number, o_queue, o_priority, o_band, o_turn, o_lane, o_place, o_names)
            o (number, queue, priority, band, turn, lane, place, names)
        CROSS JOIN LATERAL (
            SELECT p_cursors -> o.queue ->> o.priority::text AS cursor
        ) x
        CROSS JOIN LATERAL (
            SELECT x.cursor, x.cursor IS NULL OR o.turn > x.cursor COLLATE "C" AS ahead
        ) c
        CROSS JOIN LATERAL (
            -- After the cursor, and one more to know whether that is all.
            WITH RECURSIVE t AS (
                (SELECT o.turn COLLATE "C" AS turn, o.lane COLLATE "C" AS lane, o.place, 1 AS n
                 WHERE c.ahead
                 UNION ALL
                 (SELECT r.turn, r.lane, r.place, 1 FROM headgate.ready r
                  WHERE NOT c.ahead AND r.queue = o.queue AND r.priority = o.priority
                    AND r.band = o.band AND r.turn > c.cursor
                  ORDER BY r.turn, r.lane, r.place LIMIT 1))
                UNION ALL
                SELECT x.turn, x.lane, x.place, t.n + 1 FROM t CROSS JOIN LATERAL (
                    SELECT r.turn, r.lane, r.place FROM headgate.ready r
                    WHERE r.queue = o.queue AND r.priority = o.priority
                      AND r.band = o.band AND r.turn > t.turn
                    ORDER BY r.turn, r.lane, r.place LIMIT 1
                ) x WHERE t.n <= p_turns
            )
            SELECT coalesce(array_agg(turn), '{}') AS turns, array_agg(lane) AS lanes,
                   array_agg(place) AS places, count(*) AS n FROM t
        ) a
        CROSS JOIN LATERAL (
            -- From the start up to the cursor, so many as are still wanted.
            WITH RECURSIVE t AS (
                SELECT o.turn COLLATE "C" AS turn, o.lane COLLATE "C" AS lane, o.place, 1 AS n
                WHERE a.n <= p_turns AND NOT c.ahead
                UNION ALL
                SELECT x.turn, x.lane, x.place, t.n + 1 FROM t CROSS JOIN LATERAL (
                    SELECT r.turn, r.lane, r.place FROM headgate.ready r
                    WHERE r.queue = o.queue AND r.priority = o.priority
                      AND r.band = o.band AND r.turn > t.turn AND r.turn <= c.cursor
                    ORDER BY r.turn, r.lane, r.place LIMIT 1
                ) x WHERE t.n <= p_turns - a.n
            )
            SELECT coalesce(array_agg(turn), '{}') AS turns, array_agg(lane) AS lanes,
                   array_agg(place) AS places, count(*) AS n,
                   greatest(p_turns - a.n, 0)::integer AS most FROM t
        ) w
    ), u AS MATERIALIZED (
        SELECT t.number, t.names, u.turn, l.lane, least(h.n, p.most) AS jobs, h.n > p.most AS more,
               h.place, h.job, h.since
        FROM t
        CROSS JOIN LATERAL (
            -- Each turn's part of what is wanted.
            SELECT p_wanted / greatest(1, cardinality(t.lanes)) + 1 AS most
        ) p
        CROSS JOIN LATERAL unnest(t.after || t.start, t.lanes, t.places) u (turn, lane, place)
        CROSS JOIN LATERAL (
            WITH RECURSIVE l AS (
                SELECT u.lane COLLATE "C" AS lane, u.place, 1 AS n
                UNION ALL
                SELECT x.lane, x.place, l.n + 1 FROM l CROSS JOIN LATERAL (
                    SELECT r.lane, r.place FROM headgate.ready r
                    WHERE r.queue = t.queue AND r.priority = t.priority
                      AND r.band = t.band AND r.turn = u.turn AND r.lane > l.lane
                    ORDER BY r.lane, r.place LIMIT 1
                ) x WHERE l.n < p_lanes
            )
            SELECT lane, place FROM l
        ) l CROSS JOIN LATERAL (
            SELECT count(*) AS n, min(x.place) AS place, min(x.job) AS job, min(x.since) AS since
            FROM (SELECT r.place, r.job, r.since FROM headgate.ready r
                  WHERE r.queue = t.queue AND r.priority = t.priority
                    AND r.band = t.band AND r.turn = u.turn AND r.lane = l.lane
                    AND r.place >= l.place
                  ORDER BY r.place, r.job LIMIT p.most + 1) x
        ) h
        WHERE h.n > 0  -- others may have taken what was there
    )
    SELECT (SELECT json_agg(json_build_array(
                t.number, t.cursor, t.after, t.all_after, t.start, t.all_start)) FROM t),
           (SELECT json_agg(json_build_array(
                u.number, u.turn, u.lane, u.jobs, u.more, u.place, u.job, u.since)) FROM u),
           v_groups || (SELECT array_agg(
                CASE n.name WHEN '' THEN k.key ELSE n.name || '/' || k.key END)
            FROM u CROSS JOIN LATERAL json_array_elements_text(u.lane::json)
                WITH ORDINALITY k (key, i)
            CROSS JOIN LATERAL (SELECT u.names::json ->> k.i::integer - 1 AS name) n
            WHERE u.lane <> '')
    INTO v_turns, v_lanes, v_groups;

    SELECT json_object_agg(x.grp, x.held), min(x.ends),
           json_object_agg(x.grp, x.starts) FILTER (WHERE x.starts IS NOT NULL)
    INTO v_held, v_next_end, v_starts FROM (
        -- Starts under a rate have neither worker nor job nor holder. When they end to count
        -- matters only where a rate is met that lets nothing start.
        SELECT s.grp, sum(s.units) AS held,
               min(s.ends) FILTER (WHERE s.worker IS NULL AND (s.holder <> '' OR s.job IS NOT NULL))
                   AS ends,
               json_agg(json_build_array(s.ends, s.units))
                   FILTER (WHERE s.worker IS NULL AND s.job IS NULL AND s.holder = '') AS starts
        FROM headgate.slots s
        WHERE s.grp = ANY (v_groups) AND s.token IS NOT NULL
          AND s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
          AND (s.worker IS NOT NULL OR s.ends > v_now)
        GROUP BY s.grp
    ) x;
    v_began := clock_timestamp();
    SELECT s.run_at INTO v_due FROM headgate.scheduled s
    WHERE s.run_at >= p_due_since ORDER BY s.run_at LIMIT 1;
    v_due_took := extract(epoch FROM clock_timestamp() - v_began)::float8;
    SELECT            (SELECT CASE WHEN c.ends <= v_now THEN -1 ELSE c.value END
            FROM headgate.counters c WHERE c.name = 'limits') AS version,
           (SELECT c.ends FROM headgate.counters c WHERE c.name = 'limits') AS words_end,
           EXISTS (SELECT 1 FROM headgate.unrouted) AS unrouted,
           EXISTS (SELECT 1 FROM headgate.leases l
                   WHERE l.worker > '' AND l.ends <= v_now AND NOT l.dead) AS expired,
           (SELECT count(*) FROM headgate.leases l WHERE l.worker > '' AND NOT l.dead) AS workers,
           (SELECT json_object_agg(r.grp, json_build_array(r.lane, r.units))
            FROM headgate.reservations r WHERE r.grp > '' AND r.ends > v_now) AS reservations,
           (SELECT json_agg(r.grp) FROM headgate.refused r
            WHERE r.grp > '' AND r.worker <> p_worker AND r.at > v_now - 1.0) AS refused,
           (SELECT json_agg(q.name) FROM headgate.queues q WHERE q.name > '' AND q.paused) AS paused,
           (SELECT json_agg(json_build_array(r.token, c.reason))
            FROM headgate.cancels c CROSS JOIN LATERAL (
                -- By the job: never through all that ran before and cannot be removed.
                SELECT x.token, x.worker FROM headgate.running x WHERE x.job = c.job OFFSET 0
            ) r
            WHERE r.worker = p_worker) AS cancels
    INTO v_glance;
    RETURN json_build_object(
        'now', v_now, 'bands', v_bands, 'heads', v_heads, 'took', coalesce(v_took, 0),
        'turns', coalesce(v_turns, '[]'), 'lanes', coalesce(v_lanes, '[]'), 'held', v_held, 'starts', v_starts,
        'next_due', v_due, 'due_took', v_due_took, 'next_end', least(v_next_end, v_glance.words_end),
        'version', v_glance.version,
        'unrouted', v_glance.unrouted, 'expired', v_glance.expired, 'workers', v_glance.workers,
        'reservations', v_glance.reservations, 'refused', v_glance.refused,
        'paused', v_glance.paused, 'cancels', v_glance.cancels);
END $$;

-- The jobs of one lane from a place on, up to so many, and the first of them; no row: none.
CREATE OR REPLACE FUNCTION headgate.count_lane(
    p_queue text, p_priority bigint, p_band text, p_turn text, p_lane text, p_since bigint,
    p_most bigint
) RETURNS TABLE (n bigint, place bigint, job bigint, since float8) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT count(*), min(x.place), min(x.job), min(x.since)
    FROM (SELECT r.place, r.job, r.since FROM headgate.ready r
          WHERE r.queue = p_queue AND r.priority = p_priority::smallint AND r.band = p_band
            AND r.turn = p_turn AND r.lane = p_lane AND r.place >= p_since
          ORDER BY r.place, r.job LIMIT p_most) x
    HAVING count(*) > 0;
END $$;

-- Tell what ended, then take what was chosen.
--
-- `f_…`: attempts that are over; of those that were reserved ahead how long ago they started,
-- and what they held while others owned it.
-- `p_…`: attempts reserved ahead that have started, and whose slots they run in.
-- `l_…`: the lanes chosen from, and where the first job of each stood: what is before that has
-- left, and may still be in the way as dead rows; who came there since is found by the next
-- look. `g_…`: the groups that they need and the values in force as of
-- `c_version`, of rates their periods and how many may start at once, if that is less (both NULL
-- where there is no rate); `n_…`: what a job of lane `n_lane` needs: `n_choice` 0 is needed in any case, of
-- those with the same higher number one is picked; `c_order`: one lane number per job wanted,
-- in the order of turns, a negative one for a job that is reserved behind others.
CREATE OR REPLACE FUNCTION headgate.act(
    w_id text, w_op bigint,
    f_token bigint[], f_state text[], f_reason text[], f_result text[], f_error text[],
    f_ago float8[], f_held text[], f_keep boolean[],
    p_token bigint[], p_owner bigint[], p_ago float8[],
    r_token bigint[], r_fraction float8[], r_text text[],
    l_queue text[], l_priority smallint[], l_band text[], l_turn text[], l_lane text[],
    l_place bigint[], g_name text[], g_value integer[], g_per float8[], g_burst integer[],
    n_lane integer[], n_choice integer[], n_group integer[], n_units integer[],
    c_version bigint, c_order integer[]
) RETURNS json LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_material = off SET plan_cache_mode = force_generic_plan
SET enable_sort = on  -- whoever calls it: a session keeps the plans of its first call
AS $$
DECLARE
    v_now float8;
    v_name text;
    v_salt integer := headgate.salt();
    v_told bigint[];
    v_slots text[];
    v_slot_tokens bigint[];
    v_known bigint[];
    v_contended boolean := false;
    v_changed boolean;
    v_version bigint;
    v_refused boolean := false;
    v_free integer[];
    v_counts integer[];
    v_ahead integer[];
    v_reserved boolean[];
    v_held_grant integer[] := '{}';
    v_held_need integer[] := '{}';
    v_first integer[];
    v_last integer[];
    v_lane integer;
    v_need integer;
    v_choice integer;
    v_best integer;
    v_picked integer[];
    v_fits boolean;
    v_tids tid[];
    v_gens smallint[];
    v_gen smallint;
    v_lanes integer[];
    v_numbers integer[];
    v_jobs bigint[];
    v_attempts integer[];
    v_since float8[];
    v_tokens bigint[];
    v_held_texts text[];
    v_expired bigint[];
    v_claimed text;
    v_i integer;
    v_job integer;
    v_group integer;
    v_slot integer;
    v_wanted integer[];
    v_at integer[];
    v_left integer[];
    v_next integer[];
    v_own integer;
    v_own_tids tid[];
    v_own_groups text[];
    v_own_slots integer[];
    v_own_units integer[];
    v_own_held jsonb;
    v_index jsonb;
    v_more_at integer[];
    v_more_left integer[];
    v_free_tids tid[];
    v_free_slots integer[];
    v_free_groups integer[];
    v_re_tids tid[];
    v_re_tokens bigint[];
    v_re_jobs bigint[];
    v_re_units integer[];
    v_new_groups text[];
    v_new_slots integer[];
    v_new_tokens bigint[];
    v_new_jobs bigint[];
    v_new_units integer[];
    v_started integer[];
BEGIN
    -- One round trip of a worker at a time: the same one sent again after a lost answer waits
    -- here until the first has ended, and who wants to declare this worker dead sees that it
    -- is at work.
    PERFORM pg_advisory_xact_lock(v_salt, headgate.lock_key(E'\x01worker ' || w_id));
    SELECT w.name INTO v_name FROM headgate.workers w JOIN headgate.leases l ON l.worker = w.id
    WHERE w.id = w_id AND NOT l.dead;
    v_now := headgate.clock();
    IF v_name IS NULL THEN
        RETURN json_build_object('dead', true);
    END IF;

    -- Lock, then look: all locks come before the first row is written, and what is held is
    -- summed in a later statement, whose snapshot is younger than the locks. Wanted groups are
    -- only tried: somebody at work in one means *contended*, not *full*, and nobody waits here.
    IF cardinality(g_name) > 0 THEN
        -- Shared with all who grant; who changes a limit takes it alone, so after the change
        -- nothing is granted by the value before.
        v_contended := NOT pg_try_advisory_xact_lock_shared(
            v_salt, headgate.lock_key(E'\x01limits'));
        IF v_contended THEN
            v_free := array_fill(0, ARRAY[cardinality(g_name)]);
        ELSE
            -- Those without a limit too: what they hold is written down, and two who write at the
            -- same time would give the same numbers.
            SELECT array_agg(CASE
                WHEN NOT pg_try_advisory_xact_lock(v_salt, headgate.lock_key(g.name)) THEN NULL
                WHEN g.value IS NULL THEN 2000000000
                ELSE 1 END ORDER BY g.i)
            INTO v_free
            FROM unnest(g_name, g_value) WITH ORDINALITY g (name, value, i);
        END IF;
    END IF;

    -- Read after the lock that keeps it from changing. A choice made by other values than are in
    -- force now is not acted on, what was to be reserved included.
    -- A word that has ended since is as good as a change: -1 is no version that anybody chose by.
    SELECT CASE WHEN c.ends <= v_now THEN -1 ELSE c.value END INTO v_version
    FROM headgate.counters c WHERE c.name = 'limits';
    v_changed := cardinality(c_order) > 0 AND (v_version <> c_version OR v_version < 0);

    IF cardinality(p_token) > 0 THEN
        -- The slots go from who ended to who runs in them now, before the ends below release
        -- what is still under their own token.
        -- = ANY (ARRAY[…]), here and below, is an equality by which an index is searched but not
        -- put in order: there is no plan that goes through all of the index instead. A vacuum that
        -- met no living row would make the planner choose that one, over every dead row.
        WITH started AS (
            UPDATE headgate.running r
            SET reserved = false, started_at = v_now - greatest(0, p.ago),
                slots = coalesce(o.slots, r.slots)
            FROM unnest(p_token, p_owner, p_ago) p (token, owner, ago)
            LEFT JOIN headgate.running o ON o.token = ANY (ARRAY[p.owner]) AND o.worker = w_id
            WHERE r.token = ANY (ARRAY[p.token]) AND r.worker = w_id AND r.reserved
              AND (p.owner IS NULL OR o.token IS NOT NULL)
            RETURNING r.token, r.job, p.owner, o.slots, r.started_at
        )
        UPDATE headgate.slots x
        SET token = f.token, job = f.job, since = f.started_at, ends = NULL
        FROM (
            SELECT s.token, s.job, s.owner, s.started_at, y.grp, y.slot, y.epoch FROM started s
            CROSS JOIN LATERAL json_array_elements(s.slots::json) e
            CROSS JOIN LATERAL (
                SELECT z.grp, z.slot, z.epoch FROM headgate.slots z
                WHERE z.grp = e ->> 0 AND z.slot = (e ->> 1)::integer AND z.token = s.owner
                  AND z.epoch = (SELECT e.epoch FROM headgate.epochs e
                                 ORDER BY e.epoch DESC LIMIT 1)
                OFFSET 0
            ) y
            WHERE s.owner IS NOT NULL AND s.slots <> '[]'
        ) f
        WHERE x.epoch = ANY (ARRAY[f.epoch]) AND x.grp = f.grp AND x.slot = f.slot
          AND x.token = f.owner;
        SELECT array_agg(r.token) INTO v_known FROM unnest(p_token) p (token)
        JOIN headgate.running r ON r.token = ANY (ARRAY[p.token])
        WHERE r.worker = w_id AND NOT r.reserved;
    END IF;

    IF cardinality(f_token) > 0 THEN
        -- The fence: an attempt that was declared lost has no row here any more.
        WITH gone AS (
            DELETE FROM headgate.running r
            USING unnest(f_token, f_state, f_reason, f_result, f_error, f_ago, f_held, f_keep)
                f (token, state, reason, result, error, ago, held, keep)
            WHERE r.token = ANY (ARRAY[f.token]) AND r.worker = w_id
            RETURNING r.token, r.job, r.attempt, r.slots, coalesce(f.held, r.slots) AS held,
                      coalesce(v_now - f.ago, r.started_at) AS started_at,
                      f.state, f.reason, f.result, f.error, f.keep
        ), kept AS (
            INSERT INTO headgate.finished (job, state, reason, result, error, attempt, at,
                                           token, outcome, worker, started_at, slots)
            SELECT g.job, g.state, g.reason, g.result, g.error, g.attempt, v_now, g.token,
                   CASE g.state WHEN 'failed' THEN 'error' ELSE g.state END, v_name,
                   g.started_at, g.held
            FROM gone g WHERE g.keep
        )
        SELECT array_agg(g.token), array_agg(g.job) FILTER (WHERE NOT g.keep),
               array_agg(g.slots) FILTER (WHERE g.slots <> '[]'),
               array_agg(g.token) FILTER (WHERE g.slots <> '[]')
        INTO v_told, v_jobs, v_slots, v_slot_tokens FROM gone g;
        IF v_jobs IS NOT NULL THEN
            WITH bodies AS (
                DELETE FROM headgate.jobs j WHERE j.n = ANY (v_jobs) RETURNING j.idempotency_key
            )
            DELETE FROM headgate.idempotency i USING bodies b
            WHERE i.key = ANY (ARRAY[b.idempotency_key]);
            DELETE FROM headgate.attempts a WHERE a.job = ANY (v_jobs);
        END IF;
        IF v_slots IS NOT NULL THEN
            -- They are free from here on, and locked until the end. Those that are taken again
            -- below are written once: every write leaves a dead row behind.
            SELECT array_agg(s.ctid), array_agg(x.grp), array_agg(x.slot), array_agg(s.counted)
            INTO v_own_tids, v_own_groups, v_own_slots, v_own_units
            FROM unnest(v_slots, v_slot_tokens) f (slots, token)
            CROSS JOIN LATERAL (
                SELECT e ->> 0 AS grp, (e ->> 1)::integer AS slot
                FROM json_array_elements(f.slots::json) e
            ) x
            CROSS JOIN LATERAL (
                SELECT y.ctid, CASE WHEN y.worker IS NOT NULL OR y.ends > v_now THEN y.units
                                    ELSE 0 END AS counted
                FROM headgate.slots y
                WHERE y.grp = x.grp AND y.slot = x.slot AND y.token = f.token
                  AND y.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
                FOR UPDATE
            ) s;
        END IF;
        IF EXISTS (SELECT 1 FROM headgate.cancels) THEN
            DELETE FROM headgate.cancels c USING headgate.finished d
            WHERE d.job = ANY (ARRAY[c.job]) AND d.token = ANY (f_token);
            DELETE FROM headgate.cancels c WHERE c.job = ANY (v_jobs);
        END IF;
    END IF;
    IF cardinality(r_token) > 0 THEN
        WITH told AS (
            UPDATE headgate.running r SET progress = p.fraction, progress_text = p.text
            FROM unnest(r_token, r_fraction, r_text) p (token, fraction, text)
            WHERE r.token = ANY (ARRAY[p.token]) AND r.worker = w_id
            RETURNING r.token
        )
        SELECT v_told || array_agg(t.token) INTO v_told FROM told t;
    END IF;

    IF cardinality(c_order) > 0 AND NOT v_changed THEN
        v_counts := array_fill(0, ARRAY[cardinality(l_queue)]);
        v_ahead := v_counts;
        IF cardinality(g_name) = 0 THEN
            FOREACH v_lane IN ARRAY c_order LOOP
                IF v_lane > 0 THEN
                    v_counts[v_lane] := v_counts[v_lane] + 1;
                ELSE
                    v_ahead[-v_lane] := v_ahead[-v_lane] + 1;
                END IF;
            END LOOP;
        ELSE
            SELECT jsonb_object_agg(o.grp, o.units) INTO v_own_held FROM (
                SELECT x.grp, sum(x.units) AS units
                FROM unnest(v_own_groups, v_own_units) x (grp, units) GROUP BY x.grp
            ) o;
            SELECT array_agg(CASE
                WHEN v_free[g.i] IS NULL THEN NULL
                WHEN v_contended THEN 0
                WHEN g.value IS NULL THEN 2000000000
                ELSE g.value - coalesce(h.held, 0)
                     + coalesce((v_own_held ->> g.name)::integer, 0) END ORDER BY g.i)
            INTO v_free
            FROM unnest(g_name, g_value) WITH ORDINALITY g (name, value, i)
            LEFT JOIN LATERAL (
                SELECT sum(s.units)::integer AS held FROM headgate.slots s
                WHERE s.grp = g.name AND s.token IS NOT NULL
                  AND s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
                  AND (s.worker IS NOT NULL OR s.ends > v_now)
            ) h ON g.value IS NOT NULL AND v_free[g.i] IS NOT NULL;
            v_contended := v_contended OR array_position(v_free, NULL) IS NOT NULL;
            IF g_burst IS NOT NULL THEN
                v_free := headgate.burst(g_name, g_value, g_per, g_burst, v_free, v_now);
            END IF;
            -- Where the needs of each lane begin and end.
            v_first := array_fill(1, ARRAY[cardinality(l_queue)]);
            v_last := array_fill(0, ARRAY[cardinality(l_queue)]);
            FOR v_need IN 1 .. cardinality(n_lane) LOOP
                v_lane := n_lane[v_need];
                IF v_last[v_lane] = 0 THEN
                    v_first[v_lane] := v_need;
                END IF;
                v_last[v_lane] := v_need;
            END LOOP;
            FOREACH v_lane IN ARRAY c_order LOOP
                IF v_lane < 0 THEN
                    v_ahead[-v_lane] := v_ahead[-v_lane] + 1;
                    CONTINUE;
                ELSIF v_last[v_lane] = 0 THEN  -- it needs nothing
                    v_counts[v_lane] := v_counts[v_lane] + 1;
                    CONTINUE;
                END IF;
                v_picked := '{}';
                v_fits := true;
                v_choice := 0;
                v_best := 0;
                FOR v_need IN v_first[v_lane] .. v_last[v_lane] LOOP
                    IF n_choice[v_need] <> v_choice AND v_choice > 0 THEN
                        EXIT WHEN v_best = 0;
                        v_picked := v_picked || v_best;
                        v_best := 0;
                    END IF;
                    v_choice := n_choice[v_need];
                    IF coalesce(v_free[n_group[v_need]], 0) >= n_units[v_need] THEN
                        IF v_choice = 0 THEN
                            v_picked := v_picked || v_need;
                        ELSIF v_best = 0 OR v_free[n_group[v_need]] > v_free[n_group[v_best]]
                        THEN
                            v_best := v_need;
                        END IF;
                    ELSIF v_choice = 0 THEN
                        v_fits := false;
                        EXIT;
                    END IF;
                END LOOP;
                IF v_fits AND v_choice > 0 THEN
                    IF v_best = 0 THEN
                        v_fits := false;
                    ELSE
                        v_picked := v_picked || v_best;
                    END IF;
                END IF;
                IF v_fits THEN
                    v_counts[v_lane] := v_counts[v_lane] + 1;
                    FOREACH v_need IN ARRAY v_picked LOOP
                        v_free[n_group[v_need]] := v_free[n_group[v_need]] - n_units[v_need];
                        v_held_grant := v_held_grant || v_counts[v_lane];
                        v_held_need := v_held_need || v_need;
                    END LOOP;
                ELSE
                    v_refused := true;
                END IF;
            END LOOP;
        END IF;

        -- The first of each lane that nobody else is taking right now.
        SELECT array_agg(x.ctid), array_agg(x.gen), array_agg(w.i), array_agg(x.number),
               array_agg(x.job), array_agg(x.attempt + 1), array_agg(x.since),
               array_agg(x.number > w.k)
        INTO v_tids, v_gens, v_lanes, v_numbers, v_jobs, v_attempts, v_since, v_reserved
        FROM unnest(l_queue, l_priority, l_band, l_turn, l_lane, l_place, v_counts, v_ahead)
            WITH ORDINALITY w (queue, priority, band, turn, lane, place, k, ahead, i)
        CROSS JOIN LATERAL (
            SELECT y.*, row_number() OVER () AS number FROM (
                SELECT r.ctid, r.gen, r.job, r.attempt, r.since FROM headgate.ready r
                WHERE r.queue = w.queue AND r.priority = w.priority AND r.band = w.band
                  AND r.turn = w.turn AND r.lane = w.lane AND r.place >= w.place
                ORDER BY r.place, r.job LIMIT w.k + w.ahead FOR UPDATE SKIP LOCKED
            ) y
        ) x
        WHERE w.k + w.ahead > 0;
    END IF;

    IF v_tids IS NOT NULL THEN
        -- A row's address is its own only within its generation.
        FOR v_gen IN SELECT DISTINCT g FROM unnest(v_gens) g LOOP
            DELETE FROM headgate.ready r WHERE r.gen = v_gen AND r.ctid = ANY (ARRAY(
                SELECT t.tid FROM unnest(v_tids, v_gens) t (tid, gen) WHERE t.gen = v_gen));
        END LOOP;
        SELECT array_agg(nextval('headgate.tokens')) INTO v_tokens
        FROM generate_series(1, cardinality(v_tids));
        v_held_texts := array_fill('[]'::text, ARRAY[cardinality(v_tids)]);
        IF cardinality(v_held_need) > 0 THEN
            -- Where the jobs of each lane begin, and how many were found of those granted.
            v_first := array_fill(0, ARRAY[cardinality(l_queue)]);
            v_counts := v_first;
            FOR v_job IN 1 .. cardinality(v_tids) LOOP
                v_lane := v_lanes[v_job];
                IF v_first[v_lane] = 0 THEN
                    v_first[v_lane] := v_job;
                END IF;
                v_counts[v_lane] := v_counts[v_lane] + 1;
            END LOOP;
            v_wanted := array_fill(0, ARRAY[cardinality(g_name)]);
            FOR v_i IN 1 .. cardinality(v_held_need) LOOP
                v_need := v_held_need[v_i];
                IF v_held_grant[v_i] <= v_counts[n_lane[v_need]]
                   AND (g_per IS NULL OR g_per[n_group[v_need]] IS NULL) THEN
                    v_wanted[n_group[v_need]] := v_wanted[n_group[v_need]] + 1;
                END IF;
            END LOOP;
            -- What has just become free is used again, then rows that nobody holds, and new ones
            -- are made where there are not enough. Nobody else gives out slots of these groups:
            -- the locks are ours.
            v_at := array_fill(0, ARRAY[cardinality(g_name)]);
            v_left := v_at;
            v_more_at := v_at;
            v_more_left := v_at;
            IF v_own_tids IS NOT NULL THEN
                SELECT jsonb_object_agg(g.name, g.i) INTO v_index
                FROM unnest(g_name) WITH ORDINALITY g (name, i);
                SELECT array_agg(o.tid ORDER BY o.i), array_agg(o.slot ORDER BY o.i),
                       array_agg(o.i ORDER BY o.i)
                INTO v_free_tids, v_free_slots, v_free_groups
                FROM (
                    SELECT x.tid, x.slot, (v_index ->> x.grp)::integer AS i
                    FROM unnest(v_own_tids, v_own_slots, v_own_groups) x (tid, slot, grp)
                ) o
                WHERE o.i IS NOT NULL;
                FOR v_i IN 1 .. coalesce(cardinality(v_free_groups), 0) LOOP
                    v_group := v_free_groups[v_i];
                    IF v_left[v_group] = 0 THEN
                        v_at[v_group] := v_i;
                    END IF;
                    v_left[v_group] := v_left[v_group] + 1;
                END LOOP;
            END IF;
            v_own := coalesce(cardinality(v_free_groups), 0);
            SELECT v_free_tids || array_agg(f.tid), v_free_slots || array_agg(f.slot),
                   v_free_groups || array_agg(g.i::integer)
            INTO v_free_tids, v_free_slots, v_free_groups
            FROM unnest(g_name, v_wanted, v_left) WITH ORDINALITY g (name, k, own, i)
            CROSS JOIN LATERAL (
                SELECT s.ctid AS tid, s.slot FROM headgate.slots s
                WHERE s.grp = g.name
                  AND s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
                  AND (s.token IS NULL OR (s.worker IS NULL AND s.ends <= v_now))
                ORDER BY s.slot LIMIT g.k - g.own FOR UPDATE
            ) f
            WHERE g.k > g.own;
            FOR v_i IN v_own + 1 .. coalesce(cardinality(v_free_groups), 0) LOOP
                v_group := v_free_groups[v_i];
                IF v_more_left[v_group] = 0 THEN
                    v_more_at[v_group] := v_i;
                END IF;
                v_more_left[v_group] := v_more_left[v_group] + 1;
            END LOOP;
            v_next := NULL;
            FOR v_i IN 1 .. cardinality(v_held_need) LOOP
                v_need := v_held_need[v_i];
                v_lane := n_lane[v_need];
                CONTINUE WHEN v_held_grant[v_i] > v_counts[v_lane];
                v_job := v_first[v_lane] + v_held_grant[v_i] - 1;
                v_group := n_group[v_need];
                IF v_left[v_group] = 0 AND v_more_left[v_group] > 0 THEN
                    v_at[v_group] := v_more_at[v_group];
                    v_left[v_group] := v_more_left[v_group];
                    v_more_left[v_group] := 0;
                END IF;
                IF g_per IS NOT NULL AND g_per[v_group] IS NOT NULL THEN
                    -- A start under a rate: nobody holds it, and it is noted below.
                    v_slot := -2;
                    v_started := coalesce(v_started, array_fill(0, ARRAY[cardinality(g_name)]));
                    v_started[v_group] := v_started[v_group] + n_units[v_need];
                ELSIF v_left[v_group] > 0 THEN
                    v_slot := v_free_slots[v_at[v_group]];
                    v_re_tids := v_re_tids || v_free_tids[v_at[v_group]];
                    v_re_tokens := v_re_tokens || v_tokens[v_job];
                    v_re_jobs := v_re_jobs || v_jobs[v_job];
                    v_re_units := v_re_units || n_units[v_need];
                    v_at[v_group] := v_at[v_group] + 1;
                    v_left[v_group] := v_left[v_group] - 1;
                ELSE
                    IF v_next IS NULL THEN
                        SELECT array_agg(coalesce(s.slot, -1) ORDER BY g.i) INTO v_next
                        FROM unnest(g_name) WITH ORDINALITY g (name, i)
                        LEFT JOIN LATERAL (
                            SELECT x.slot FROM headgate.slots x
                            WHERE x.grp = g.name AND x.epoch = (
                                SELECT e.epoch FROM headgate.epochs e
                                ORDER BY e.epoch DESC LIMIT 1)
                            ORDER BY x.slot DESC LIMIT 1
                        ) s ON true;
                    END IF;
                    v_next[v_group] := v_next[v_group] + 1;
                    v_slot := v_next[v_group];
                    v_new_groups := v_new_groups || g_name[v_group];
                    v_new_slots := v_new_slots || v_slot;
                    v_new_tokens := v_new_tokens || v_tokens[v_job];
                    v_new_jobs := v_new_jobs || v_jobs[v_job];
                    v_new_units := v_new_units || n_units[v_need];
                END IF;
                v_held_texts[v_job] := CASE v_held_texts[v_job]
                    WHEN '[]' THEN '[' ELSE rtrim(v_held_texts[v_job], ']') || '],' END
                    || '[' || to_json(g_name[v_group])::text || ',' || v_slot || ','
                    || n_units[v_need] || ']]';
            END LOOP;
            IF v_started IS NOT NULL THEN
                PERFORM headgate.note_starts(g.name, g.per, g.units, v_now)
                FROM unnest(g_name, g_per, v_started) g (name, per, units) WHERE g.units > 0;
            END IF;
            IF v_re_tids IS NOT NULL THEN
                UPDATE headgate.slots s
                SET token = x.token, job = x.job, units = x.units, holder = '', worker = w_id,
                    worker_name = v_name, since = v_now, ends = NULL
                FROM unnest(v_re_tids, v_re_tokens, v_re_jobs, v_re_units)
                    x (tid, token, job, units)
                WHERE s.ctid = x.tid;
            END IF;
            IF v_new_slots IS NOT NULL THEN
                INSERT INTO headgate.slots (grp, epoch, slot, token, job, units, holder, worker,
                                            worker_name, since)
                SELECT x.grp, (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1),
                       x.slot, x.token, x.job, x.units, '', w_id, v_name, v_now
                FROM unnest(v_new_groups, v_new_slots, v_new_tokens, v_new_jobs, v_new_units)
                    x (grp, slot, token, job, units);
            END IF;
        END IF;
        INSERT INTO headgate.running (token, job, worker, attempt, started_at, ready_at, slots,
                                      reserved, op)
        SELECT t.token, t.job, w_id, t.attempt, v_now, t.since, t.held, t.reserved, w_op
        FROM unnest(v_tokens, v_jobs, v_attempts, v_since, v_held_texts, v_reserved)
            t (token, job, attempt, since, held, reserved);
        SELECT '[' || string_agg(
                   '[' || t.token || ',"' || j.id || '",' || t.attempt || ','
                   || CASE WHEN t.reserved THEN -t.lane ELSE t.lane END || ','
                   || t.since || ',' || j.created_at || ',' || to_json(j.args)::text || ','
                   || to_json(j.options)::text || ',' || t.held || ','
                   || CASE WHEN t.attempt > 1 THEN headgate.history(j.n)::text ELSE 'null' END
                   || CASE WHEN j.caps IS NULL THEN ']'
                           WHEN j.caps LIKE '%"waiting"%' THEN ',2]' ELSE ',1]' END,
                   ',' ORDER BY t.i) || ']',
               array_agg(t.token) FILTER (WHERE j.expires_at <= v_now AND t.attempt = 1)
        INTO v_claimed, v_expired
        FROM unnest(v_tokens, v_jobs, v_attempts, v_since, v_held_texts, v_lanes, v_reserved)
            WITH ORDINALITY t (token, job, attempt, since, held, lane, reserved, i)
        JOIN headgate.jobs j ON j.n = ANY (ARRAY[t.job]);
    END IF;
    IF v_own_tids IS NOT NULL THEN
        IF v_re_tids IS NOT NULL THEN
            v_own_tids := ARRAY(SELECT unnest(v_own_tids) EXCEPT SELECT unnest(v_re_tids));
        END IF;
        IF cardinality(v_own_tids) > 0 THEN
            UPDATE headgate.slots s SET token = NULL, worker = NULL, job = NULL, ends = NULL
            WHERE s.ctid = ANY (v_own_tids);
        END IF;
    END IF;
    RETURN json_build_object(
        'now', v_now, 'claimed', v_claimed::json, 'expired', v_expired, 'told', v_told,
        'known', v_known, 'contended', v_contended, 'changed', v_changed, 'refused', v_refused,
        'version', v_version);
END $$;

-- How often the job failed and was lost before.
CREATE OR REPLACE FUNCTION headgate.history(job bigint) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_object_agg(a.outcome, a.n) FROM (
        SELECT outcome, count(*) AS n FROM headgate.attempts WHERE attempts.job = history.job
        GROUP BY outcome
    ) a
$$;

-- The attempts of one operation, for a worker that did not hear the answer.
CREATE OR REPLACE FUNCTION headgate.claimed_by(worker text, op bigint) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT json_agg(json_build_array(
        json_build_array(j.queue, j.priority, j.band, j.turn, j.lane, r.reserved,
                         r.attempt = 1 AND coalesce(j.expires_at <= r.started_at, false)),
        r.token, j.id, r.attempt, 0, r.ready_at, j.created_at, j.args, j.options, r.slots::json,
        CASE WHEN r.attempt > 1 THEN headgate.history(j.n) END,
        CASE WHEN j.caps IS NULL THEN 0 WHEN j.caps LIKE '%"waiting"%' THEN 2 ELSE 1 END)
        ORDER BY r.token)
    FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job
    WHERE r.worker = claimed_by.worker AND r.op = claimed_by.op
$$;
