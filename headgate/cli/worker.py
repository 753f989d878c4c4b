"""`headgate worker`: run the jobs of an app."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.cli.telling import telling
from headgate.worker.options import DEFAULT_GRACE

if TYPE_CHECKING:
    from headgate.worker.options import EventLoop


@click.command(cls=Verb)
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(1), help="Jobs at once in each process.")
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True,
    help="Worker processes.",
)  # fmt: skip
@click.option("--queues", metavar="A,B", help="Only these queues; else all of them.")
@click.option("--burst", is_flag=True, help="Exit when nothing it could run is left.")
@click.option("--name", help="What this worker is called; else host and process.")
@click.option(
    "--shutdown-timeout", type=click.FloatRange(0), default=30.0, show_default=True,
    metavar="SECONDS", help="How long a stop waits for running jobs.",
)  # fmt: skip
@click.option(
    "--grace", type=click.FloatRange(0), default=DEFAULT_GRACE, show_default=True,
    metavar="SECONDS",
    help="How long commands and isolated tasks that must stop have between TERM and KILL.",
)  # fmt: skip
@click.option(
    "--max-jobs-per-process", type=click.IntRange(1), metavar="N",
    help="Replace a process after so many jobs.",
)  # fmt: skip
@click.option(
    "--stall-timeout", type=click.FloatRange(0), metavar="SECONDS",
    help="Kill a process that does not answer for so long.",
)  # fmt: skip
@click.option(
    "--loop", type=click.Choice(["auto", "asyncio", "uvloop"]), default="auto", show_default=True,
    help="The event loop of each process; auto: uvloop, which is faster, where it is installed"
    " (the extra `uvloop`).",
)  # fmt: skip
@click.option(
    "--no-scheduler",
    is_flag=True,
    help="Leave schedules to other workers: submit nothing by the clock.",
)
@telling
@pass_frame
def worker(
    frame: Frame,
    target: str,
    concurrency: int | None,
    processes: int,
    queues: str | None,
    burst: bool,
    name: str | None,
    shutdown_timeout: float,
    grace: float,
    max_jobs_per_process: int | None,
    stall_timeout: float | None,
    loop: EventLoop,
    no_scheduler: bool,
    **told: Any,
) -> None:
    """Run the jobs of MODULE:APP, an App or a Worker, until stopped.

    The module is found from the current directory too. SIGTERM or Ctrl-C stops gracefully, a
    second one at once.

    \b
    headgate worker shop.jobs:app --concurrency 50
    headgate worker shop.jobs:app --queues mail,default --burst
    headgate worker shop.jobs:app --metrics 127.0.0.1:9123 --log-format json
    """
    from headgate.stores import settled
    from headgate.worker.options import WorkerOptions
    from headgate.worker.serve import serve

    if frame.config_file is not None:
        # Every process of the worker reads the configuration for itself, wherever it stands.
        os.environ["HEADGATE_CONFIG"] = str(Path(frame.config_file).absolute())
    options = WorkerOptions(
        target,
        concurrency=concurrency,
        processes=processes,
        queues=None if queues is None else tuple(queues.split(",")),
        burst=burst,
        name=name,
        shutdown_timeout=shutdown_timeout,
        grace=grace,
        max_jobs_per_process=max_jobs_per_process,
        stall_timeout=stall_timeout,
        loop=loop,
        scheduler=not no_scheduler,
        url=None if frame.url is None else settled(frame.url),
        **told,
    ).checked()
    code = serve(options)
    if frame.as_json:
        frame.print_json({"exit": code, "options": asdict(options)})
    sys.exit(code)
