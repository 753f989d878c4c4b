"""Every verb has help with examples that can be typed, and the same options by the same names."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.cli import root
from headgate.schedules.template import to_text
from headgate.stores.protocol import Schedules, ScheduleSpec, Store
from tests.docs.test_examples import parse
from tests.waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def verbs(command: click.Command = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from verbs(found, (*path, name))


def command(path: tuple[str, ...]) -> click.Command:
    found: click.Command = root
    for name in path:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return found


VERBS = list(verbs())


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_a_verb_has_examples_that_can_be_typed(path: tuple[str, ...]) -> None:
    text = command(path).help or ""
    examples = re.findall(r"^ *((?:\w+=\S+ )*headgate .*)$", text, re.M)
    assert any(f"headgate {' '.join(path)}" in example for example in examples), text
    for example in examples:
        line = re.split(r" (?:>|&&) ", example[example.index("headgate ") :])[0]
        line = re.sub(r"\$\([^)]*\)", "0190c2a4", line)
        parse(shlex.split(line)[1:], example)


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_options_are_explained_and_the_same_everywhere(path: tuple[str, ...]) -> None:
    found = command(path)
    options = {param.name: param for param in found.params if isinstance(param, click.Option)}
    for option in options.values():
        assert option.help, f"{option.opts} has no help"
        assert option.help.endswith("."), f"{option.opts}: {option.help}"
        assert all(re.fullmatch(r"-\w|--[a-z][a-z-]*", word) for word in option.opts), option.opts
    flags = {word for option in options.values() for word in option.opts}
    assert {"--url", "--config", "--json"} <= flags
    assert not flags & {"--count-limit", "--max", "--n", "--why", "--who", "--format"}


def test_all_help_is_shown_without_importing_everything(headgate: Command) -> None:
    told = headgate("--help")
    assert told.code == 0
    for noun in {path[0] for path in VERBS}:
        assert re.search(rf"^  {noun} +\S", told.out, re.M), noun


def test_the_page_of_the_command_line_names_every_verb() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in VERBS:
        assert f"`headgate {' '.join(path)}" in page, f"docs/cli.md does not tell of {path}"


# --- colours --------------------------------------------------------------------------------------


def in_a_terminal(url: str, *args: str, **env: str) -> bytes:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "--url", url, *args],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**clean, "TERM": "xterm-256color", **env},
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:
            pass  # the other end is closed
        process.wait(PATIENCE)
    os.close(ours)
    return written


COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3\d|9\d)(?:;\d+)*m")


def test_colours_are_for_terminals_that_want_them(url: str, store: Store) -> None:
    publish(store, gpu=1)
    store.submit([job("mail", "gpu")])
    assert COLOUR.search(in_a_terminal(url, "jobs", "ls"))
    assert not COLOUR.search(in_a_terminal(url, "jobs", "ls", NO_COLOR="1"))
    assert b"\x1b" not in in_a_terminal(url, "jobs", "ls", TERM="dumb")
    assert b"\x1b" not in in_a_terminal(url, "jobs", "ls", "--json")
    piped = subprocess.run(
        [sys.executable, "-m", "headgate", "--url", url, "jobs", "ls"], capture_output=True
    )
    assert b"\x1b" not in piped.stdout + piped.stderr


# --- what --json prints ---------------------------------------------------------------------------


def told_of(kind: str) -> set[str]:
    """The fields that the page lists under a heading."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^### {kind}\n((?:`.*\n)+)", page, re.M)
    assert found, kind
    return set(re.findall(r"`(\w+)`", found[1].partition(", and")[0]))


def test_json_has_the_fields_that_the_page_lists(headgate: Command, store: Store) -> None:
    publish(store, gpu=1)
    store.declare_schedules(
        Schedules("here", "", (ScheduleSpec("nightly", "0 2 * * *", "UTC", job=to_text(job())),))
    )
    first, _ = store.submit([job("mail", "gpu"), job("mail", "gpu")])
    hands = Hands(store, "mail")
    hands.claim()
    headgate("concurrency", "set", "gpu", "--limit", "1", "--reason", "so")
    shown = headgate("jobs", "show", first.id, "--json").json
    (attempt,) = shown.pop("attempts")
    group = headgate("concurrency", "status", "gpu", "--json").json
    (slot,) = group.pop("slots")
    tick = headgate("schedules", "run-now", "nightly", "--json").json
    top = headgate("top", "--json").json
    for kind, found in {
        "job": shown,
        "attempt": attempt,
        "why": headgate("jobs", "why", first.id, "--json").json,
        "group": group,
        "slot": slot,
        "queue": headgate("queues", "ls", "--json").json["queues"][0],
        "worker": headgate("workers", "ls", "--json").json["workers"][0],
        "schedule": headgate("schedules", "ls", "--json").json["schedules"][0],
        "tick": tick,
        "top": top,
    }.items():
        assert set(found) == told_of(kind), kind
    assert set(top["queues"][0]) == told_of("queue")
    assert set(top["workers"][0]) == told_of("worker")
    (change,) = headgate("concurrency", "history", "--json").json["changes"]
    assert told_of("event") <= set(change)
    store.declare_dead(hands.id, "over")
    for fd in hands.registration.fds:
        os.close(fd)
