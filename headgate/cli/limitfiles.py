"""`headgate concurrency import` and `export`: what operators said, as a file for review."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.frame import Frame, Verb, me, pass_frame

if TYPE_CHECKING:
    from headgate.limitfile import Difference


@click.command("export", cls=Verb)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@pass_frame
def export_limits(frame: Frame, file: Path | None) -> None:
    """Write what operators said and is in force, as TOML, to FILE or stdout.

    \b
    headgate concurrency export limits.toml && git diff limits.toml
    """
    from headgate.cli import data
    from headgate.concurrency import Concurrency
    from headgate.errors import ConfigError

    store = frame.store()
    desk = Concurrency(lambda: store, me)
    if frame.as_json:
        frame.print_json(
            {
                words.group: {
                    "limit": data.word(words.limit),
                    "pause": data.word(words.pause),
                    "weight": data.word(words.weight),
                }
                for words in desk.words()
            }
        )
        return
    text = desk.export_toml()
    if file is None or str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error


@click.command("import", cls=Verb)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--exact", is_flag=True, help="Take back what the file does not say.")
@pass_frame
def import_limits(frame: Frame, file: Path, dry_run: bool, exact: bool) -> None:
    """Say what FILE (- is stdin) says, all of it or nothing. Again, it changes nothing.

    \b
    headgate concurrency import limits.toml --dry-run
    headgate concurrency import limits.toml --exact
    """
    from headgate.cli import show
    from headgate.concurrency import Concurrency

    text = _read(file)
    store = frame.store(create=True)
    desk = Concurrency(lambda: store, me)
    changes, besides = desk.import_toml(text, str(file), exact=exact, dry_run=dry_run)
    if frame.as_json:
        told = {"changes": [_data(one) for one in changes], "besides": [_data(o) for o in besides]}
        frame.print_json({**told, "changed": bool(changes) and not dry_run})
        return
    for one in changes:
        show.line(str(one))
    done = "would change" if dry_run else "changed"
    show.note(f"{len(changes)} {done}" if changes else "all is as the file says")
    for one in besides:
        show.note(f"not in the file, and kept (--exact takes it back): {str(one)[2:]}")


def _read(file: Path) -> str:
    from headgate.errors import ConfigError

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error


def _data(one: Difference) -> dict[str, Any]:
    from headgate.cli import data

    return {
        "group": one.group,
        "what": one.what,
        "old": data.word(one.old),
        "new": data.word(one.new),
    }
