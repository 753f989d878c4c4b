"""`headgate completion`: the script that lets a shell complete commands, options and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from headgate.cli.frame import Frame, Verb, pass_frame

if TYPE_CHECKING:
    from headgate.stores.protocol import Store

MOST = 100
VARIABLE = "_HEADGATE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_frame
def completion(frame: Frame, shell: str) -> None:
    """Print the completion script of SHELL. Names of jobs, queues, groups, tasks and schedules are
    completed from the store.

    \b
    headgate completion bash > ~/.local/share/bash-completion/completions/headgate
    headgate completion zsh > ~/.zfunc/_headgate
    headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    from headgate.cli import root

    found = get_completion_class(shell)
    assert found is not None, "one of those that click knows"
    source = found(root, {}, "headgate", VARIABLE).source()
    if frame.as_json:
        frame.print_json({"shell": shell, "script": source})
    else:
        click.echo(source)


def complete(what: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completes the names of `what` in the store that the line so far means."""

    def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with _store(ctx) as store:
                found = sorted(_NAMES[what](store, incomplete))
        except Exception:
            # Whatever is wrong, a word about it in the middle of somebody's line helps nobody.
            return []
        return [
            CompletionItem(name, help=text or None)
            for name, text in found
            if name.startswith(incomplete)
        ][:MOST]

    return names


class _store:
    """The store that the options of the line name, for a moment; those that cost something for
    each request are left alone."""

    def __init__(self, ctx: click.Context) -> None:
        given: dict[str, Any] = {**ctx.find_root().params, **ctx.meta.get("headgate", {})}
        self._frame = Frame(given.get("url"), given.get("config") or given.get("config_file"), True)

    def __enter__(self) -> Store:
        from headgate.stores import exists, open_store

        url = self._frame.config.url
        if not url.startswith(("sqlite:", "postgres")) or not exists(url):
            raise LookupError(url)
        self._opened = open_store(url)
        return self._opened

    def __exit__(self, *_: object) -> None:
        self._opened.close()


Named = Iterable[tuple[str, str]]


def _jobs(store: Store, _: str) -> Named:
    from headgate.jobs import JobFilter

    return ((job.id, f"{job.task} {job.state}") for job in store.browse(JobFilter(), MOST).jobs)


def _groups(store: Store, incomplete: str) -> Named:
    name, slash, _ = incomplete.partition("/")
    found = {load.limit.group: "" for load in store.loads()}
    if slash:
        found |= {one.group: "" for one in store.held_groups(f"{name}/", limit=MOST).groups}
    return found.items()


_NAMES: dict[str, Callable[[Store, str], Named]] = {
    "job": _jobs,
    "group": _groups,
    "queue": lambda store, _: ((queue.name, "") for queue in store.queues()),
    "task": lambda store, _: ((task.name, "") for task in store.tasks()),
    "schedule": lambda store, _: ((one.spec.name, one.spec.when) for one in store.schedules()),
}
