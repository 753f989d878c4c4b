"""The schema and its versions: `schema_N.sql` brings version N, and the functions are made
anew with every version. A release that changes either has a version of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import StoreError, StoreVersion
from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.parameters import named
from headgate.stores.postgres.trouble import GRANTS
from headgate.stores.relational.transaction import Transaction

_FOLDER = Path(__file__).parent / "sql"
VERSION = max(int(path.stem.removeprefix("schema_")) for path in _FOLDER.glob("schema_*.sql"))

_BEGIN = """\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = '60s';
SET LOCAL statement_timeout = 0;
-- One at a time: who comes second finds nothing left to do.
SELECT pg_advisory_xact_lock(hashtext('headgate.migrate'), 0);"""
_CREATE = """\
CREATE TABLE IF NOT EXISTS headgate.migrations (
    version integer PRIMARY KEY,
    functions text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);"""
_EXPECT = """\
DO $check$
BEGIN
    IF (SELECT coalesce(max(version), 0) FROM headgate.migrations) <> {since} THEN
        RAISE EXCEPTION 'this script begins at version {since}, the schema has version %',
            (SELECT coalesce(max(version), 0) FROM headgate.migrations);
    END IF;
END $check$;"""
# One that takes or gives something else than before cannot be replaced in place.
_DROP_FUNCTIONS = """\
DO $drop$
DECLARE
    old regprocedure;
BEGIN
    FOR old IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace LOOP
        EXECUTE format('DROP ROUTINE %s CASCADE', old);
    END LOOP;
END $drop$;"""
# Whoever works has to read anew what was said of limits before it is granted anything, and finds
# then that this is not the schema which it was made for (`refuse_other`).
_TELL = "UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits';"
_GRANTS = """\
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
-- And on what later migrations by this same role will make.
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema}
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE ON SEQUENCES TO {role};
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {role};"""
_LOOK = """\
SELECT n.oid IS NOT NULL AS there,
       n.oid IS NOT NULL AND has_schema_privilege(n.oid, 'USAGE') AS usable,
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END AS may_create,
       EXISTS (SELECT 1 FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'migrations')
           AS ours,
       EXISTS (SELECT 1 FROM pg_class c WHERE c.relnamespace = n.oid) AS holds
FROM (SELECT 1) AS one LEFT JOIN pg_namespace n ON n.nspname = '{schema}'"""
_VERSION = "SELECT version, functions FROM headgate.migrations ORDER BY version DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the database under our schema's name."""

    there: bool
    usable: bool
    """This role may use what is in it."""
    may_create: bool
    """This role may make what is missing."""
    ours: bool
    holds: bool
    """There is something in it."""
    version: int = 0
    functions: str = ""

    @property
    def current(self) -> bool:
        return self.version == VERSION and self.functions == digest()

    @property
    def difference(self) -> str:
        """How it differs from what this program would make."""
        if not self.version:
            return "is missing"
        if self.version < VERSION:
            return f"has version {self.version}, older than this Headgate's {VERSION}"
        return (
            f"has version {self.version} like this Headgate, but the functions in it are those of"
            " another release"
        )


def functions() -> list[str]:
    """The scripts that make all functions."""
    shared = _FOLDER / "functions.sql"
    return [path.read_text() for path in (shared, *sorted(_FOLDER.glob("*_functions.sql")))]


def digest() -> str:
    """Tells one set of functions from another."""
    return hashlib.sha256("\n".join(functions()).encode()).hexdigest()[:16]


def steps(schema: str, since: int) -> list[str]:
    """The scripts that lead from version `since` to this one, in order."""
    begin = [named(_CREATE, schema)]
    if not since:
        begin.insert(0, f"CREATE SCHEMA IF NOT EXISTS {schema};")
    tables = [
        named((_FOLDER / f"schema_{number}.sql").read_text(), schema)
        for number in range(since + 1, VERSION + 1)
    ]
    made = [named(text, schema) for text in functions()]
    note = (
        f"INSERT INTO headgate.migrations (version, functions) VALUES ({VERSION}, '{digest()}')"
        " ON CONFLICT (version) DO UPDATE SET functions = excluded.functions, at = excluded.at;"
    )
    made = [_DROP_FUNCTIONS.format(schema=schema), *made, named(note, schema)]
    return [*begin, *tables, *(made if not since else [*made, named(_TELL, schema)])]


