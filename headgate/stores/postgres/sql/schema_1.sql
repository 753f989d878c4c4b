-- A state change is a row that moves between these tables in one transaction.
-- Times are seconds since the epoch by this server's clock. Texts that order a line compare
-- byte by byte, as in every other store.

CREATE SEQUENCE headgate.places AS bigint;
CREATE SEQUENCE headgate.tokens AS bigint;

-- `ends`, of the version of the limits: when the first of the operators' words ends. From then on
-- that version is out of date, whoever notices it first.
CREATE TABLE headgate.counters (name text PRIMARY KEY, value bigint NOT NULL, ends float8);
INSERT INTO headgate.counters (name, value) VALUES ('limits', 0);

-- The body of a job, written once. `place` is its place in line: the microsecond at which it was
-- due, so that who is delayed stands where its time puts it, whoever else submits meanwhile; among
-- equals `n` decides. It changes only when a
-- delayed or snoozed job takes a new one, or a worker stamps a job submitted by name.
CREATE TABLE headgate.jobs (
    n bigint PRIMARY KEY,
    id uuid NOT NULL UNIQUE,
    task text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    band text COLLATE "C" NOT NULL,
    turn text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    place bigint NOT NULL,
    args text NOT NULL,
    options text NOT NULL,
    needs text NOT NULL,
    carried text,
    created_at float8 NOT NULL,
    run_at float8,
    expires float8,
    expires_at float8,
    max_lost integer NOT NULL,
    idempotency_key text,
    parent text,
    caps text
);
CREATE INDEX jobs_expiring ON headgate.jobs (expires_at) WHERE expires_at IS NOT NULL;

-- What may be claimed, in the order of claims. The only table a claim scans.
--
-- In generations: all are read always, and new rows go to the current one. Where another session
-- keeps dead rows from being removed, an old generation is emptied as a whole instead, and only
-- there is there ever more than one (see compact_functions.sql).
CREATE TABLE headgate.ready (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    band text COLLATE "C" NOT NULL,
    turn text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    place bigint NOT NULL,
    job bigint NOT NULL,
    attempt integer NOT NULL,
    since float8 NOT NULL,
    gen smallint NOT NULL DEFAULT 0
) PARTITION BY LIST (gen);
CREATE TABLE headgate.ready_0 PARTITION OF headgate.ready (
    PRIMARY KEY (queue, priority, band, turn, lane, place, job)
) FOR VALUES IN (0);

-- Which generation is the current one: that of the highest number. `retired` is the last
-- transaction that may have begun before the one after it became current.
CREATE TABLE headgate.generations (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gen smallint NOT NULL,
    at float8 NOT NULL,
    retired bigint
);
INSERT INTO headgate.generations (gen, at) VALUES (0, 0);

-- What is not due yet. `keeps_place`: a retry; else the job takes its place when it is due.
CREATE TABLE headgate.scheduled (
    run_at float8 NOT NULL,
    job bigint NOT NULL,
    attempt integer NOT NULL,
    keeps_place boolean NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (run_at, job)
);
CREATE UNIQUE INDEX scheduled_job ON headgate.scheduled (job);

-- Jobs whose task nobody has stamped yet.
CREATE TABLE headgate.unrouted (
    task text COLLATE "C" NOT NULL,
    job bigint NOT NULL,
    PRIMARY KEY (task, job)
);

-- Attempts. `slots` is [[group, slot, units], …]; `reserved`: granted ahead, to run in a slot
-- of the same worker's once that is free, not started as far as the store knows.
CREATE TABLE headgate.running (
    token bigint PRIMARY KEY,
    job bigint NOT NULL UNIQUE,
    worker text NOT NULL,
    attempt integer NOT NULL,
    started_at float8 NOT NULL,
    ready_at float8 NOT NULL,
    slots text NOT NULL,
    reserved boolean NOT NULL DEFAULT false,
    op bigint NOT NULL DEFAULT 0,
    progress float8,
    progress_text text NOT NULL DEFAULT '',
    overdue text NOT NULL DEFAULT '',
    released boolean NOT NULL DEFAULT false
);

