"""A crontab, read: its jobs, its variables, and what cannot be carried over."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath

from headgate.configuration.crontimes import same_days
from headgate.configuration.jobchecks import RESERVED
from headgate.configuration.problems import Problem
from headgate.configuration.writing import comment, table
from headgate.errors import DeclarationError, InvalidSchedule
from headgate.schedules.schedule import Schedule
from headgate.schedules.zones import find_zone

_SETTING = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=]+))\s*=\s*(.*?)\s*""")
_UNESCAPED_PERCENT = re.compile(r"(?<!\\)%")
_COMMAND = re.compile(r"(?:\\.|[^%\\]|\\$)*", re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_RANDOM = re.compile(r"(\d+)~(\d+)")
_WORDS_AROUND = frozenset(("sudo", "nice", "ionice", "nohup", "env", "time", "exec", "test", "["))
_ZONE = "CRON_TZ"
"""TZ is for the commands: cron does not look at it."""
_SHELLS = ("/bin/sh", "sh")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that runs something."""

    line: int
    when: str
    command: str
    environment: dict[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    written: str = ""


@dataclass(slots=True)
class Crontab:
    entries: list[Entry] = field(default_factory=list[Entry])
    problems: list[Problem] = field(default_factory=list[Problem])
    """What was left out, and why."""


def read(content: str, file: str, *, system: bool = False) -> Crontab:
    """Take a crontab apart. `system`: a user stands before each command, as in /etc/crontab."""
    found = Crontab()
    variables: dict[str, str] = {}

    def note(number: int, message: str) -> None:
        found.problems.append(Problem(message, file=file, line=number, warning=True))

    for number, row in enumerate(content.split("\n"), 1):
        line = row.strip()
        if not line or line.startswith("#"):
            continue
        if "\0" in line:
            note(number, "left out: it holds a NUL character")
            continue
        if (odd := _no_text(line)) is not None:
            note(number, f"left out: not valid UTF-8: byte {odd:#04x}")
            continue
        setting = None if line[0].isdigit() or line[0] in "*@-" else _SETTING.fullmatch(line)
        if setting is not None:
            name = setting[1] or setting[2] or setting[3] or ""
            given = _unquoted(setting[4])
            if (odd := _unusable(name, given)) is not None:
                note(number, odd)
                continue
            variables[name] = given
            if name == "MAILTO":
                note(number, "MAILTO has no effect: output is kept, and [notify] tells of failures")
            continue
        entry = _entry(line, number, variables, system)
        if isinstance(entry, str):
            note(number, entry)
        else:
            found.entries.append(entry)
    return found


def decoded(raw: bytes) -> str:
    """The text of a crontab. A byte that is none stands in its line, which `read` tells of."""
    return raw.decode("utf-8", "surrogateescape")


def _no_text(line: str) -> int | None:
    """The first byte of the line that is not text."""
    return next((ord(c) & 0xFF for c in line if "\ud800" <= c <= "\udfff"), None)


def _unusable(name: str, given: str) -> str | None:
    """Why a setting is left out, if it is."""
    if not name or "=" in name:
        return f"left out: {name!r} cannot be the name of a variable"
    if name == _ZONE and given:
        try:
            find_zone(given)
        except InvalidSchedule as error:
            return f"left out, so what follows is in the zone before it: {error}"
    return None


def _unquoted(written: str) -> str:
    if len(written) > 1 and written[0] == written[-1] and written[0] in "'\"":
        return written[1:-1]
    return written


def _entry(line: str, number: int, variables: dict[str, str], system: bool) -> Entry | str:
    """The entry, or why it is left out."""
    if line.lower().startswith("@reboot"):
        return "left out: @reboot has no time; let the system start it, or submit it at boot"
    count = 1 if line.startswith("@") else 5
    parts = line.split(None, count + system)
    if len(parts) < count + system + 1:
        return f"left out: it has no {'user and ' if system else ''}command behind its times"
    when, command = " ".join(parts[:count]), parts[-1]
    when = _RANDOM.sub(r"H(\1-\2)", when)
    if when.lower() == "@midnight":
        when = "@daily"
    # cron runs these at the first minute; spreading them is what H is for, and a choice.
    when = _EXACT.get(when.lower(), when)
    try:
        Schedule(when).checked("crontab")
        when = same_days(when)
        Schedule(when).checked("crontab")
    except DeclarationError as error:
        return (
            f"left out: {str(error).removeprefix(chr(115) + 'chedule ' + repr('crontab') + ': ')}"
        )
    user = parts[count] if system else None
    return Entry(number, when, command, dict(variables), user, line)


_EXACT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


# --- writing -----------------------------------------------------------------------------------


def to_toml(crontab: Crontab, file: str) -> str:
    """A headgate.toml that does the same, apart from what its comments say."""
    lines = [
        comment(
            f"From {file}.\n"
            "A run that takes longer than its schedule is not started twice: the next one waits."
            "\nconcurrent_runs = true lets a job overlap with itself, as cron does."
        ),
        "",
    ]
    lines += [comment(f"Line {problem.line}: {problem.message}") for problem in crontab.problems]
    if crontab.problems:
        lines.append("")
    names: set[str] = set()
    for entry in crontab.entries:
        lines.append(comment(f"Line {entry.line}: {entry.written}"))
        lines += table(["jobs", _name(entry, names)], _job(entry))
    return "\n".join(lines).rstrip() + "\n"


def _job(entry: Entry) -> dict[str, object]:
    environment = {k: v for k, v in entry.environment.items() if k not in ("MAILTO", _ZONE)}
    shell = environment.pop("SHELL", "") or "/bin/sh"
    home = environment.get("HOME", "")
    line = _shell_line(entry.command)
    if entry.user is not None:
        command: object = ["sudo", "-H", "-u", entry.user, "--", shell, "-c", line]
    else:
        command = line if shell in _SHELLS else [shell, "-c", line]
    return {
        "command": command,
        "schedule": entry.when,
        "timezone": entry.environment.get(_ZONE) or None,
        "cwd": home if home.startswith("/") else "~",
        **({"environment": environment} if environment else {}),
    }


def _shell_line(command: str) -> str:
    """cron ends a command at its first %, and gives it the rest as input, line by line."""
    line, rest = _split(command)
    if rest is None:
        return line
    told = [part.replace("\\%", "%") for part in _UNESCAPED_PERCENT.split(rest)]
    if not told[-1]:
        told.pop()  # the last line has ended already
    if not told:
        return f"{{ {line}\n}} < /dev/null"
    # On a line of its own: it may end with a comment, or with &.
    return f"printf '%s\\n' {shlex.join(told)} | {{ {line}\n}}"


def _split(command: str) -> tuple[str, str | None]:
    """What runs, and its input. A backslash takes away what the next character means, be it % or
    another backslash: the % of \\% is one that ends the command."""
    found = _COMMAND.match(command)
    line = "" if found is None else found[0]
    rest = command[len(line) + 1 :] if len(line) < len(command) else None
    return _ESCAPED.sub(lambda pair: "%" if pair[0] == "\\%" else pair[0], line).strip(), rest


def _name(entry: Entry, names: set[str]) -> str:
    """After the program, with a number where that is taken."""
    try:
        words = shlex.split(_split(entry.command)[0])
    except ValueError:
        words = entry.command.split()
    chosen = "job"
    for word in words:
        base = re.sub(r"[^-A-Za-z0-9_+.]", "", PurePath(word).name).strip(".")
        if base and base not in _WORDS_AROUND and not word.startswith("-") and "=" not in word:
            chosen = base[:50]
            if chosen.startswith(RESERVED):
                chosen = chosen.replace(".", "-", 1)
            break
    name, count = chosen, 1
    while name in names:
        count += 1
        name = f"{chosen}-{count}"
    names.add(name)
    return name
