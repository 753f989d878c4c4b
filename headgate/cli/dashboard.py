"""`headgate dashboard`: the pages, the API and the metrics, served from here."""

from __future__ import annotations

import ipaddress
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headgate.cli.frame import Frame, Verb, pass_frame

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.web.access import Access, Role, User

BIND = "127.0.0.1:8765"


@click.command("dashboard", cls=Verb)
@click.argument("target", required=False, metavar="[MODULE:APP]")
@click.option(
    "--bind", metavar="HOST:PORT", default=BIND, show_default=True, help="Where to listen."
)
@click.option("--read-only", is_flag=True, help="Nobody can change anything.")
@click.option(
    "--token", metavar="TOKEN", show_envvar=True,
    help="Lets in to operate; better by the environment, where others do not see it.",
)  # fmt: skip
@click.option("--view-token", metavar="TOKEN", show_envvar=True, help="Lets in to look.")
@click.option(
    "--users", metavar="FILE", type=click.Path(path_type=Path),
    help="Lines of name:role:password, in a file that only you can read.",
)  # fmt: skip
@click.option(
    "--redact", metavar="TASK.ARGUMENT", multiple=True,
    help="Do not show this argument; TASK.* hides all of a task, *.ARGUMENT one of all tasks.",
)  # fmt: skip
@click.option(
    "--key-metrics", metavar="LIMIT", multiple=True,
    help="Tell the keys of this limit apart in /metrics.",
)  # fmt: skip
@click.option(
    "--prefix", metavar="PATH", default="", help="The path under which a proxy has it, as /jobs."
)
@click.option(
    "--forwarded", metavar="ADDRESS", multiple=True,
    help="Of a proxy, or its network: what it says of who asks, and whether by https, is believed.",
)  # fmt: skip
@pass_frame
def dashboard(
    frame: Frame,
    target: str | None,
    bind: str,
    read_only: bool,
    token: str | None,
    view_token: str | None,
    users: Path | None,
    redact: tuple[str, ...],
    key_metrics: tuple[str, ...],
    prefix: str,
    forwarded: tuple[str, ...],
) -> None:
    """Serve the dashboard of a store.

    \b
    headgate dashboard
    headgate dashboard myapp:app --bind 127.0.0.1:9000 --read-only
    HEADGATE_DASHBOARD_TOKEN=$(openssl rand -hex 24) headgate dashboard --bind 0.0.0.0:8765

    Other machines can reach it only where a token or users are given. With MODULE:APP its
    weights are known too; without, the store alone is looked at.
    """
    from headgate.web import create_app
    from headgate.web.guard import is_loopback

    host, port = _address(bind)
    access = _access(token, view_token, users)
    if not access.required and not is_loopback(host):
        raise click.UsageError(
            f"--bind {bind} can be reached from other machines, and nobody would be asked who they"
            " are: give --token, --view-token or --users, or bind to 127.0.0.1"
        )
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise click.UsageError(f"--prefix {prefix!r} must begin with a / and not end with one")
    proxies = _proxies(forwarded)
    app = _app(frame, target)
    site = create_app(
        app,
        access=access,
        read_only=read_only,
        redact=_redactions(redact),
        key_metrics=key_metrics,
    )
    _serve(site, host, port, prefix, proxies)


def _app(frame: Frame, target: str | None) -> App:
    from headgate.app import App

    if target is None:
        frame.store()  # a mistyped path is told now, not on every page
        return App(frame.config.url, config=frame.config)
    from headgate.worker.target import find_target

    app = find_target(target).app
    return app if frame.url is None else App(frame.url, config=frame.config)


def _address(bind: str) -> tuple[str, int]:
    host, colon, port = bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise click.UsageError(f"--bind {bind!r}: write HOST:PORT, as {BIND}")
    return host, int(port)


def _proxies(given: tuple[str, ...]) -> list[str]:
    """Addresses and networks. Not names, and not everybody: who can reach the port could say that
    they are somebody else."""
    for text in given:
        try:
            whole = ipaddress.ip_network(text).prefixlen == 0
        except ValueError as error:
            raise click.UsageError(
                f"--forwarded {text!r}: write the address of the proxy, as 127.0.0.1, or its"
                f" network, as 10.0.0.0/24 ({error})"
            ) from None
        if whole:
            raise click.UsageError(f"--forwarded {text}: that is everybody; name the proxy alone")
    return list(given)


def _access(token: str | None, view_token: str | None, users: Path | None) -> Access:
    from headgate.web.access import Access

    tokens: dict[str, Role] = {}
    if view_token:
        tokens[view_token] = "view"
    if token:
        tokens[token] = "operate"
    return Access(tokens, _users(users) if users is not None else None)


def _users(path: Path) -> dict[str, User]:
    from headgate.errors import ConfigError
    from headgate.web.access import User

    try:
        with path.open() as file:
            mode = Path(f"/dev/fd/{file.fileno()}").stat().st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--users {path}: it cannot be read ({error})") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"--users {path}: others can read it; chmod 600 {path}")
    found: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role, colon, password = rest.partition(":")
        if not colon or role not in ("view", "operate") or name in found:
            raise ConfigError(
                f"--users {path}, line {number}: write name:role:password, the role view or"
                " operate, each name once"
            )
        found[name] = User(password, "view" if role == "view" else "operate")
    if not found:
        raise ConfigError(f"--users {path}: there is nobody in it")
    return found


def _redactions(given: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        task, dot, argument = text.rpartition(".")
        if not (dot and task and argument):
            raise click.UsageError(f"--redact {text!r}: write TASK.ARGUMENT, TASK.* or *.ARGUMENT")
        found.setdefault(task, []).append(argument)
    return found


def _serve(site: object, host: str, port: int, prefix: str, proxies: list[str]) -> None:
    import socket

    import uvicorn

    from headgate.errors import ConfigError

    config = uvicorn.Config(
        # An ASGI application; its own type is not imported where it is not needed.
        site,  # pyright: ignore[reportArgumentType]
        host=host,
        port=port,
        root_path=prefix,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=2,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Before its address is told: who calls at once waits, and is not refused.
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(f"--bind {host}:{port}: {error.strerror or error}") from None
    where = f"[{host}]" if ":" in host else host
    click.echo(f"http://{where}:{listener.getsockname()[1]}{prefix}/")
    uvicorn.Server(config).run(sockets=[listener])
