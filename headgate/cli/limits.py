"""`headgate concurrency status`, `ls` and `history`: limits and words about them, shown."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headgate.cli import values
from headgate.cli.exits import NOT_FOUND
from headgate.cli.frame import Frame, Verb, pass_frame

LOOK_BACK = 10_000
OVERRUNS = "attempt_overran"
NO_MORE = "no more groups"

if TYPE_CHECKING:
    from headgate.stores.protocol import (
        EventRecord,
        LimitPage,
        LimitRecord,
        SlotRecord,
        Store,
        Word,
    )


# --- status -------------------------------------------------------------------------------------


def paged(command: Callable[..., Any]) -> Callable[..., Any]:
    """How many groups beside the limits, and from which on."""
    for option in (
        click.option("--after", metavar="GROUP", help="Go on where the page before said."),
        click.option(
            "--limit", type=click.IntRange(1, LOOK_BACK), default=100, show_default=True,
            help="At most so many keys and other groups, beside the limits.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _more(after: str | None) -> None:
    from headgate.cli import show

    if after is not None:
        show.note(
            f"there may be more groups: --after {shlex.quote(after)}; one of them:"
            " headgate concurrency status GROUP"
        )


@click.command("status", cls=Verb)
@click.argument("group", required=False)
@paged
@click.option(
    "--older", metavar="1m", default="1m", show_default=True, callback=values.span,
    help="Jobs that waited longer than this look wrong.",
)  # fmt: skip
@pass_frame
def status(frame: Frame, group: str | None, older: float, limit: int, after: str | None) -> None:
    """All limits, keys that are held or were changed, and what looks wrong; or who holds a GROUP.

    \b
    headgate concurrency status
    headgate concurrency status tenant/acme
    """
    if group is None:
        _all(frame, older, limit, after)
    elif after is not None:
        raise click.UsageError("--after goes on with the list of all groups: leave out GROUP")
    else:
        _one(frame, group)


def _all(frame: Frame, older: float, limit: int, after: str | None) -> None:
    from dataclasses import asdict

    from headgate.cli import data, show

    store = frame.store()
    page, odd = store.limit_page(limit, after), store.oddities(older)
    found = _by_name(page)
    if frame.as_json:
        frame.print_json(
            {
                "groups": [data.limit(r) for r in found],
                "odd": [asdict(one) for one in odd],
                "after": page.after,
            }
        )
        return
    if not found and page.after is None:
        show.note("no limit is declared, and nothing is held" if after is None else NO_MORE)
    elif found:
        rows = [(r.group, r.held, value_of(r), _use(frame, r), r.source, _state(r)) for r in found]
        show.table(frame, ["group", "held>", "limit>", "used", "source", "state"], rows)
    _more(page.after)
    for one in odd:
        show.note(f"{one.what}: {one.detail}")


def _by_name(page: LimitPage) -> list[LimitRecord]:
    return sorted((*page.limits, *page.groups), key=lambda record: record.group)


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
    declared = "" if record.declared is None or record.source != "override" else record.declared
    show.fields(
        frame,
        [
            ("group", record.group),
            ("limit", f"{value_of(record)} ({record.source})"),
            ("set", _said(record.override, now)),
            ("declared", declared),
            *_held(record, now),
            ("state", _state(record)),
            ("paused", _said(record.pause, now)),
            ("weight", "" if record.weight is None else f"{record.weight.value} jobs per turn"),
            ("weighed", _said(record.weight, now)),
            ("reserved", record.reserved_by or ""),
        ],
    )
    _disagreement(record)
    if slots:
        click.echo()
        names = {worker.id: worker.name for worker in store.workers()}
        columns = ["slot>", "holder", "worker", "units>", "since", "until", "state"]
        show.table(frame, columns, [_slot(frame, slot, names, now) for slot in slots])


def _said(word: Word | None, now: float) -> str:
    """By whom, when, until when and why."""
    from headgate.cli.show import when

    if word is None:
        return ""
    until = "" if word.until is None else f", until {when(word.until, now)}"
    reason = f": {word.reason}" if word.reason else ""
    return f"by {word.by or 'nobody'} at {when(word.at, now)}{until}{reason}"


def _slot(frame: Frame, slot: SlotRecord, names: dict[str, str], now: float) -> tuple[object, ...]:
    from headgate.cli import show

    until = show.short(frame, slot.expires_at, now) if slot.expires_at else "its worker ends"
    state = "overdue" if slot.overdue else "held"
    worker = names.get(slot.worker, slot.worker)
    since = show.short(frame, slot.since, now)
    return slot.slot, slot.holder, worker, slot.units, since, until, state


def value_of(record: LimitRecord) -> str:
    if record.source == "none":
        return "-"
    value = "unlimited" if record.value is None else f"{record.value:,}"
    if record.pace is None:
        return value
    from headgate.why import period

    return f"{value} per {period(record.pace.per)}"


def held_of(record: LimitRecord) -> str:
    return f"{record.held:,} {'held' if record.pace is None else 'started'}"


def _held(record: LimitRecord, now: float) -> list[tuple[str, object]]:
    """Who holds it; of a rate, which nobody holds, what has started and when the next may."""
    if record.pace is None:
        units = "unit" if record.held == 1 else "units"
        holders = "holder" if record.holders == 1 else "holders"
        return [("held", f"{record.held:,} {units} by {record.holders:,} {holders}")]
    from headgate.why import age, pace, period

    told: list[tuple[str, object]] = [
        ("rate", f"at most {pace(record)}"),
        ("started", f"{record.held:,} in the last {period(record.pace.per)}"),
    ]
    if record.opens_at is not None:
        told.append(("next", f"may start in {age(record.opens_at - now)}"))
    return told


def _use(frame: Frame, record: LimitRecord, width: int = 12) -> str:
    if not record.value or record.keyed:
        return "" if frame.terminal else "-"
    if not frame.terminal:
        return f"{record.held / record.value:.0%}"
    full = min(width, round(width * record.held / record.value))
    return "█" * full + "·" * (width - full)


def _state(record: LimitRecord) -> str:
    orphaned = ", orphaned" if record.orphaned else ""
    if record.paused:
        return f"paused by {record.paused_by or 'nobody'}{orphaned}"
    if record.value == 0:
        return f"closed (limit 0){orphaned}"
    if record.keyed:
        return f"for each key{orphaned}"
    full = record.value is not None and record.held >= record.value
    if full or record.opens_at is not None:
        return f"full{orphaned}"
    return orphaned.removeprefix(", ") or "open"


def _disagreement(record: LimitRecord) -> None:
    for declarer, value in record.disagree:
        said = "unlimited" if value is None else value
        click.echo(
            f"note: {declarer} declares {said} for {record.group}; {value_of(record)} is in force",
            err=True,
        )


# --- ls -----------------------------------------------------------------------------------------


@click.command("ls", cls=Verb)
@paged
@pass_frame
def ls(frame: Frame, limit: int, after: str | None) -> None:
    """What is said about limits: declared by files and code, and by whom it was changed.

    \b
    headgate concurrency ls
    """
    from headgate.cli import data, show

    store = frame.store()
    page = store.limit_page(limit, after, said=True)
    found = _by_name(page)
    if frame.as_json:
        frame.print_json({"groups": [data.limit(record) for record in found], "after": page.after})
        return
    now = store.now()
    rows = [row for record in found for row in _lines(frame, record, now)]
    if not rows:
        if page.after is None:
            nothing = "no limit is declared, and nobody has said anything about one"
            show.note(nothing if after is None else NO_MORE)
        _more(page.after)
        return
    columns = ["group", "what", "value>", "source", "by", "time", "until", "reason"]
    show.table(frame, columns, rows)
    _more(page.after)


def _lines(frame: Frame, record: LimitRecord, now: float) -> list[tuple[object, ...]]:
    """The declared value, and each word about this very group."""
    from headgate.cli.show import short

    lines: list[tuple[object, ...]] = []
    if record.declared is not None or record.source in ("file", "code", "carried"):
        value = record.declared if record.source != "carried" else record.value
        source = "declared" if record.source == "override" else record.source
        state = f"{source}, orphaned" if record.orphaned else source
        shown = "unlimited" if value is None else value
        if "/" not in record.group or record.source == "carried":
            lines.append((record.group, "limit", shown, state, "", "", "", ""))
    for what, word in (
        ("limit", record.override), ("pause", record.pause), ("weight", record.weight)
    ):  # fmt: skip
        if word is not None:
            value = "" if what == "pause" else "unlimited" if word.value is None else word.value
            until = short(frame, word.until, now) if word.until is not None else ""
            said = (word.by, short(frame, word.at, now), until, word.reason)
            lines.append((record.group, what, value, "operator", *said))
    return lines


# --- history ------------------------------------------------------------------------------------


@click.command("history", cls=Verb)
@click.argument("group", required=False)
@click.option(
    "--limit", type=click.IntRange(1, LOOK_BACK), default=50, show_default=True, help="At most."
)
@pass_frame
def history(frame: Frame, group: str | None, limit: int) -> None:
    """Who changed which limit, when, from what to what, and why: the latest first.

    Code that ran on after its lease was lost stands there too: more than the limit may have run.

    \b
    headgate concurrency history
    headgate concurrency history tenant/acme --limit 10
    """
    from headgate.cli import data, show
    from headgate.limits import check_group

    store = frame.store()
    found = _events(store, None if group is None else check_group(group), limit)
    if frame.as_json:
        told = {"limit_changed": "changes", OVERRUNS: "overruns"}
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
    rows = [(show.short(frame, event.at, now), *_logged(event, now)) for event in found]
    show.table(frame, ["time", "group", "from", "to", "by", "reason"], rows)


def _events(store: Store, group: str | None, limit: int) -> list[EventRecord]:
    # Over-runs are kept under their job: of one group, look further back than is shown.
    overruns = store.events(OVERRUNS, limit if group is None else limit + LOOK_BACK)
    overruns = [event for event in overruns if group is None or group in _groups(event)]
    events = [*store.events("limit_changed", limit, group), *overruns]
    return sorted(events, key=lambda event: event.seq, reverse=True)[:limit]


def _groups(event: EventRecord) -> list[str]:
    if event.kind == OVERRUNS:
        return event.data.get("groups", [])
    return [event.subject]


def _logged(event: EventRecord, now: float) -> tuple[str, str, str, str, str]:
    from headgate.cli.show import when

    group, get = ", ".join(_groups(event)) or "-", event.data.get
    if event.kind == OVERRUNS:
        why = f"job {event.subject} ran on after its lease was lost"
        return group, "-", "over-run", event.who, why
    old = _standing(get("old"), get("old_source"), get("was_paused"), get("old_weight"))
    ends = "" if get("until") is None else f" until {when(get('until'), now)}"
    new = _standing(get("new"), get("new_source"), get("paused"), get("weight"), ends)
    return group, old, new, event.who or "-", get("reason", "")


def _standing(value: object, source: object, paused: object, weight: object, ends: str = "") -> str:
    told = "-" if source == "none" else "unlimited" if value is None else str(value)
    told += f"{ends}, paused" if paused else ends
    return f"{told}, weight {weight}" if weight is not None else told
