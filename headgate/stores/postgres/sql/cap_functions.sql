-- Caps: does a submission fit, and what happens when it does not? How places are taken is in
-- place_functions.sql.

-- Submit, where some of the jobs have caps. `jobs` and the answer are as those of `submit`;
-- besides, `refused` is [group, rule, count, cap, existing, until] of a job that was not stored,
-- and `follows` says that it stands for another: that it waits for its end (`cancel`), or merely
-- for somebody to take that out of line (`replace`).
CREATE OR REPLACE FUNCTION headgate.submit_capped(jobs text, quiet boolean DEFAULT false)
RETURNS TABLE (number integer, id text, existing boolean, conflict boolean, refused text,
               follows text)
LANGUAGE plpgsql AS $$
DECLARE
    v_jobs json := jobs::json;
    v_alone boolean;
    v_detail json;
    v_text text;
BEGIN
    -- Who takes several places could wait for somebody who waits for one of them.
    SELECT count(*) > 1 INTO v_alone FROM json_array_elements(v_jobs) e WHERE e ->> 'caps' <> '';
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM headgate.submit_under_caps(v_jobs, v_alone);
            EXIT;
        EXCEPTION
            WHEN SQLSTATE 'HG001' THEN
                v_alone := true;
            WHEN SQLSTATE 'HG002' THEN
                GET STACKED DIAGNOSTICS v_text = PG_EXCEPTION_DETAIL;
                v_detail := v_text::json;
                RETURN QUERY SELECT (v_detail ->> 0)::integer, v_detail ->> 1, true, true,
                                    NULL::text, NULL::text;
                RETURN;
        END;
    END LOOP;
    IF NOT quiet THEN
        PERFORM headgate.ring_anyway('work');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION headgate.submit_under_caps(p_jobs json, p_alone boolean)