-- One row per holder, reused in place: `token` is null while nobody holds it. It lives by its
-- worker, or by its own end, or both. `holder` names who took it by hand; a job is `job`. A row
-- without job, worker and holder stands for starts under a rate, which nobody holds.
--
-- All rows are of the epoch that is the highest in `epochs`. Who reads them by it, and reads it in
-- the same statement, does not meet what is left of the epochs before (see compact_functions.sql).
CREATE TABLE headgate.slots (
    epoch bigint NOT NULL,
    grp text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    token bigint,
    holder text NOT NULL,
    job bigint,
    worker text,
    worker_name text NOT NULL,
    units integer NOT NULL,
    since float8 NOT NULL,
    ends float8,
    PRIMARY KEY (epoch, grp, slot)
) WITH (fillfactor = 50);

-- `pages`: the size of the table of slots when the epoch began.
CREATE TABLE headgate.epochs (epoch bigint PRIMARY KEY, pages integer NOT NULL);
INSERT INTO headgate.epochs (epoch, pages) VALUES (1, 0);

-- Attempts before the last one; the last stands with the end of its job.
CREATE TABLE headgate.attempts (
    job bigint NOT NULL,
    token bigint NOT NULL,
    attempt integer NOT NULL,
    worker text NOT NULL,
    started_at float8 NOT NULL,
    ended_at float8 NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL,
    slots text NOT NULL,
    error text,
    PRIMARY KEY (job, token)
);

-- What commands wrote, by attempt. `start` is where a piece begins in all that the attempt wrote,
-- so that what was left out between two pieces shows.
CREATE TABLE headgate.outputs (
    job bigint NOT NULL,
    token bigint NOT NULL,
    seq integer NOT NULL,
    attempt integer NOT NULL,
    stream text NOT NULL,
    at float8 NOT NULL,
    start bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (job, token, seq)
);

-- Jobs that are over. `token` and what follows it tell the last attempt, if there was one.
CREATE TABLE headgate.finished (
    job bigint PRIMARY KEY,
    state text NOT NULL,
    reason text NOT NULL,
    result text,
    error text,
    attempt integer NOT NULL,
    at float8 NOT NULL,
    token bigint,
    outcome text,
    worker text,
    started_at float8,
    slots text
);
CREATE INDEX finished_at ON headgate.finished (state, at);

CREATE TABLE headgate.idempotency (
    key text PRIMARY KEY,
    job bigint NOT NULL,
    digest text NOT NULL
);

-- The places under caps: each is one job's. `rule` says what the cap counts; a place whose holder
-- does not count any more is free, whether or not `job` has been cleared yet.
CREATE TABLE headgate.cap_places (
    grp text COLLATE "C" NOT NULL,
    rule text COLLATE "C" NOT NULL,
    place integer NOT NULL,
    job uuid,
    until float8,
    PRIMARY KEY (grp, rule, place)
) WITH (fillfactor = 70);
CREATE INDEX cap_places_job ON headgate.cap_places (job) WHERE job IS NOT NULL;
CREATE INDEX cap_places_vacant ON headgate.cap_places (grp, rule, place) WHERE job IS NULL;

-- Jobs that stand for another (`after`) and wait until that has left. They are in `unrouted` too,
-- under a name of no task, where claims notice that there are any.
CREATE TABLE headgate.held (
    job uuid NOT NULL,
    after uuid NOT NULL,
    kind text NOT NULL,
    grp text NOT NULL,
    PRIMARY KEY (job, after)
);
CREATE INDEX held_after ON headgate.held (after);

CREATE TABLE headgate.cancels (
    job bigint PRIMARY KEY,
    at float8 NOT NULL,
    who text NOT NULL,
    reason text NOT NULL
);

-- Limits: the words of operators, what files and code declare, what jobs carried. A word is a
-- `limit` (no value: unlimited), a `pause` or a `weight`; it ends by itself at `ends`.
CREATE TABLE headgate.overrides (
    grp text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    value integer,
    who text NOT NULL,
    reason text NOT NULL,
    at float8 NOT NULL,
    ends float8,
    PRIMARY KEY (grp, what)
);

-- `per`: it is a rate, of so many seconds; `burst`: of which no more than so many start at once.
CREATE TABLE headgate.declared (
    name text COLLATE "C" NOT NULL,
    source text NOT NULL,
    declarer text NOT NULL,
    value integer,
    per float8,
    burst integer,
    release text NOT NULL,
    at float8 NOT NULL,
    PRIMARY KEY (name, source, declarer)
);