def grants(schema: str, role: str) -> str:
    quoted = '"' + role.replace('"', '""') + '"'
    return _GRANTS.format(schema=schema, role=quoted)


def script(schema: str = "headgate", since: int = 0, roles: Sequence[str] = ()) -> str:
    """All of it as one script, for psql and whoever reads it first. It happens whole or not at
    all, and refuses to run on any version but `since`."""
    first, *rest = steps(schema, since)
    if not since:
        create, *rest = rest
        first += "\n" + create
    parts = [
        f"-- Headgate: schema {schema}, from version {since} to {VERSION}.",
        named(_BEGIN, schema),
        first,
        named(_EXPECT.format(since=since), schema),
        *rest,
        *(grants(schema, role) for role in roles),
        "COMMIT;",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def look(connection: Connection, schema: str) -> Found:
    row = connection.execute(_LOOK.format(schema=schema).encode()).fetchone()
    assert row is not None
    found = Found(row["there"], row["usable"], row["may_create"], row["ours"], row["holds"])
    if not (found.ours and found.usable):
        return found
    told = connection.execute(named(_VERSION, schema).encode()).fetchone()
    version, made = told or (0, "")
    return Found(
        found.there, found.usable, found.may_create, found.ours, found.holds, version, made
    )


def migrate(database: Database, roles: Sequence[str] = ()) -> Found:
    """Bring the schema to this version, and let `roles` work with it. What was found before;
    safe when several processes do it at once."""
    schema = database.schema
    with database.session() as connection:
        try:
            connection.execute(named(_BEGIN, schema).encode())
            # Read under the lock: another process may have migrated meanwhile.
            found = look(connection, schema)
            refuse_foreign(database, found)
            refuse_closed(database, found)
            if not found.current:
                refuse_helpless(database, found)
                for step in steps(schema, found.version):
                    connection.execute(step.encode())
            for role in roles:
                connection.execute(grants(schema, role).encode())
            connection.execute("COMMIT")
        except BaseException:
            # Not given back with an open transaction: the pool closes it, the server undoes it.
            connection.close()
            raise
    return found


def settle(database: Database) -> None:
    """When a store is opened: is the schema there, and of this version? On an empty database
    it is made at once if this role may do that, so that a first try needs no other step."""
    with database.session() as connection:
        found = look(connection, database.schema)
    refuse_foreign(database, found)
    refuse_closed(database, found)
    if not found.version:
        refuse_helpless(database, found)
        migrate(database)
    elif not found.current:
        raise StoreVersion(
            f"{database.url}: the schema {database.schema} {found.difference}; run `headgate"
            " migrate` of the release that all programs are to use"
        )


def refuse_other(tx: Transaction) -> None:
    """In a program that has the store open: is the schema still the one that it was made for?"""
    row = tx.row(_VERSION)
    found = (0, "") if row is None else (row["version"], row["functions"])
    if found != (VERSION, digest()):
        raise StoreVersion(
            f"the schema was migrated to version {found[0]} of another release while this program"
            f" was at work, which knows version {VERSION}: it is granted nothing any more; start"
            " it anew in that release"
        )


def exists(url: str) -> bool:
    """Has anybody made the schema?"""
    database = Database(url)
    try:
        with database.session() as connection:
            return look(connection, database.schema).there
    finally:
        database.close()


def refuse_foreign(database: Database, found: Found) -> None:
    if found.version > VERSION:
        raise StoreVersion(
            f"{database.url} has schema version {found.version}, this Headgate knows {VERSION}:"
            " it was migrated by a newer one; upgrade this program"
        )
    if found.holds and not found.ours:
        raise StoreVersion(
            f"{database.url}: the schema {database.schema} holds tables of another program; name"
            " another one with ?schema= in the url"
        )


def refuse_closed(database: Database, found: Found) -> None:
    if found.there and not found.usable:
        raise StoreError(
            f"{database.url}: this role may not use the schema {database.schema}; {GRANTS}"
        )


def refuse_helpless(database: Database, found: Found) -> None:
    if not found.may_create:
        raise StoreVersion(
            f"{database.url}: the schema {database.schema} {found.difference}, and this role may"
            " not make it:"
            " run `headgate migrate --grant ROLE`, with the name of this role and the url of one"
            " that may create in this database"
        )
