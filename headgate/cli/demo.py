"""`headgate demo`: limits hold while a worker is killed."""

from __future__ import annotations

import sys

import click

from headgate.cli.exits import OK, TROUBLE
from headgate.cli.frame import Frame, Verb, pass_frame


@click.command(cls=Verb)
@pass_frame
def demo(frame: Frame) -> None:
    """Run three tenants on two workers, kill one worker, and judge what happened.

    Uses a fresh store in a temporary directory and leaves nothing behind. Exits 1 if the
    checker finds anything wrong.

    \b
    headgate demo
    """
    from headgate.demo.run import run

    verdict = run(live=frame.terminal, quiet=frame.as_json)
    if frame.as_json:
        frame.print_json(verdict.data())
    else:
        click.echo(verdict.words())
        click.echo(verdict.line())
    sys.exit(OK if verdict.ok else TROUBLE)
