"""`headgate config check`: everything that is wrong in a configuration, with its place."""

from __future__ import annotations

import click

from headgate.cli.frame import Frame, Verb, pass_frame


@click.group("config")
def config() -> None:
    """Configurations of the scheduler: headgate.toml, or dsari's JSON and YAML."""


@config.command(cls=Verb)
@click.argument("file", metavar="FILE", type=click.Path())
@pass_frame
def check(frame: Frame, file: str) -> None:
    """Say everything that is wrong in FILE, a file or a directory, and exit with 2 if anything is.

    \b
    headgate config check headgate.toml
    headgate config check /etc/dsari
    """
    from headgate.cli.exits import BAD_INPUT
    from headgate.cli.show import line, note
    from headgate.configuration.checking import load
    from headgate.configuration.problems import ConfigurationError, shown

    found = None
    try:
        found, problems = load(file, url=frame.url)
    except ConfigurationError as error:
        problems = list(error.problems)
    errors = sum(not problem.warning for problem in problems)
    if frame.as_json:
        told = [
            {
                "file": problem.file,
                "line": problem.line,
                "path": shown(problem.path),
                "level": "warning" if problem.warning else "error",
                "message": problem.message,
            }
            for problem in problems
        ]
        frame.print_json({"ok": not errors, "problems": told})
    else:
        for problem in problems:
            line(str(problem))
    if errors:
        note(f"headgate: {errors} of these must be put right before it can run")
        raise click.exceptions.Exit(BAD_INPUT)
    if found is not None and not frame.as_json:
        scheduled = sum(job.schedule is not None for job in found.jobs.values())
        line(
            f"ok: {len(found.jobs)} jobs, {scheduled} of them on a schedule,"
            f" {len(found.groups)} groups and limits"
        )
