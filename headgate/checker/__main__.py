"""`python -m headgate.checker LOG… --limits FILE [--jobs FILE] [--kills FILE]`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from headgate.checker import Job, Kill, Report, check

T = TypeVar("T")


class Limits(msgspec.Struct):
    """The file of `--limits`."""

    limits: dict[str, int | None]
    changes: list[tuple[float, str, int | None]] = []
    room: int | None = None


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("logs", metavar="LOG…", nargs=-1, required=True, type=FILE)
@click.option(
    "--limits", type=FILE, required=True,
    help='JSON: {"limits": {"gpu": 24}, "changes": [[t, "gpu", 12]], "room": 100}.',
)  # fmt: skip
@click.option("--jobs", type=FILE, help="JSON list, or one JSON per line: ids, or objects.")
@click.option("--kills", type=FILE, help='JSON list, or one per line: {"pid": 7, "t": 12.5}.')
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of words.")
def main(
    logs: tuple[Path, ...], limits: Path, jobs: Path | None, kills: Path | None, as_json: bool
) -> None:
    """Judge a run from its execution log. Exits 1 if anything is wrong, 2 on bad input."""
    try:
        given = msgspec.json.decode(limits.read_bytes(), type=Limits)
        submitted = None if jobs is None else _records(jobs, Job | str)
        gone: list[Kill] = [] if kills is None else _records(kills, Kill)
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"a file cannot be read: {error}") from None
    report = check(
        logs,
        limits=given.limits,
        changes=given.changes,
        jobs=submitted,
        kills=gone,
        room=given.room,
    )
    click.echo(json.dumps(as_data(report)) if as_json else report.text())
    sys.exit(0 if report.ok else 1)


def _records(path: Path, type_: Any) -> list[Any]:
    data = path.read_bytes().strip()
    if data.startswith(b"["):
        return msgspec.json.decode(data, type=list[type_])
    return [msgspec.json.decode(line, type=type_) for line in data.splitlines() if line.strip()]


def as_data(report: Report) -> dict[str, object]:
    """The report as plain data."""
    return {
        "ok": report.ok,
        "jobs": report.jobs,
        "attempts": len(report.attempts),
        "groups": report.groups,
        **{
            kind: [dataclasses.asdict(item) for item in getattr(report, kind)]
            for kind in ("over", "lost", "doubled", "tokens")
        },
        "broken": report.broken,
        "usage": {
            name: {**dataclasses.asdict(usage), "ratio": usage.ratio}
            for name, usage in report.usage.items()
        },
        "shares": report.shares,
        "unjudged": sorted(report.unjudged),
        "slack_mattered": report.slack_mattered,
        "kill_mattered": report.kill_mattered,
        "explained": report.explained,
    }


if __name__ == "__main__":
    main()
