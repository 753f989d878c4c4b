"""`headgate doctor`: is the store sound, does the configuration make sense?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headgate.cli import costs, show, values
from headgate.cli.exits import OK, TROUBLE
from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.stores import shown

if TYPE_CHECKING:
    from headgate.stores.protocol import Trouble


@click.command(cls=Verb)
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option("--strict", is_flag=True, help="Exit 1 for what only looks wrong, too.")
@click.option(
    "--older", metavar="1m", default="1m", show_default=True, callback=values.span,
    help="Jobs that waited longer than this look wrong.",
)  # fmt: skip
@pass_frame
def doctor(frame: Frame, repair: bool, strict: bool, older: float) -> None:
    """Check the store and the configuration; exits 1 if trouble is left.

    What only looks wrong is shown too: free slots with jobs that wait for them, attempts that
    are overdue, leases that have ended, a fleet that disagrees about a limit. Of a bucket it tells
    what is in it, which requests were sent, and what they cost.

    \b
    headgate doctor
    headgate doctor --repair
    """
    config, store = frame.config, frame.store()
    troubles = store.doctor(repair)
    odd = store.oddities(older)
    price = store.costs()
    left = [trouble for trouble in troubles if not trouble.repaired]
    file = str(config.path) if config.path else None
    if frame.as_json:
        frame.print_json(
            {
                "ok": not left,
                "url": shown(config.url),
                "config": file,
                "troubles": [asdict(trouble) for trouble in troubles],
                "odd": [asdict(one) for one in odd],
                **({} if price is None else {"costs": asdict(price)}),
            }
        )
    else:
        click.echo(f"store   {shown(config.url)}")
        click.echo(f"config  {file or 'none (defaults)'}")
        for line in [] if price is None else costs.lines(price):
            click.echo(line)
        for trouble in troubles:
            click.echo(_told(trouble))
        for one in odd:
            show.line(f"looks wrong: {one.what}: {one.detail}")
        click.echo("no trouble found" if not troubles else _summary(troubles, left, repair))
    sys.exit(TROUBLE if left or (strict and odd) else OK)


def _told(trouble: Trouble) -> str:
    mark = "repaired" if trouble.repaired else "TROUBLE"
    text = f"{mark}: {trouble.what}: {trouble.detail}"
    if trouble.repair and not trouble.repaired:
        text += f" (--repair would {trouble.repair})"
    return text


def _summary(troubles: list[Trouble], left: list[Trouble], repair: bool) -> str:
    text = f"{len(troubles)} found, {len(troubles) - len(left)} repaired"
    if not repair and any(trouble.repair for trouble in left):
        text += "; run `headgate doctor --repair`"
    return text
