"""What a command is: a program with its arguments, or a line for the shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import cast

from headgate.errors import DeclarationError
from headgate.options import check_whole, seconds

SHELL = "/bin/sh"
DEFAULT_GRACE = 60.0
DEFAULT_MAX_OUTPUT = 4 * 1024 * 1024
_LEAST_OUTPUT = 1024
_MOST_OUTPUT = 1 << 30


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The facts of one run that is about to start."""

    name: str
    job: str
    attempt: int
    token: int
    queue: str
    group: str | None
    """The group picked from a one-of, else the first one beside its own; None without any."""
    groups: tuple[str, ...]
    created_at: float
    ready_at: float
    """When it could have started: the difference to `started_at` is what it waited."""
    started_at: float
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    """What this submission brought."""
    trigger: str = ""
    schedule_time: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What `before` may add to a run, for that run alone."""

    environment: Mapping[str, str] | None = None
    """Over what is inherited, under the command's own."""
    arguments: Sequence[str] = ()
    """Behind all others."""
    cwd: str | Path | None = None
    """Where the command itself names none."""


Before = Callable[[CommandRun], Setting | None]
"""Called in a thread before the run; what it raises fails the attempt."""
After = Callable[[CommandRun, int], object]
"""Called in a thread with the exit code, when nothing of the run is alive any more and before
its end is told. What it gives, if anything, is the result of a run that ended well, in place of
the exit code; an error in it fails such a run."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command as declared; `argv` is what is executed."""

    argv: tuple[str, ...]
    shell: bool = False
    environment: Mapping[str, str] | None = None
    inherit_environment: bool = True
    cwd: str | None = None
    grace: float = DEFAULT_GRACE
    retry_exit_codes: frozenset[int] | None = None
    """None: every failure may be tried again."""
    separate_streams: bool = False
    max_output: int = DEFAULT_MAX_OUTPUT
    before: Before | None = None
    after: After | None = None
    over_when_killed: bool = False
    """A run that is killed because its worker stops has ended, with the exit code that this gives;
    else it goes back into line."""

    def with_arguments(self, name: str, arguments: Iterable[str]) -> tuple[str, ...]:
        """The whole command line; a shell line finds further arguments in $1, $2, …"""
        more = tuple(arguments)
        return (*self.argv, name, *more) if self.shell and more else (*self.argv, *more)

    def may_retry(self, code: int) -> bool:
        return self.retry_exit_codes is None or code in self.retry_exit_codes


def make_command(
    name: str,
    command: Sequence[str] | str,
    *,
    environment: Mapping[str, str] | None = None,
    inherit_environment: bool = True,
    cwd: str | Path | None = None,
    max_execution_grace: float | timedelta = DEFAULT_GRACE,
    retry_exit_codes: Iterable[int] | None = None,
    separate_streams: bool = False,
    max_output: int = DEFAULT_MAX_OUTPUT,
    before: Before | None = None,
    after: After | None = None,
) -> Command:
    """A `Command`, or a `DeclarationError` that names what cannot be used."""
    what = f"command {name!r}"
    shell = isinstance(command, str)
    return Command(
        argv=_check_argv(command, what),
        shell=shell,
        environment=check_environment(environment, what),
        inherit_environment=inherit_environment,
        cwd=None if cwd is None else check_text(os.fspath(cwd), f"{what}: cwd"),
        grace=seconds(max_execution_grace, f"{what}: max_execution_grace", above=False),
        retry_exit_codes=_check_codes(retry_exit_codes, what),
        separate_streams=separate_streams,
        max_output=check_whole(max_output, f"{what}: max_output", _LEAST_OUTPUT, _MOST_OUTPUT),
        before=before,
        after=after,
    )


def _check_argv(command: object, what: str) -> tuple[str, ...]:
    if isinstance(command, str):
        if not command.strip():
            raise DeclarationError(f"{what} is empty: give a line for the shell")
        return (SHELL, "-c", check_text(command, what))
    if not isinstance(command, Sequence) or not command:
        raise DeclarationError(
            f"{what} must be a list of a program and its arguments, or a line for the shell,"
            f" got {command!r}"
        )
    argv = tuple(check_text(part, what) for part in cast("Sequence[object]", command))
    if not argv[0]:
        raise DeclarationError(f"{what} names no program: the first of its parts is empty")
    return argv


def check_text(value: object, what: str) -> str:
    """A text that a program can be given: no NUL, nothing that is no text."""
    if isinstance(value, bytes) or not isinstance(value, str):
        raise DeclarationError(f"{what}: {value!r} is not a text")
    if "\0" in value:
        raise DeclarationError(f"{what}: {value!r} holds a NUL, which no program can be given")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise DeclarationError(f"{what}: {value!r} holds a lone surrogate: leave it out") from None
    return value


def check_environment(given: object, what: str) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{what}: environment must be a mapping of texts, got {given!r}")
    checked: dict[str, str] = {}
    for name, value in cast("Mapping[object, object]", given).items():
        text = check_text(name, f"{what}: environment")
        if not text or "=" in text:
            raise DeclarationError(f"{what}: {text!r} is no name of an environment variable")
        checked[text] = check_text(value, f"{what}: environment {text}")
    return checked


def _check_codes(codes: object, what: str) -> frozenset[int] | None:
    if codes is None:
        return None
    if isinstance(codes, str | bytes) or not isinstance(codes, Iterable):
        raise DeclarationError(f"{what}: retry_exit_codes must be a list of numbers, got {codes!r}")
    return frozenset(
        check_whole(code, f"{what}: an exit code to retry", 1, 255)
        for code in cast("Iterable[object]", codes)
    )
