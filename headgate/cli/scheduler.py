"""`headgate scheduler`: run the jobs of a configuration, on their schedules."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.cli.telling import telling

if TYPE_CHECKING:
    from headgate.configuration.model import Scheduled

_FOR_EVER = 10.0 * 365 * 86400
_GRACE = 60.0
ORDERS: dict[int, str] = {signal.SIGHUP: "reload", signal.SIGQUIT: "status", signal.SIGUSR1: "look"}


@click.command(cls=Verb)
@click.argument("file", metavar="CONFIG", type=click.Path())
@click.option(
    "--concurrency", type=click.IntRange(1), default=100, show_default=True,
    help="Runs at once on this machine, whatever their groups.",
)  # fmt: skip
@click.option(
    "--groups", metavar="A,B",
    help="Of jobs in concurrency groups, only those of these, and only in these; else all.",
)  # fmt: skip
@click.option("--queues", metavar="A,B", help="Only jobs of these queues; else all of them.")
@click.option("--name", help="What this scheduler is called; else host and process.")
@telling
@pass_frame
def scheduler(
    frame: Frame,
    file: str,
    concurrency: int,
    groups: str | None,
    queues: str | None,
    name: str | None,
    **told: Any,
) -> None:
    """Run the jobs of CONFIG: a headgate.toml, a dsari.json or dsari.yaml, or a directory of one.

    Schedules and commands, all in this one process and those below it. With a url of PostgreSQL
    the same command on many machines shares the work.

    \b
    SIGTERM, Ctrl-C  stop; a second one stops at once
    SIGHUP           read CONFIG again; a bad one is reported, and nothing changes
    SIGQUIT          say what runs, what waits for what, and how full each group is
    SIGUSR1          look for triggers at once, then the same

    \b
    headgate scheduler headgate.toml
    headgate scheduler /etc/dsari --url postgresql://db/jobs --groups host-a
    """
    from headgate.configuration import variables
    from headgate.stores import settled
    from headgate.worker.options import WorkerOptions
    from headgate.worker.serve import serve

    for number in ORDERS:
        # Until somebody listens, such a signal would end us. Nothing is lost by that: whoever
        # obeys orders reads the configuration after this line.
        signal.signal(number, signal.SIG_IGN)
    path = Path(file).absolute()
    scheduled = _checked(path, frame.url)
    served = None if groups is None else _served(groups, scheduled)
    os.environ[variables.CONFIG] = str(path)
    url = settled(_known(scheduled.config.url))
    _make_data_dir(scheduled)
    os.environ[variables.URL] = url
    options = WorkerOptions(
        "headgate.configuration.target:app",
        concurrency=concurrency,
        queues=None if queues is None else tuple(queues.split(",")),
        groups=served,
        name=name,
        # dsari's rules: a stop waits for what runs, or ends it, in its own time or after a grace.
        shutdown_timeout=0.0 if scheduled.shutdown_kill_runs else _FOR_EVER,
        grace=_GRACE if scheduled.shutdown_kill_grace is None else scheduled.shutdown_kill_grace,
        url=url,
        **told,
    ).checked()
    code = serve(options, orders=ORDERS, called="headgate scheduler")
    if frame.as_json:
        frame.print_json({"exit": code, "options": asdict(options)})
    sys.exit(code)


def _checked(path: Path, url: str | None) -> Scheduled:
    """The configuration, every problem told on a line of its own."""
    from headgate.cli.exits import BAD_INPUT
    from headgate.cli.show import note
    from headgate.configuration.checking import load
    from headgate.configuration.problems import ConfigurationError

    try:
        scheduled, _ = load(path, url=url)
    except ConfigurationError as error:
        for problem in error.problems:
            note(str(problem))
        raise click.exceptions.Exit(BAD_INPUT) from None
    return scheduled


def _known(url: str) -> str:
    """The url, if a store goes by it: else that is told here, and not by what was started."""
    from headgate.stores import open_store

    if url.partition(":")[0] not in ("sqlite", "postgresql", "postgres"):
        open_store(url).close()
    return url


def _make_data_dir(scheduled: Scheduled) -> None:
    from headgate.errors import ConfigError

    try:
        scheduled.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data_dir {scheduled.data_dir} cannot be made: {error.strerror}"
        ) from None


def _served(groups: str, scheduled: Scheduled) -> tuple[str, ...]:
    from headgate.errors import ConfigError

    names = tuple(dict.fromkeys(name.strip() for name in groups.split(",")))
    unknown = [name for name in names if name not in scheduled.groups]
    if unknown:
        known = ", ".join(sorted(scheduled.groups)) or "none"
        raise ConfigError(
            f"--groups: no group {unknown[0]!r} in {scheduled.path}: known are {known}"
        )
    return names
