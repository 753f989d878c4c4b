"""`headgate concurrency`: limits in force, who holds them, and changing them live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headgate.cli import values
from headgate.cli.exits import NOT_FOUND
from headgate.cli.frame import Frame, Verb, me, pass_frame
from headgate.cli.limitfiles import export_limits, import_limits
from headgate.cli.limits import history, ls, status

MOST = 2**31 - 1

if TYPE_CHECKING:
    from headgate.concurrency import Concurrency
    from headgate.stores.protocol import LimitRecord, Word


@click.group()
def concurrency() -> None:
    """Limits, and who holds them. A GROUP is a limit (gpu) or one key of it (tenant/acme)."""


for _verb in (status, ls, history, import_limits, export_limits):
    concurrency.add_command(_verb)

_reason = click.option("--reason", default="", help="Why: it is kept with the change.")
_must_reason = click.option("--reason", required=True, help="Why: it is kept with the change.")
# Its name is a word of the language, so commands take it among `ends`.
_lasts = click.option(
    "--for", metavar="2h", callback=values.span, help="It ends by itself after so long."
)


@concurrency.command("set", cls=Verb)
@click.argument("group")
@click.option(
    "--limit",
    metavar="N|none",
    callback=values.limit,
    required=True,
    help="Units at once; none: unlimited.",
)
@_must_reason
@_lasts
@pass_frame
def set_limit(
    frame: Frame, group: str, limit: int | str, reason: str, **ends: float | None
) -> None:
    """Set the limit of GROUP now, over file and code, until `reset` or for some time.

    Lowering it stops nobody: nothing starts until what is held allows it.

    \b
    headgate concurrency set payments-api --limit 3 --reason "the provider is slow" --for 2h
    headgate concurrency set tenant/acme --limit 10 --reason "their migration"
    """
    desk = _desk(frame, create=True)
    _ask_about(frame, group)
    value = None if isinstance(limit, str) else limit
    after = desk.set(group, value, reason=reason, lasts=ends["for"])
    _told(frame, after, after.override)


@concurrency.command("reset", cls=Verb)
@click.argument("group")
@_reason
@pass_frame
def reset(frame: Frame, group: str, reason: str) -> None:
    """Take back a `set`: file and code decide again.

    \b
    headgate concurrency reset payments-api --reason "the provider is well"
    """
    desk = _desk(frame)
    _ask_back(desk, group, "limit", "nobody has set the limit of")
    _told(frame, desk.reset(group, reason=reason))


@concurrency.command("pause", cls=Verb)
@click.argument("group")
@_reason
@_lasts
@pass_frame
def pause(frame: Frame, group: str, reason: str, **ends: float | None) -> None:
    """Let nothing more start in GROUP; what runs goes on.

    \b
    headgate concurrency pause payments-api --for 30m --reason "their maintenance"
    """
    desk = _desk(frame)
    _ask_about(frame, group)
    after = desk.pause(group, reason=reason, lasts=ends["for"])
    _told(frame, after, after.pause)


@concurrency.command("resume", cls=Verb)
@click.argument("group")
@_reason
@pass_frame
def resume(frame: Frame, group: str, reason: str) -> None:
    """Take back a `pause`.

    \b
    headgate concurrency resume payments-api
    """
    desk = _desk(frame)
    _ask_back(desk, group, "pause", "nobody has paused")
    _told(frame, desk.resume(group, reason=reason))


@concurrency.command("weight", cls=Verb)
@click.argument("group", metavar="LIMIT/KEY")
@click.argument("weight", metavar="N|reset")
@_must_reason
@_lasts
@pass_frame
def weight(frame: Frame, group: str, weight: str, reason: str, **ends: float | None) -> None:
    """Give a fairness key N jobs per turn, over file and code; `reset` takes it back.

    The key is one of a limit (tenant/acme), or stands alone (acme).

    \b
    headgate concurrency weight tenant/acme 3 --reason "their contract"
    headgate concurrency weight tenant/acme reset --reason "it ended"
    """
    number: int | None = None
    if weight != "reset":
        if not (weight.isascii() and weight.isdigit()):
            raise click.UsageError(f"{weight!r} is neither a whole number from 1 nor 'reset'")
        number = int(weight[:20])
    after = _desk(frame).weight(group, number, reason=reason, lasts=ends["for"])
    if frame.as_json:
        _told(frame, after)
    elif after.weight is None:
        click.echo(f"{after.group}: no weight of its own")
    else:
        until = _until(frame, after.weight)
        click.echo(f"{after.group}: {after.weight.value} jobs per turn{until}")


@concurrency.command("release", cls=Verb)
@click.argument("group")
@click.argument("slot_id", type=click.IntRange(0, MOST))
@click.option("--force", is_flag=True, help="Yes: whoever holds it may still be running.")
@pass_frame
def release(frame: Frame, group: str, slot_id: int, force: bool) -> None:
    """Take the slot SLOT_ID of GROUP from its holder.

    The code behind it is not stopped: while it goes on, one more than the limit may run.

    \b
    headgate concurrency release gpu 0 --force
    """
    from headgate.limits import check_group

    if not force:
        raise click.UsageError(
            "the holder of that slot may still run, and one more than the limit would then run"
            " beside it: say --force if that is what you want, or cancel the job instead"
        )
    group = check_group(group)
    freed = frame.store().drop_slot(group, slot_id, None, by=me())
    if frame.as_json:
        frame.print_json({"group": group, "slot_id": slot_id, "released": freed})
    elif freed:
        click.echo(f"slot {slot_id} of {group} is free")
    else:
        click.echo(f"headgate: nobody holds slot {slot_id} of {group}", err=True)
    sys.exit(0 if freed else NOT_FOUND)


def _desk(frame: Frame, *, create: bool = False) -> Concurrency:
    from headgate.concurrency import Concurrency

    store = frame.store(create=create)
    return Concurrency(lambda: store, me)


def _ask_about(frame: Frame, group: str) -> None:
    """A name that nobody knows is accepted, for it may be declared later; but is it right?"""
    from headgate.cli import show
    from headgate.limits import check_group

    record = frame.store().group(check_group(group))[0]
    if record.source == "none":
        show.note(
            f"note: nothing declares {record.group} and nobody holds it: it counts for jobs that"
            " come to need it; is the name right?"
        )


def _ask_back(desk: Concurrency, group: str, what: str, nobody: str) -> None:
    """What is not there need not be taken back; but is that the group that was meant?"""
    from headgate.cli import show
    from headgate.limits import check_group

    group = check_group(group)
    if not any(said.group == group and getattr(said, what) is not None for said in desk.words()):
        show.note(f"note: {nobody} {group}: is the name right?")


def _told(frame: Frame, after: LimitRecord, word: Word | None = None) -> None:
    from headgate.cli import data
    from headgate.cli.limits import held_of, value_of

    if frame.as_json:
        frame.print_json(data.limit(after))
        return
    click.echo(
        f"{after.group}: limit {value_of(after)} ({after.source}),"
        f" {held_of(after)}{', paused' if after.paused else ''}{_until(frame, word)}"
    )


def _until(frame: Frame, word: Word | None) -> str:
    from headgate.cli import show

    if word is None or word.until is None:
        return ""
    return f", until {show.when(word.until, frame.store().now())}"
