"""`headgate migrate`: the tables and functions of a PostgreSQL store, the ledger of a bucket."""

from __future__ import annotations

import click

from headgate.cli.frame import Frame, Verb, pass_frame


@click.command(cls=Verb)
@click.option("--sql", is_flag=True, help="Print the script instead of running it.")
@click.option(
    "--since", type=click.IntRange(min=0), default=0, metavar="VERSION",
    help="With --sql: the version to begin at, else 0 for an empty database.",
)  # fmt: skip
@click.option(
    "--grant", multiple=True, metavar="ROLE",
    help="Let this role work with the tables, which needs no right to change them.",
)  # fmt: skip
@pass_frame
def migrate(frame: Frame, sql: bool, since: int, grant: tuple[str, ...]) -> None:
    """Make or upgrade the schema of a PostgreSQL store, or the ledger of a bucket. Run it after the
    workers of the old version were stopped, and before those of the new one are started; several at
    once do no harm.

    \b
    headgate migrate --url postgresql://owner@db/app --grant app_worker
    headgate migrate --sql > headgate.sql
    """
    from headgate.stores import need_driver, shown

    url = frame.config.url
    if not url.startswith(("postgresql:", "postgres:")):
        if sql or grant:
            raise click.UsageError(f"--sql and --grant are for PostgreSQL, not for {shown(url)}")
        if url.startswith("s3:"):
            _migrate_bucket(frame, url)
            return
        click.echo(f"{shown(url)} needs no migration: it is brought up to date when it is opened")
        return
    need_driver(url)
    from headgate.stores.postgres import schema
    from headgate.stores.postgres.database import Database

    database = Database(url)
    try:
        if sql:
            if since > schema.VERSION:
                raise click.UsageError(f"--since {since}: this Headgate knows {schema.VERSION}")
            click.echo(schema.script(database.schema, since, grant), nl=False)
            return
        found = schema.migrate(database, grant)
    finally:
        database.close()
    before, after = found.version, schema.VERSION
    if frame.as_json:
        frame.print_json({"schema": database.schema, "before": before, "version": after})
    elif found.current:
        click.echo(f"schema {database.schema} has version {after} already")
    elif before == after:
        click.echo(f"schema {database.schema} has version {after}; its functions were made anew")
    else:
        click.echo(f"schema {database.schema} was version {before} and is now {after}")
    for role in grant:
        click.echo(f"role {role} may work with it", err=frame.as_json)


def _migrate_bucket(frame: Frame, url: str) -> None:
    from headgate.stores import need_client, shown

    need_client(url)
    from headgate.stores.bucket import formats

    before, after = formats.migrate(url)
    place = shown(url)
    if frame.as_json:
        frame.print_json({"ledger": place, "before": before, "format": after})
    elif before == after:
        click.echo(f"{place} has format {after} already")
    elif before == 0:
        click.echo(f"{place} is new, and has format {after}")
    else:
        click.echo(f"{place} had format {before} and now has {after}")
