"""What every verb shares: which store, which configuration, how the answer is shown."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from headgate.codec import plain

if TYPE_CHECKING:
    from headgate.config import Config
    from headgate.stores.protocol import Store


class Frame:
    """The object of every click context."""

    def __init__(self, url: str | None, config: str | None, as_json: bool) -> None:
        self.url = url
        self.config_file = config
        self.as_json = as_json
        self._config: Config | None = None

    @property
    def config(self) -> Config:
        if self._config is None:
            from headgate.config import Config

            self._config = Config.load(self.config_file, url=self.url)
        return self._config

    def store(self, *, create: bool = False) -> Store:
        """The store, closed at the end of the command.

        Only verbs that bring something new `create` it: a mistyped path must not leave an
        empty file behind and answer that there are no jobs.
        """
        from headgate.stores import open_store

        url = self.config.url
        if not create:
            _must_exist(url, "" if self.config.path else _hint())
        store = open_store(url)
        click.get_current_context().call_on_close(store.close)
        return store

    @property
    def terminal(self) -> bool:
        """Is somebody looking? Then tables and colour, else plain text."""
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not self.as_json

    def print_json(self, data: Any) -> None:
        click.echo(json.dumps(data, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def _hint() -> str:
    """What lies in this folder and was not asked for."""
    from headgate.configuration.reading import MAIN_FILES

    found = next((name for name in MAIN_FILES if Path(name).is_file()), None)
    return "" if found is None else f". That of the {found} here: --config {found}"


def _must_exist(url: str, hint: str) -> None:
    from headgate.errors import StoreUnavailable
    from headgate.stores import exists, shown

    if not exists(url):
        raise StoreUnavailable(
            f"there is no store at {shown(url)}: a worker, a submit or `headgate migrate` makes it;"
            " if it is elsewhere, say where with --url, HEADGATE_URL or headgate.toml"
            f"{hint}"
        )


def _override(name: str) -> Any:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        frame = ctx.find_object(Frame)
        if frame is None and value:
            # A shell asks for completions: nothing runs, and there is no frame.
            ctx.meta.setdefault("headgate", {})[name] = value
        if frame is not None and value:
            setattr(frame, name, value)
            frame._config = None

    return callback


COMPLETED = {
    "id": "job", "ids": "job", "after": "job", "group": "group", "queue": "queue",
    "task": "task", "name": "schedule",
}  # fmt: skip
"""Parameters that are names of something in the store, by what they are called."""


def _completed(what: str) -> Any:
    def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from headgate.cli.completion import complete

        return complete(what)(ctx, param, incomplete)

    return names


class Verb(click.Command):
    """A command that takes --url, --config and --json after its own name too."""

    def invoke(self, ctx: click.Context) -> Any:
        for name, value in ctx.params.items():
            # Bytes that are no text come in as lone surrogates, which no store can keep.
            texts = cast("tuple[Any, ...]", value if isinstance(value, tuple) else (value,))
            for text in texts:
                if isinstance(text, str) and text != plain(text):
                    raise click.UsageError(f"{name}: {plain(text)!r} is not valid UTF-8 text")
        return super().invoke(ctx)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            what = COMPLETED.get(param.name or "")
            # `--name` is a name to be given, NAME one that exists.
            if what is not None and not (param.name == "name" and isinstance(param, click.Option)):
                param._custom_shell_complete = _completed(what)
        self.params += [
            click.Option(
                ["--url"], metavar="URL", expose_value=False, callback=_override("url"),
                help="The store, as in sqlite:///jobs.db.",
            ),
            click.Option(
                ["--config"], metavar="FILE", expose_value=False,
                callback=_override("config_file"),
                help="The configuration file, else ./headgate.toml.",
            ),
            click.Option(
                ["--json"], is_flag=True, expose_value=False, callback=_override("as_json"),
                help="One JSON document on stdout.",
            ),
        ]  # fmt: skip


def me() -> str:
    """Who asks, for the record of changes."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


pass_frame = click.make_pass_decorator(Frame)
