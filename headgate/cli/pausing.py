"""`pause` and `resume`: the same two verbs for whatever can be paused by its name."""

from __future__ import annotations

from collections.abc import Callable

import click

from headgate.cli.frame import Frame, Verb, pass_frame

Change = Callable[[Frame, str, bool, str], None]
"""What they do: of which frame and name, whether it is paused, and why."""


def add_pausing(
    group: click.Group, argument: str, change: Change, *, pause: str, resume: str
) -> None:
    """Give the group both verbs, with these texts as their help."""

    def add(verb: str, paused: bool, text: str) -> None:
        @group.command(verb, cls=Verb, help=text)
        @click.argument(argument)
        @click.option("--reason", default="", help="Why, for those who look later.")
        @pass_frame
        def _(frame: Frame, reason: str, **named: str) -> None:
            change(frame, named[argument], paused, reason)

    add("pause", True, pause)
    add("resume", False, resume)
