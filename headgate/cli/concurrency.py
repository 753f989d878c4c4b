"""`headgate concurrency`: limits in force, who holds them, and changing them live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headgate.cli import values
from headgate.cli.exits import NOT_FOUND
from headgate.cli.frame import Frame, Verb, me, pass_frame

LOOK_BACK = 10_000
MOST = 2**31 - 1

if TYPE_CHECKING:
    from headgate.stores.protocol import EventRecord, LimitChange, LimitRecord, SlotRecord


@click.group()
def concurrency() -> None:
    """Limits, and who holds them. A GROUP is a limit (gpu) or one key of it (tenant/acme)."""


@concurrency.command("status", cls=Verb)
@click.argument("group", required=False)
@pass_frame
def status(frame: Frame, group: str | None) -> None:
    """All limits and groups, or the holders of one GROUP."""
    if group is None:
        _all(frame)
    else:
        _one(frame, group)


@concurrency.command("set", cls=Verb)
@click.argument("group")
@click.option(
    "--limit",
    metavar="N|none",
    callback=values.limit,
    required=True,
    help="Units at once; none: unlimited.",
)
@click.option("--reason", required=True, help="Why: it is kept with the change.")
@pass_frame
def set_limit(frame: Frame, group: str, limit: int | str, reason: str) -> None:
    """Set the limit of GROUP now, over file and code, until `reset`.

    Lowering it stops nobody: nothing starts until what is held allows it.

    \b
    headgate concurrency set payments-api --limit 3 --reason "the provider is slow today"
    headgate concurrency set tenant/acme --limit 10 --reason "their migration"
    """
    from headgate.stores.protocol import LimitChange

    if not reason.strip():
        raise click.UsageError("--reason is empty: say why, for those who look at the log later")
    value = None if isinstance(limit, str) else limit
    _change(frame, LimitChange(group, value=value, set_value=True, by=me(), reason=reason))


@concurrency.command("reset", cls=Verb)
@click.argument("group")
@click.option("--reason", default="", help="Why: it is kept with the change.")
@pass_frame
def reset(frame: Frame, group: str, reason: str) -> None:
    """Take back a `set`: file and code decide again."""
    from headgate.stores.protocol import LimitChange

    _change(frame, LimitChange(group, reset=True, by=me(), reason=reason))


@concurrency.command("pause", cls=Verb)
@click.argument("group")
@click.option("--reason", default="", help="Why: it is kept with the change.")
@pass_frame
def pause(frame: Frame, group: str, reason: str) -> None:
    """Let nothing more start in GROUP; what runs goes on."""
    from headgate.stores.protocol import LimitChange

    _change(frame, LimitChange(group, paused=True, by=me(), reason=reason))


@concurrency.command("resume", cls=Verb)
@click.argument("group")
@click.option("--reason", default="", help="Why: it is kept with the change.")
@pass_frame
def resume(frame: Frame, group: str, reason: str) -> None:
    """Take back a `pause`."""
    from headgate.stores.protocol import LimitChange

    _change(frame, LimitChange(group, paused=False, by=me(), reason=reason))


@concurrency.command("release", cls=Verb)
@click.argument("group")
@click.argument("slot_id", type=click.IntRange(0, MOST))
@click.option("--force", is_flag=True, help="Yes: whoever holds it may still be running.")
@pass_frame
def release(frame: Frame, group: str, slot_id: int, force: bool) -> None:
    """Take the slot SLOT_ID of GROUP from its holder.

    The code behind it is not stopped: while it goes on, one more than the limit may run.
    """
    from headgate.limits import check_group

    if not force:
        raise click.UsageError(
            "the holder of that slot may still run, and one more than the limit would then run"
            " beside it: say --force if that is what you want, or cancel the job instead"
        )
    group = check_group(group)
    freed = frame.store().drop_slot(group, slot_id, None)
    if frame.as_json:
        frame.print_json({"group": group, "slot_id": slot_id, "released": freed})
    elif freed:
        click.echo(f"slot {slot_id} of {group} is free")
    else:
        click.echo(f"headgate: nobody holds slot {slot_id} of {group}", err=True)
    sys.exit(0 if freed else NOT_FOUND)


@concurrency.command("log", cls=Verb)
@click.argument("group", required=False)
@click.option(
    "--limit", type=click.IntRange(1, LOOK_BACK), default=50, show_default=True, help="At most."
)
@pass_frame
def log(frame: Frame, group: str | None, limit: int) -> None:
    """Who changed which limit, when, from what to what, and why: the latest first.

    Code that ran on after its lease was lost stands there too: more than the limit may have run.
    """
    from headgate.cli import data, show
    from headgate.limits import check_group

    store = frame.store()
    wanted = None if group is None else check_group(group)
    # Of one group among many changes: look further back than is shown.
    look = limit if wanted is None else limit + LOOK_BACK
    events = [*store.events("limit_changed", look), *store.events("attempt_overran", look)]
    events.sort(key=lambda event: event.seq, reverse=True)
    found = [event for event in events if wanted is None or wanted in _groups(event)][:limit]
    if frame.as_json:
        told = {"limit_changed": "changes", "attempt_overran": "overruns"}
        frame.print_json(
            {
                name: [data.event(event) for event in found if event.kind == kind]
                for kind, name in told.items()
            }
        )
        return
    if not found:
        show.note("no limit was changed by hand")
        return
    now = store.now()
    rows = [(show.short(frame, event.at, now), *_logged(event)) for event in found]
    show.table(frame, ["time", "group", "from", "to", "by", "reason"], rows)


def _groups(event: EventRecord) -> list[str]:
    if event.kind == "attempt_overran":
        return event.data.get("groups", [])
    return [event.subject]


def _logged(event: EventRecord) -> tuple[str, str, str, str, str]:
    group, get = ", ".join(_groups(event)) or "-", event.data.get
    if event.kind == "attempt_overran":
        why = f"job {event.subject} ran on after its lease was lost"
        return group, "-", "over-run", event.who, why
    old = _said(get("old"), get("old_source"), get("was_paused"))
    new = _said(get("new"), get("new_source"), get("paused"))
    return group, old, new, event.who, get("reason", "")


def _said(value: object, source: object, paused: object) -> str:
    told = "-" if source == "none" else "unlimited" if value is None else str(value)
    return f"{told}, paused" if paused else told


def _change(frame: Frame, change: LimitChange) -> None:
    from dataclasses import replace

    from headgate.cli import data, show
    from headgate.limits import check_group, check_value

    change = replace(change, group=check_group(change.group))
    check_value(change.value, change.group)
    store = frame.store(create=change.set_value)
    known = store.group(change.group)[0].source != "none"
    after = store.change_limit(change)
    if not known and not change.reset:
        show.note(
            f"note: nothing declares {after.group} and nobody holds it: it counts for jobs that"
            " come to need it; is the name right?"
        )
    if frame.as_json:
        frame.print_json(data.limit(after))
    else:
        click.echo(
            f"{after.group}: limit {_value(after)} ({after.source}),"
            f" {after.held:,} held{', paused' if after.paused else ''}"
        )


def _all(frame: Frame) -> None:
    from headgate.cli import data, show

    found = frame.store().limits()
    if frame.as_json:
        frame.print_json({"groups": [data.limit(record) for record in found]})
        return
    if not found:
        show.note("no limit is declared, and nothing is held")
        return
    rows = [
        (r.group, r.held, _value(r), _bar(r) if frame.terminal else _share(r), r.source, _state(r))
        for r in found
    ]
    show.table(frame, ["group", "held>", "limit>", "used", "source", "state"], rows)
    for record in found:
        _disagreement(record)


def _one(frame: Frame, group: str) -> None:
    from headgate.cli import data, show
    from headgate.limits import check_group

    store = frame.store()
    record, slots = store.group(check_group(group))
    unknown = record.source == "none" and not slots
    if frame.as_json:
        frame.print_json({**data.limit(record), "slots": [data.slot(slot) for slot in slots]})
        sys.exit(NOT_FOUND if unknown else 0)
    if unknown:
        click.echo(
            f"headgate: nothing declares a limit for {record.group} and nobody holds it", err=True
        )
        sys.exit(NOT_FOUND)
    now = store.now()
    show.fields(
        frame,
        [
            ("group", record.group),
            ("limit", f"{_value(record)} ({record.source})"),
            ("held", f"{record.held:,} units by {record.holders:,} holders"),
            ("state", _state(record)),
        ],
    )
    _disagreement(record)
    if slots:
        click.echo()
        names = {worker.id: worker.name for worker in store.workers()}
        columns = ["slot>", "holder", "worker", "units>", "since", "until", "state"]
        show.table(frame, columns, [_slot(frame, slot, names, now) for slot in slots])


def _slot(frame: Frame, slot: SlotRecord, names: dict[str, str], now: float) -> tuple[object, ...]:
    from headgate.cli import show

    until = show.short(frame, slot.expires_at, now) if slot.expires_at else "its worker ends"
    state = "overdue" if slot.overdue else "held"
    worker = names.get(slot.worker, slot.worker)
    since = show.short(frame, slot.since, now)
    return slot.slot, slot.holder, worker, slot.units, since, until, state


def _value(record: LimitRecord) -> str:
    if record.source == "none":
        return "-"
    return "unlimited" if record.value is None else f"{record.value:,}"


def _share(record: LimitRecord) -> str:
    return f"{record.held / record.value:.0%}" if record.value and not record.keyed else "-"


def _bar(record: LimitRecord, width: int = 12) -> str:
    if not record.value or record.keyed:
        return ""
    full = min(width, round(width * record.held / record.value))
    return "█" * full + "·" * (width - full)


def _state(record: LimitRecord) -> str:
    if record.paused:
        return f"paused by {record.paused_by}" if record.paused_by else "paused"
    if record.value == 0:
        return "closed (limit 0)"
    if record.keyed:
        return "for each key"
    if record.value is not None and record.held >= record.value:
        return "full"
    return "open"


def _disagreement(record: LimitRecord) -> None:
    for declarer, value in record.disagree:
        said = "unlimited" if value is None else value
        click.echo(
            f"note: {declarer} declares {said} for {record.group}; {_value(record)} is in force",
            err=True,
        )
