-- Starts under rates. They are rows of `slots` without worker, job and holder: nobody holds them,
-- each counts until its end, and the token is no attempt's, so no end of an attempt touches it.
--
-- Called by `act`, which has the locks of the groups: nobody else counts or notes starts there. Its
-- time may be a little before that of others who were here since; what they noted ends later then,
-- and counts.

-- What is free where no more than `p_burst` may start in their part of the period.
CREATE OR REPLACE FUNCTION headgate.burst(
    p_name text[], p_value integer[], p_per float8[], p_burst integer[], p_free integer[],
    p_now float8
) RETURNS integer[] LANGUAGE sql
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    -- Free is NULL where the lock of the group is another's: nothing is known of it.
    SELECT array_agg(CASE WHEN g.burst IS NULL OR g.free IS NULL THEN g.free
                          ELSE least(g.free, g.burst - coalesce(h.units, 0)) END ORDER BY g.i)
    FROM unnest(p_name, p_value, p_per, p_burst, p_free)
        WITH ORDINALITY g (name, value, per, burst, free, i)
    LEFT JOIN LATERAL (
        SELECT sum(s.units)::integer AS units FROM headgate.slots s
        WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
          AND s.grp = g.name AND s.token IS NOT NULL AND s.worker IS NULL
          AND s.ends - g.per + g.per * g.burst / g.value > p_now
    ) h ON g.burst IS NOT NULL
$$;

-- So many starts of one group, now: in a row of a moment ago, which then counts as long as its last
-- start does; else in one that nobody needs any more; else in a new one.
CREATE OR REPLACE FUNCTION headgate.note_starts(
    p_group text, p_per float8, p_units integer, p_now float8
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_slot integer;
BEGIN
    -- `since` is the first start of a row, so that it does not go on for ever.
    SELECT s.slot INTO v_slot FROM headgate.slots s
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group AND s.token IS NOT NULL AND s.worker IS NULL AND s.job IS NULL
      AND s.holder = '' AND s.ends > p_now AND abs(s.since - p_now) < p_per / 1000
    LIMIT 1;
    IF FOUND THEN
        UPDATE headgate.slots s
        SET units = s.units + p_units, ends = greatest(s.ends, p_now + p_per)
        WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
          AND s.grp = p_group AND s.slot = v_slot AND s.token IS NOT NULL;
        IF FOUND THEN
            RETURN;
        END IF;
        -- A sweep, which takes no lock of a group, has just found it ended: by a later clock.
    END IF;
    SELECT s.slot INTO v_slot FROM headgate.slots s
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group AND (s.token IS NULL OR (s.worker IS NULL AND s.ends <= p_now))
    ORDER BY s.slot LIMIT 1;
    IF FOUND THEN
        UPDATE headgate.slots s
        SET token = nextval('headgate.tokens'), holder = '', job = NULL, worker = NULL,
            worker_name = '', units = p_units, since = p_now, ends = p_now + p_per
        WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
          AND s.grp = p_group AND s.slot = v_slot;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO headgate.slots (epoch, grp, slot, token, holder, worker_name, units, since, ends)
    SELECT (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1), p_group,
           coalesce(max(s.slot) + 1, 0), nextval('headgate.tokens'), '', '', p_units, p_now,
           p_now + p_per
    FROM headgate.slots s
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group;
END $$;
