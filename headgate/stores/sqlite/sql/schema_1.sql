-- A state change is a row that moves between these tables in one transaction.

-- `ends`, of the version of the limits: when the first of the operators' words ends. From then on
-- that version is out of date, whoever notices it first.
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL,
    ends REAL
) STRICT, WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('place', 0), ('token', 0), ('limits', 0);

-- The body of a job. `place` is its place in line; it changes only when a delayed or snoozed
-- job takes a new one.
CREATE TABLE jobs (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    task TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    band TEXT NOT NULL,
    turn TEXT NOT NULL,
    lane TEXT NOT NULL,
    place INTEGER NOT NULL,
    args TEXT NOT NULL,
    options TEXT NOT NULL,
    needs TEXT NOT NULL,
    created_at REAL NOT NULL,
    run_at REAL,
    expires REAL,
    expires_at REAL,
    max_lost INTEGER NOT NULL,
    idempotency_key TEXT,
    parent TEXT,
    caps TEXT
) STRICT;
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL;

-- What may be claimed, in the order of claims. The only table a claim scans.
CREATE TABLE ready (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    band TEXT NOT NULL,
    turn TEXT NOT NULL,
    lane TEXT NOT NULL,
    place INTEGER NOT NULL,
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (queue, priority, band, turn, lane, place)
) STRICT, WITHOUT ROWID;

