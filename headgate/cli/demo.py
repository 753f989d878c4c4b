"""`headgate demo`: limits hold while a worker is killed."""

from __future__ import annotations

import sys

import click

from headgate.cli.frame import Frame, Verb, pass_frame


@click.command(cls=Verb)
@pass_frame
def demo(frame: Frame) -> None:
    """Run three tenants on two workers, kill one worker, and judge what happened.

    Uses a fresh store in a temporary directory and leaves nothing behind. Exits 1 if the
    checker finds anything wrong.
    """
    from headgate.demo.run import run

    report = run(live=frame.terminal, quiet=frame.as_json)
    if frame.as_json:
        frame.print_json(report.data())
    else:
        click.echo(report.line())
    sys.exit(0 if report.ok else 1)
