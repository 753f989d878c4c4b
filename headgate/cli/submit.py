"""`headgate submit`: a job by the name of its task."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headgate.cli import values
from headgate.cli.frame import Frame, Verb, pass_frame

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.handle import JobHandle


@click.command(cls=Verb)
@click.argument("task")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--queue", help="The queue; else the task's own.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Lower goes first.")
@click.option(
    "--delay", metavar="SECONDS|2h", callback=values.span, help="Not before so long from now."
)
@click.option("--at", metavar="ISO", callback=values.moment, help="Not before this moment.")
@click.option("--idempotency-key", metavar="KEY", help="The same key never makes a second job.")
@click.option("--concurrency-group", metavar="GROUP", help="In place of the task's own limit.")
@click.option(
    "--concurrency-limit",
    metavar="N|none",
    callback=values.limit,
    help="Counts only where nothing declares one.",
)
@click.option(
    "--app", "target", metavar="MODULE:APP", envvar="HEADGATE_SUBMIT_APP",
    help="Take the task from this app.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse a task that nobody has declared yet.")
@click.option("--wait", is_flag=True, help="Wait for the job and print its result.")
@click.option(
    "--timeout",
    metavar="SECONDS|2h",
    callback=values.span,
    help="With --wait: give up after so long; the job goes on.",
)
@pass_frame
def submit(
    frame: Frame,
    task: str,
    arguments: str,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    at: datetime | None,
    idempotency_key: str | None,
    concurrency_group: str | None,
    concurrency_limit: int | str | None,
    target: str | None,
    strict: bool,
    wait: bool,
    timeout: float | None,
) -> None:
    """Submit a job of TASK with its arguments as JSON (`-` reads them from stdin).

    Prints the job's id; with --wait its result, and exits 1 if the job fails. Where a cap of
    the task refuses the job, nothing is stored and the exit code is 5.

    \b
    headgate submit charge '{"tenant_id": "acme", "amount": 3}'
    headgate submit report --at 2026-08-01T06:00 --queue slow
    """
    from headgate.errors import UnknownTask

    payload = _payload(arguments)
    given: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": at,
        "idempotency_key": idempotency_key,
        "concurrency_group": concurrency_group,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if concurrency_limit is not None:
        options["concurrency_limit"] = None if concurrency_limit == "none" else concurrency_limit
    app = _app(frame, target)
    names = _names_in_force(frame) if target is None else frozenset[str]()
    stray = bool(names) and task not in names
    try:
        handle = app.submit(task, payload, strict=strict or stray, **options)
    except UnknownTask:
        if not stray:
            raise
        raise UnknownTask(
            f"no job {task!r} in {frame.config.path}, and no worker has declared a task of that"
            f" name: known are {', '.join(sorted(names))}"
        ) from None
    if wait:
        _wait(frame, app, handle, timeout)
    elif frame.as_json:
        from headgate.cli import data

        frame.print_json(data.job(app.get_job(handle.id)))
    else:
        click.echo(handle.id)


def _names_in_force(frame: Frame) -> frozenset[str]:
    """The jobs of the configuration, if one with jobs is in force: then nobody is expected who
    will know other tasks some day."""
    from headgate.configuration.checking import job_names

    path = frame.config.path
    return frozenset() if path is None else job_names(path)


def _payload(text: str) -> object:
    if text == "-":
        text = sys.stdin.read()
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the arguments are not valid JSON: {error}") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _app(frame: Frame, target: str | None) -> App:
    from headgate.app import App

    if target is None:
        app = App(config=frame.config)
    else:
        from headgate.worker.target import find_target

        app = find_target(target).app
        if frame.url is not None:
            app._url = frame.url
    click.get_current_context().call_on_close(app.close)
    return app


def _wait(frame: Frame, app: App, handle: JobHandle[Any], timeout: float | None) -> None:
    from headgate.cli.show import note
    from headgate.errors import JobCancelled, JobFailed

    show = click.echo if not frame.as_json else None
    if sys.stderr.isatty():
        click.echo(f"job {handle.id}", err=True)
    try:
        handle.result(timeout=timeout)
        code = 0
    except (JobFailed, JobCancelled) as error:
        code = 1
        if show:
            remote = getattr(error, "remote_traceback", "")
            note(remote.rstrip() or f"headgate: {error}")
    except TimeoutError:
        code = 1
        message = f"headgate: job {handle.id} has not ended after {timeout:g} s; it goes on"
        click.echo(message, err=True)
    record = app.get_job(handle.id)
    if frame.as_json:
        from headgate.cli import data

        frame.print_json(data.job(record))
    elif code == 0:
        click.echo(record.result if record.result is not None else "null")
    sys.exit(code)