-- What is not due yet. `keeps_place`: a retry; else the job takes its place when it is due.
CREATE TABLE scheduled (
    run_at REAL NOT NULL,
    job INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    keeps_place INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (run_at, job)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX scheduled_job ON scheduled (job);

-- Jobs whose task nobody has stamped yet.
CREATE TABLE unrouted (
    task TEXT NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (task, job)
) STRICT, WITHOUT ROWID;

-- Attempts. `slots` is [[group, slot, units], …]; `reserved`: granted ahead, to run in the slots
-- of an attempt of the same worker that ended; it has not started, as far as we were told.
CREATE TABLE running (
    token INTEGER PRIMARY KEY,
    job INTEGER NOT NULL UNIQUE,
    worker TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ready_at REAL NOT NULL,
    slots TEXT NOT NULL,
    progress REAL,
    progress_text TEXT NOT NULL DEFAULT '',
    overdue TEXT NOT NULL DEFAULT '',
    released INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX running_worker ON running (worker);

-- One row per holder. It lives by its worker, or by its own end on the boot clock, or both. A row
-- without job, worker and holder stands for starts under a rate, which nobody holds.
CREATE TABLE slots (
    grp TEXT NOT NULL,
    slot INTEGER NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT NOT NULL,
    job INTEGER,
    worker TEXT,
    worker_name TEXT NOT NULL,
    units INTEGER NOT NULL,
    since REAL NOT NULL,
    ends REAL,
    boot TEXT,
    PRIMARY KEY (grp, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX slots_token ON slots (token);
CREATE INDEX slots_ending ON slots (ends) WHERE worker IS NULL AND holder <> '';

-- Attempts before the last one; the last stands with the end of its job, where it ended so.
CREATE TABLE attempts (
    job INTEGER NOT NULL,
    token INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    slots TEXT NOT NULL,
    error TEXT,
    PRIMARY KEY (job, token)
) STRICT, WITHOUT ROWID;

-- What commands wrote, by attempt. `start` is where a piece begins in all that the attempt wrote,
-- so that what was left out between two pieces shows.
CREATE TABLE outputs (
    job INTEGER NOT NULL,
    token INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    stream TEXT NOT NULL,
    at REAL NOT NULL,
    start INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, token, seq)
) STRICT;

-- Jobs that are over. `token` and what follows it tell the last attempt, if there was one.
CREATE TABLE finished (
    job INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    result TEXT,
    error TEXT,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    token INTEGER,
    outcome TEXT,
    worker TEXT,
    started_at REAL,
    slots TEXT
) STRICT;
CREATE INDEX finished_at ON finished (state, at);

CREATE TABLE idempotency (
    key TEXT PRIMARY KEY,
    job INTEGER NOT NULL,
    digest TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The places under caps: each is one job's. `rule` says what the cap counts; a place whose holder
-- does not count any more is free, whether or not `job` has been cleared yet.
CREATE TABLE cap_places (
    grp TEXT NOT NULL,
    rule TEXT NOT NULL,
    place INTEGER NOT NULL,
    job TEXT,
    until REAL,
    PRIMARY KEY (grp, rule, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX cap_places_job ON cap_places (job) WHERE job IS NOT NULL;
CREATE INDEX cap_places_vacant ON cap_places (grp, rule, place) WHERE job IS NULL;

-- Jobs that stand for another (`after`) and wait until that has left. They are in `unrouted` too,
-- under a name of no task, where claims notice that there are any.
CREATE TABLE held (
    job TEXT NOT NULL,
    after TEXT NOT NULL,
    kind TEXT NOT NULL,
    grp TEXT NOT NULL,
    PRIMARY KEY (job, after)
) STRICT, WITHOUT ROWID;
CREATE INDEX held_after ON held (after);

CREATE TABLE cancels (
    job INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;

-- Limits: the words of operators, what files and code declare, what jobs carried. A word is a
-- `limit` (no value: unlimited), a `pause` or a `weight`; it ends by itself at `ends`.
CREATE TABLE overrides (
    grp TEXT NOT NULL,
    what TEXT NOT NULL,
    value INTEGER,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL,
    ends REAL,
    PRIMARY KEY (grp, what)
) STRICT, WITHOUT ROWID;

-- `per`: it is a rate, of so many seconds; `burst`: of which no more than so many start at once.
CREATE TABLE declared (
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    declarer TEXT NOT NULL,
    value INTEGER,
    per REAL,
    burst INTEGER,
    release TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (name, source, declarer)
) STRICT, WITHOUT ROWID;

-- Who declares. `gone`: since when no worker of that name is there.
CREATE TABLE declarers (
    declarer TEXT PRIMARY KEY,
    at REAL NOT NULL,
    gone REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE carried (
    grp TEXT PRIMARY KEY,
    value INTEGER,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX carried_at ON carried (at);

-- A wide lane that waited too long gathers units in these groups.
CREATE TABLE reservations (
    grp TEXT PRIMARY KEY,
    lane TEXT NOT NULL,
    job INTEGER NOT NULL,
    units INTEGER NOT NULL,
    ends REAL NOT NULL,
    boot TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A worker found this group full for too long: who hands its slots of it on from job to job
-- lets them go. `at` is on the boot clock; what is left of another boot merely ends late.
CREATE TABLE refused (
    grp TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- `gone`: since when no worker that knows the task is there.
CREATE TABLE catalogue (
    name TEXT PRIMARY KEY,
    task TEXT NOT NULL,
    spec TEXT NOT NULL,
    release TEXT NOT NULL,
    at REAL NOT NULL,
    gone REAL
) STRICT, WITHOUT ROWID;

-- What is submitted by the clock. `times` is the part of the digest that says when. `since`: nothing
-- before it counts. `next_at` is 0 while nobody has worked it out (`planned`), null when it ended.
CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    spec TEXT NOT NULL,
    digest TEXT NOT NULL,
    times TEXT NOT NULL,
    task TEXT NOT NULL,
    release TEXT NOT NULL,
    at REAL NOT NULL,
    since REAL NOT NULL,
    next_at REAL,
    planned INTEGER NOT NULL,
    last_at REAL,
    last_run_at REAL,
    last_job TEXT,
    paused INTEGER NOT NULL DEFAULT 0,
    who TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next_at);

CREATE TABLE schedule_declarers (
    schedule TEXT NOT NULL,
    declarer TEXT NOT NULL,
    PRIMARY KEY (schedule, declarer)
) STRICT, WITHOUT ROWID;

-- Runs that were not over when somebody looked last.
CREATE TABLE schedule_runs (
    schedule TEXT NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY (schedule, job)
) STRICT, WITHOUT ROWID;

-- What became of each tick. That there is one row for each is what makes a run exactly one.
CREATE TABLE ticks (
    schedule TEXT NOT NULL,
    at REAL NOT NULL,
    outcome TEXT NOT NULL,
    job TEXT,
    recorded_at REAL NOT NULL,
    through REAL,
    count INTEGER NOT NULL,
    who TEXT NOT NULL,
    PRIMARY KEY (schedule, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX ticks_recorded ON ticks (recorded_at);

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    paused INTEGER NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    keeper TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    serves TEXT,
    tasks TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at REAL NOT NULL,
    state TEXT NOT NULL,
    boot TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    who TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE INDEX events_at ON events (at);