RETURNS TABLE (number integer, id text, existing boolean, conflict boolean, refused text,
               follows text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_grp text;
    v_item record;
    v_id uuid;
    v_rule record;
    v_place integer;
    v_other record;
    v_after uuid[];
    v_kinds text[];
    v_groups text[];
    v_undo jsonb;
    v_refused json;
    v_skip uuid;
    v_done record;
    v_met boolean;
BEGIN
    FOR v_grp IN
        SELECT DISTINCT (c ->> 0) COLLATE "C"
        FROM json_array_elements(p_jobs) e, json_array_elements((e ->> 'caps')::json) c ORDER BY 1
    LOOP
        IF p_alone THEN
            PERFORM pg_advisory_xact_lock(
                headgate.salt(), headgate.lock_key(E'\x01cap ' || v_grp));
        ELSE
            PERFORM pg_advisory_xact_lock_shared(
                headgate.salt(), headgate.lock_key(E'\x01cap ' || v_grp));
        END IF;
    END LOOP;
    FOR v_item IN
        SELECT e.job, e.n::integer AS n FROM json_array_elements(p_jobs) WITH ORDINALITY e (job, n)
    LOOP
        v_id := (v_item.job ->> 'id')::uuid;
        v_after := '{}';
        v_kinds := '{}';
        v_groups := '{}';
        v_undo := '[]';
        v_refused := NULL;
        v_skip := NULL;
        -- What is there already takes no second place.
        IF v_item.job ->> 'caps' <> ''
            AND NOT EXISTS (SELECT 1 FROM headgate.jobs j WHERE j.id = v_id)
            AND NOT EXISTS (SELECT 1 FROM headgate.idempotency i WHERE i.key = v_item.job ->> 'key')
        THEN
            FOR v_rule IN
                SELECT c ->> 0 AS grp, c ->> 1 AS rule, (c ->> 2)::integer AS cap,
                       c ->> 3 AS when_full, (c ->> 4)::float8 AS seconds
                FROM json_array_elements((v_item.job ->> 'caps')::json) c
            LOOP
                LOOP
                    IF v_rule.rule = 'period' THEN
                        v_place := headgate.take_period(v_rule.grp, v_id, v_rule.seconds);
                    ELSE
                        v_place := headgate.take_place(
                            v_rule.grp, v_rule.rule, v_rule.cap, v_id, p_alone);
                    END IF;
                    IF v_place IS NOT NULL THEN
                        v_undo := v_undo || jsonb_build_array(jsonb_build_array(
                            v_rule.grp, v_rule.rule, v_place, NULL, NULL));
                        EXIT;
                    END IF;
                    -- Whom the new job stands for: one that it stands for already under another
                    -- cap; with cancel_running the one successor there may be, then the first
                    -- that runs; else the first that waits.
                    SELECT h.* INTO v_other FROM headgate.holders(v_rule.grp, v_rule.rule) h
                    WHERE v_rule.when_full IN ('replace', 'cancel_running') AND v_rule.cap > 0
                      AND h.counts AND h.state <> 'over'
                      AND (h.job = ANY (v_after) OR h.state = 'waiting'
                           OR (v_rule.when_full = 'cancel_running' AND h.state = 'running'))
                    ORDER BY h.job = ANY (v_after) DESC,
                             v_rule.when_full = 'cancel_running' AND h.held DESC,
                             v_rule.when_full = 'cancel_running' AND h.state = 'running' DESC, h.n
                    LIMIT 1;
                    IF NOT FOUND THEN
                        SELECT json_build_array(v_rule.grp, v_rule.rule, count(*), v_rule.cap,
                                   (array_agg(h.job ORDER BY h.place))[1],
                                   CASE v_rule.rule WHEN 'period' THEN min(h.until) END),
                               CASE v_rule.when_full WHEN 'skip'
                                   THEN (array_agg(h.job ORDER BY h.place))[1] END
                        INTO v_refused, v_skip
                        FROM headgate.holders(v_rule.grp, v_rule.rule) h WHERE h.counts;
                        EXIT;
                    END IF;
                    -- A successor stands above the cap. Whoever takes a place must see it there,
                    -- or be before it altogether; and there may be one only.
                    IF v_other.state = 'running' AND NOT p_alone THEN
                        RAISE EXCEPTION 'somebody is to stand above the cap'
                            USING ERRCODE = 'HG001';
                    END IF;
                    -- Others may want to stand for it, too: who has its place locked may. It is
                    -- written to, though nothing changes: who cannot see us, because its snapshot
                    -- is older, must not take it over when the other has ended.
                    UPDATE headgate.cap_places p SET job = p.job
                    WHERE p.grp = v_rule.grp AND p.rule = v_rule.rule
                      AND p.place = v_other.place AND p.job = v_other.job;
                    CONTINUE WHEN NOT FOUND;
                    -- And it must still be as it was, seen by a statement after the lock.
                    PERFORM 1 FROM headgate.holders(v_rule.grp, v_rule.rule, v_other.place - 1) h
                    WHERE h.place = v_other.place AND h.state = v_other.state;
                    CONTINUE WHEN NOT FOUND;
                    IF NOT v_other.job = ANY (v_after) THEN
                        v_after := v_after || v_other.job;
                        v_kinds := v_kinds
                            || CASE v_other.state WHEN 'running' THEN 'cancel' ELSE 'replace' END;
                        v_groups := v_groups || v_rule.grp;
                    END IF;
                    IF v_other.state = 'running' AND v_rule.rule = 'total' THEN
                        -- It counts until it has really ended: we stand above the cap until then.
                        v_place := headgate.append_place(
                            v_rule.grp, v_rule.rule, v_id, v_rule.cap);
                        v_undo := v_undo || jsonb_build_array(jsonb_build_array(
                            v_rule.grp, v_rule.rule, v_place, NULL, NULL));
                    ELSE
                        v_undo := v_undo || jsonb_build_array(jsonb_build_array(
                            v_rule.grp, v_rule.rule, v_other.place, v_other.job, v_other.until));
                        UPDATE headgate.cap_places SET job = v_id
                        WHERE grp = v_rule.grp AND rule = v_rule.rule AND place = v_other.place;
                    END IF;
                    EXIT;
                END LOOP;
                EXIT WHEN v_refused IS NOT NULL;
            END LOOP;
        END IF;
        v_met := false;
        IF v_refused IS NULL THEN
            SELECT * INTO v_done FROM headgate.submit(
                CASE WHEN cardinality(v_after) > 0
                     THEN '[{"held":true,' || substr(ltrim(v_item.job::text), 2) || ']'
                     ELSE '[' || v_item.job || ']' END, true);
            IF v_done.conflict THEN
                -- Nothing is stored then, not of those before it either.
                RAISE EXCEPTION 'a key of other work' USING ERRCODE = 'HG002',
                    DETAIL = json_build_array(v_item.n, v_done.id)::text;
            END IF;
            v_met := v_done.existing;
        END IF;
        -- Not `v_done`: a record that was never assigned may not even be mentioned.
        IF v_refused IS NOT NULL OR v_met THEN
            UPDATE headgate.cap_places p
            SET job = (u ->> 3)::uuid, until = (u ->> 4)::float8
            FROM jsonb_array_elements(v_undo) u
            WHERE p.grp = u ->> 0 AND p.rule = u ->> 1 AND p.place = (u ->> 2)::integer;
        ELSIF cardinality(v_after) > 0 THEN
            INSERT INTO headgate.held (job, after, kind, grp)
            SELECT v_id, a.after, a.kind, a.grp
            FROM unnest(v_after, v_kinds, v_groups) a (after, kind, grp);
            INSERT INTO headgate.unrouted (task, job)
            SELECT E'\x01held', j.n FROM headgate.jobs j WHERE j.id = v_id;
            INSERT INTO headgate.cancels (job, at, who, reason)
            SELECT j.n, headgate.clock(), 'job ' || v_id, 'superseded'
            FROM unnest(v_after, v_kinds) a (after, kind) JOIN headgate.jobs j ON j.id = a.after
            WHERE a.kind = 'cancel'
            ON CONFLICT (job) DO NOTHING;
        END IF;
        number := v_item.n;
        conflict := false;
        refused := NULL;
        follows := NULL;
        IF v_skip IS NOT NULL THEN
            id := v_skip;
            existing := true;
        ELSIF v_refused IS NOT NULL THEN
            id := v_id;
            existing := false;
            refused := v_refused;
        ELSE
            id := v_done.id;
            existing := v_done.existing;
            -- To stand for one that waits for another itself is to wait for that one.
            follows := CASE
                WHEN existing OR cardinality(v_after) = 0 THEN NULL
                WHEN 'cancel' = ANY (v_kinds)
                  OR EXISTS (SELECT 1 FROM headgate.held h WHERE h.job = ANY (v_after))
                THEN 'cancel' ELSE 'replace' END;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