-- Who declares. `gone`: since when no worker of that name is there.
CREATE TABLE headgate.declarers (
    declarer text PRIMARY KEY,
    at float8 NOT NULL,
    gone float8
);

CREATE TABLE headgate.carried (
    grp text COLLATE "C" PRIMARY KEY,
    value integer,
    at float8 NOT NULL
);
CREATE INDEX carried_at ON headgate.carried (at);

-- A wide lane that waited too long gathers units in these groups.
CREATE TABLE headgate.reservations (
    grp text COLLATE "C" PRIMARY KEY,
    lane text NOT NULL,
    job bigint NOT NULL,
    units integer NOT NULL,
    ends float8 NOT NULL
);

-- A worker found this group full while another held it: who chains short jobs through its
-- slots lets go of them then.
CREATE TABLE headgate.refused (
    grp text COLLATE "C" PRIMARY KEY,
    worker text NOT NULL,
    at float8 NOT NULL
);

-- `gone`: since when no worker that knows the task is there.
CREATE TABLE headgate.catalogue (
    name text COLLATE "C" PRIMARY KEY,
    task text NOT NULL,
    spec text NOT NULL,
    release text NOT NULL,
    at float8 NOT NULL,
    gone float8
);

-- What is submitted by the clock. `times` is the part of the digest that says when. `since`: nothing
-- before it counts. `next_at` is 0 while nobody has worked it out (`planned`), null when it ended.
CREATE TABLE headgate.schedules (
    name text COLLATE "C" PRIMARY KEY,
    spec text NOT NULL,
    digest text NOT NULL,
    times text NOT NULL,
    task text NOT NULL,
    release text NOT NULL,
    at float8 NOT NULL,
    since float8 NOT NULL,
    next_at float8,
    planned boolean NOT NULL,
    last_at float8,
    last_run_at float8,
    last_job text,
    paused boolean NOT NULL DEFAULT false,
    who text NOT NULL DEFAULT '',
    reason text NOT NULL DEFAULT ''
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON headgate.schedules (next_at);

CREATE TABLE headgate.schedule_declarers (
    schedule text COLLATE "C" NOT NULL,
    declarer text NOT NULL,
    PRIMARY KEY (schedule, declarer)
);

-- Runs that were not over when somebody looked last.
CREATE TABLE headgate.schedule_runs (
    schedule text COLLATE "C" NOT NULL,
    job uuid NOT NULL,
    PRIMARY KEY (schedule, job)
);

-- What became of each tick. That there is one row for each is what makes a run exactly one.
CREATE TABLE headgate.ticks (
    schedule text COLLATE "C" NOT NULL,
    at float8 NOT NULL,
    outcome text NOT NULL,
    job text,
    recorded_at float8 NOT NULL,
    through float8,
    count integer NOT NULL,
    who text NOT NULL,
    PRIMARY KEY (schedule, at)
);
CREATE INDEX ticks_recorded ON headgate.ticks (recorded_at);

CREATE TABLE headgate.queues (
    name text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL,
    who text NOT NULL,
    reason text NOT NULL,
    at float8 NOT NULL
);

CREATE TABLE headgate.workers (
    id text PRIMARY KEY,
    name text NOT NULL,
    keeper text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    queues text NOT NULL,
    serves text,
    tasks text NOT NULL,
    concurrency integer NOT NULL,
    started_at float8 NOT NULL,
    state text NOT NULL,
    lease float8 NOT NULL
);

-- One row per worker, so that a heartbeat is one write that nothing else waits for. A row
-- marked dead is never renewed again.
CREATE TABLE headgate.leases (
    worker text PRIMARY KEY,
    ends float8 NOT NULL,
    dead boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Who sleeps until something rings; nobody is notified of what nobody listens for.
CREATE TABLE headgate.ears (
    what text NOT NULL,
    listener text NOT NULL,
    ends float8 NOT NULL,
    PRIMARY KEY (what, listener)
) WITH (fillfactor = 50);

CREATE TABLE headgate.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at float8 NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    who text NOT NULL,
    data text NOT NULL
);
CREATE INDEX events_at ON headgate.events (at);
