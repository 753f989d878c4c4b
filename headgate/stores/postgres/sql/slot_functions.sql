-- Slots by hand: each operation is one statement, and a transaction of its own.
--
-- Lock, then look: each statement of these functions has a snapshot of its own, so what is read
-- after the locks is what their former holder left. The clock is read after them too: an end that
-- passed during the wait has passed.

-- Take a slot of a group if there is room in it now. `p_said`, `p_value`: what operators, files and
-- code say its value is, as of version `p_version` of their words; where nobody says anything, the
-- carried value counts. `p_carries`: the caller brings one, which is recorded by now as a rule.
--
-- `outcome` is `taken`; `full`; or `ask`, with nothing changed, where there is more to it than
-- counting: other words are in force by now, no value is known or it is too small, units are
-- reserved for somebody, or a worker's lease has ended and its slots are to be taken away first.
CREATE OR REPLACE FUNCTION headgate.take_slot(
    p_group text, p_units integer, p_holder text, p_worker text, p_lease float8,
    p_version bigint, p_said boolean, p_value integer, p_carries boolean,
    OUT outcome text, OUT slot integer, OUT token bigint, OUT at float8
) LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_value integer := p_value;
    v_plain boolean;
    v_seen record;
BEGIN
    -- First the limits, then the group: the order of all who grant.
    PERFORM pg_advisory_xact_lock_shared(headgate.salt(), headgate.lock_key(E'\x01limits'));
    PERFORM pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(p_group));
    at := headgate.clock();
    outcome := 'ask';
    SELECT c.value = p_version AND (c.ends IS NULL OR c.ends > at)
           AND NOT EXISTS (SELECT 1 FROM headgate.reservations r
                           WHERE r.grp = p_group AND r.ends > at)
           AND NOT EXISTS (SELECT 1 FROM headgate.leases l
                           WHERE l.worker > '' AND l.ends <= at AND NOT l.dead)
    INTO v_plain FROM headgate.counters c WHERE c.name = 'limits';
    IF v_plain IS NOT TRUE THEN
        RETURN;
    END IF;
    IF p_carries OR NOT p_said THEN
        SELECT CASE WHEN p_said THEN p_value ELSE c.value END INTO v_value
        FROM headgate.carried c WHERE c.grp = p_group;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF v_value > 0 AND v_value < p_units THEN
        RETURN;
    END IF;

    SELECT coalesce(sum(s.units) FILTER (
               WHERE s.token IS NOT NULL AND (s.worker IS NOT NULL OR s.ends > at)), 0) AS held,
           min(s.slot) FILTER (
               WHERE s.token IS NULL OR (s.worker IS NULL AND s.ends <= at)) AS free,
           coalesce(max(s.slot) + 1, 0) AS next,
           bool_or(s.token IS NOT NULL AND s.worker IS NULL AND s.ends <= at) AS ended
    INTO v_seen FROM headgate.slots s
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group;
    IF v_seen.ended THEN
        -- Expiry is taken, not observed: who extends one of them later finds it gone.
        UPDATE headgate.slots s
        SET token = NULL, job = NULL, worker = NULL, ends = NULL, since = at
        WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
          AND s.grp = p_group AND s.token IS NOT NULL AND s.worker IS NULL AND s.ends <= at;
    END IF;
    IF v_seen.held + p_units > v_value THEN
        outcome := 'full';
        RETURN;
    END IF;

    token := nextval('headgate.tokens');
    slot := coalesce(v_seen.free, v_seen.next);
    -- In the row that an earlier holder left, if there is one: new index entries for every holder
    -- would be dead ones soon.
    UPDATE headgate.slots s
    SET token = take_slot.token, holder = p_holder, job = NULL, worker = NULL,
        worker_name = p_worker, units = p_units, since = at, ends = at + p_lease
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group AND s.slot = take_slot.slot AND s.token IS NULL;
    IF NOT FOUND THEN
        -- Two of the same number cannot be: the key of the table refuses the second.
        INSERT INTO headgate.slots (epoch, grp, slot, token, holder, worker_name, units, since,
                                    ends)
        SELECT (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1), p_group,
               take_slot.slot, take_slot.token, p_holder, p_worker, p_units, at, at + p_lease;
    END IF;
    outcome := 'taken';
END $$;

-- A later end for a slot that still lives: `p_seconds` more than it has left. NULL: it does not
-- live any more. Under the lock of the group: somebody who counts there just now either finds the
-- new end or has counted the slot as ended, and then its end has passed by our later clock too.
CREATE OR REPLACE FUNCTION headgate.extend_slot(
    p_group text, p_slot integer, p_token bigint, p_seconds float8
) RETURNS float8 LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now float8;
    v_ends float8;
BEGIN
    PERFORM pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(p_group));
    v_now := headgate.clock();
    UPDATE headgate.slots s SET ends = greatest(v_now, coalesce(s.ends, v_now)) + p_seconds
    WHERE s.epoch = (SELECT e.epoch FROM headgate.epochs e ORDER BY e.epoch DESC LIMIT 1)
      AND s.grp = p_group AND s.slot = p_slot AND s.token = p_token
      AND (s.worker IS NOT NULL OR s.ends > v_now)
    RETURNING s.ends INTO v_ends;
    RETURN v_ends;
END $$;
