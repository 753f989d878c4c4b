"""The schema and its versions."""

from __future__ import annotations

from headgate.errors import StoreVersion
from headgate.stores.sqlite.database import Database
from headgate.stores.sqlite.queries import script

APPLICATION_ID = 0x48474154  # "HGAT"
VERSION = 1


def migrate(database: Database) -> None:
    """Bring the file to this version; safe when several processes do it at once."""
    with database.read() as tx:
        current = tx.value("PRAGMA user_version") == VERSION
        ours = tx.value("PRAGMA application_id") == APPLICATION_ID
    if current and not ours:
        raise StoreVersion(f"{database.url} belongs to another program; name a file of its own")
    if current:
        return
    with database.write() as tx:
        # Read again under the write lock: another process may have migrated meanwhile.
        version = tx.value("PRAGMA user_version")
        if version > VERSION:
            raise StoreVersion(
                f"{database.url} has schema {version}, this Headgate knows {VERSION}: it was"
                " written by a newer version; upgrade this program"
            )
        if version == 0 and tx.value("SELECT count(*) FROM sqlite_schema"):
            raise StoreVersion(
                f"{database.url} holds tables of another program; name a file of its own"
            )
        for number in range(version + 1, VERSION + 1):
            for statement in statements(script(f"schema_{number}")):
                tx.run(statement)
        tx.run(f"PRAGMA application_id = {APPLICATION_ID}")
        tx.run(f"PRAGMA user_version = {VERSION}")


def statements(text: str) -> list[str]:
    """The statements of a script (none of ours holds a ';' inside)."""
    bare = "\n".join(line.split("--")[0] for line in text.splitlines())
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
