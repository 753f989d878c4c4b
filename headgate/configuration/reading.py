"""From files to plain data: TOML, JSON and YAML, several merged into one, places kept.

What comes out holds nothing but dicts with text keys, lists, texts, numbers, booleans and
None, however odd the file. A file that cannot be read is a problem with a line, not a crash.
"""

from __future__ import annotations

import json
import math
import stat as modes
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headgate.configuration import lines
from headgate.configuration.problems import ConfigurationError, Problem
from headgate.configuration.problems import Path as Steps
from headgate.errors import how_to_install

KINDS = {".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}
MAIN_FILES = ("dsari.yaml", "dsari.yml", "dsari.json")
OWN_FILE = "headgate.toml"
CONFIG_D = "config.d"

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 1_000_000

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class File:
    """One file, read."""

    path: Path
    kind: str
    text: str
    data: Data

    def line_of(self, path: Steps) -> int | None:
        return lines.find(self.kind, self.text, path)


@dataclass(frozen=True, slots=True)
class Source:
    """All files of one configuration, and what they say together."""

    main: Path
    """The file, or the directory, that was named."""
    files: tuple[File, ...]
    data: Data
    dsari: bool
    """Is it in dsari's own format? Then its rules hold where they differ from ours."""

    @property
    def directory(self) -> Path:
        return self.main if self.main.is_dir() else self.main.parent

    def locate(self, path: Steps) -> tuple[str, int | None]:
        """Where a value stands: in the last file that says something about it."""
        for end in range(len(path), -1, -1):
            for file in reversed(self.files):
                if _has(file.data, path[:end]) and (end or not file.data):
                    return str(file.path), file.line_of(path[:end])
        return str(self.files[0].path if len(self.files) == 1 else self.main), None


def _has(data: object, path: Steps) -> bool:
    for step in path:
        if isinstance(data, dict) and step in data:
            data = cast("Data", data)[cast("str", step)]
        elif isinstance(data, list) and isinstance(step, int):
            items = cast("list[Any]", data)
            if step >= len(items):
                return False
            data = items[step]
        else:
            return False
    return True


# --- finding the files ------------------------------------------------------------------------


def read(named: str | Path) -> Source:
    """Read the configuration that `named` stands for, a file or a directory; raises a
    `ConfigurationError` with every file that cannot be read."""
    main = Path(named).absolute()
    try:
        return _read(main)
    except OSError as error:
        raise _unreadable(main, error) from None


def _read(main: Path) -> Source:
    problems: list[Problem] = []
    files: list[File] = []
    merged: Data = {}
    first = _main_files(main)
    waiting = list(first)
    more = True
    while waiting:
        path = waiting.pop(0)
        try:
            files.append(read_file(path))
        except ConfigurationError as error:
            problems.extend(error.problems)
        else:
            said = files[-1].data
            # A table with nothing in it adds nothing; it does not empty that of another file.
            empty = {key for key in said if said[key] is None and isinstance(merged.get(key), dict)}
            merged = deep_merge(merged, {key: said[key] for key in said if key not in empty})
        if more and not waiting:
            more = False
            waiting = _more_files(main, first, files, merged, problems)
    if not files and not problems:
        wanted = ", ".join((OWN_FILE, *MAIN_FILES))
        told = f"cannot be read: neither {wanted} nor a {CONFIG_D} with such files is in it"
        problems.append(Problem(told, file=str(main)))
    if problems:
        raise ConfigurationError(problems)
    return Source(main, tuple(files), merged, dsari=files[0].kind != "toml")


def _main_files(main: Path) -> list[Path]:
    if not main.is_dir():
        return [main]
    if (main / OWN_FILE).exists():
        return [main / OWN_FILE]
    found = [main / name for name in MAIN_FILES if (main / name).exists()]
    return found or _in_directory(main / CONFIG_D)


def _more_files(
    main: Path,
    first: Sequence[Path],
    files: Sequence[File],
    merged: Data,
    problems: list[Problem],
) -> list[Path]:
    """What `config_d` adds: named in a file, or beside a dsari configuration."""
    base = main if main.is_dir() else main.parent
    named: object = merged.get("config_d")
    if isinstance(named, str) and named:
        directory = base / named
        if not directory.is_dir():
            path = ("config_d",)
            said = next(file for file in reversed(files) if "config_d" in file.data)
            told = f"{str(directory)!r} is no directory"
            problems.append(Problem(told, path, str(said.path), said.line_of(path)))
    elif "config_d" not in merged and any(path.name in MAIN_FILES for path in first):
        directory = base / CONFIG_D
    else:
        return []
    return [path for path in _in_directory(directory) if path not in first]


def _in_directory(directory: Path) -> list[Path]:
    """First the YAML files, then the JSON ones, each by name: the later win."""
    if not directory.is_dir():
        return []
    # A link to nothing is among them, and is told of: what it should hold is missing.
    found = [path for path in directory.iterdir() if not path.is_dir()]
    order = {".toml": 0, ".yaml": 1, ".yml": 1, ".json": 2}
    chosen = [path for path in found if path.suffix in order and not path.name.startswith(".")]
    return sorted(chosen, key=lambda path: (order[path.suffix], path.name))


def deep_merge(under: Data, over: Mapping[str, Any]) -> Data:
    """Tables are merged key by key; anything else is replaced.

    >>> deep_merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": [1]})
    {'a': {'x': 1, 'y': 3}, 'b': [1]}
    """
    merged = dict(under)
    for key, value in over.items():
        known: object = merged.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[key] = deep_merge(cast("Data", known), cast("Data", value))
        else:
            merged[key] = value
    return merged


# --- one file -----------------------------------------------------------------------------------


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    what = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    return ConfigurationError([Problem(f"cannot be read: {what}", file=str(path))])


def read_file(path: Path) -> File:
    """One file by itself; a `ConfigurationError` names the line that cannot be read."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(KINDS)
        raise ConfigurationError(
            [Problem(f"is none of {known}: its name says how to read it", file=str(path))]
        )
    try:
        stat = path.stat()
        if not modes.S_ISREG(stat.st_mode):
            # A pipe: to read it could take for ever.
            raise ConfigurationError(
                [Problem("cannot be read: is no regular file", file=str(path))]
            )
        if stat.st_size > MAX_BYTES:
            raise ConfigurationError(
                [Problem(f"has more than {MAX_BYTES:,} bytes", file=str(path))]
            )
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    text, data = parse(raw, kind, str(path))
    return File(path, kind, text, data)


def parse(raw: bytes, kind: str, file: str) -> tuple[str, Data]:
    """The text of a file and what it says: always a table at the root."""

    def refuse(message: str, line: int | None = None) -> ConfigurationError:
        return ConfigurationError([Problem(message, file=file, line=line)])

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refuse(f"not valid UTF-8: byte {raw[error.start]:#04x}", line) from None
    try:
        content = _READERS[kind](text)
    except RecursionError:
        raise refuse("nested too deeply") from None
    except _Unparsed as error:
        raise refuse(str(error), error.line) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise refuse(f"must hold a table at its root, not {kind_of(content)}")
    try:
        return text, _plain_table(cast("dict[Any, Any]", content), (), _Budget())
    except _Odd as error:
        line = lines.find(kind, text, error.path)
        raise ConfigurationError([Problem(str(error), error.path, file, line)]) from None


class _Unparsed(Exception):
    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def _toml(text: str) -> object:
    try:
        # tomllib takes a lone carriage return for no line end at all, as the standard says.
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = lines.in_message(str(error), text)
        raise _Unparsed(f"not valid TOML: {error}", found) from None
    except ValueError as error:  # a number with too many digits
        raise _Unparsed(f"not valid TOML: {error}") from None


def _json(text: str) -> object:
    def table(pairs: list[tuple[str, Any]]) -> Data:
        made: Data = {}
        for key, value in pairs:
            if key in made:
                told = f"not usable: the key {key!r} stands twice in one table"
                raise _Unparsed(told, lines.of_second_key(text))
            made[key] = value
        return made

    def constant(name: str) -> object:
        raise _Unparsed(f"not valid JSON: {name} is no number", lines.of_bare_word(text, name))

    try:
        return json.loads(text, object_pairs_hook=table, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _Unparsed(
            f"not valid JSON: {error.msg} (column {error.colno})", error.lineno
        ) from None
    except ValueError as error:
        raise _Unparsed(f"not valid JSON: {error}") from None


def _yaml(text: str) -> object:
    try:
        from headgate.configuration import yamlfile
    except ImportError:
        raise _Unparsed(
            f"YAML needs PyYAML: {how_to_install('yaml')}, or write it as TOML or JSON"
        ) from None
    try:
        return yamlfile.load(text)
    except yamlfile.Unparsed as error:
        raise _Unparsed(f"not valid YAML: {error}", error.line) from None


_READERS = {"toml": _toml, "json": _json, "yaml": _yaml}


# --- nothing but plain data ------------------------------------------------------------------


class _Odd(Exception):
    def __init__(self, path: Steps, message: str) -> None:
        super().__init__(message)
        self.path = path


class _Budget:
    """YAML's aliases can say a little text many times over: count what it comes to."""

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def spend(self, path: Steps) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Odd(path, f"the file holds more than {MAX_VALUES:,} values")
        if len(path) > MAX_DEPTH:
            raise _Odd(path[:MAX_DEPTH], f"nested more than {MAX_DEPTH} deep")


def _plain(value: object, path: Steps, budget: _Budget) -> Any:
    budget.spend(path)
    if isinstance(value, dict):
        return _plain_table(cast("dict[Any, Any]", value), path, budget)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_plain(item, (*path, i), budget) for i, item in enumerate(items)]
    if isinstance(value, str):
        return _plain_text(value, path)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Odd(path, f"must be a finite number, got {value}")
        return value
    # TOML's dates and times, which every option here takes as text.
    if hasattr(value, "isoformat"):
        return cast("Any", value).isoformat()
    raise _Odd(path, f"a value of this kind has no use here: {type(value).__name__}")


def _plain_table(value: dict[Any, Any], path: Steps, budget: _Budget) -> Data:
    made: Data = {}
    for key, item in value.items():
        name = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
        if not isinstance(name, str):
            raise _Odd((*path, str(key)), f"a key must be a text, got {key!r}: put it in quotes")
        _plain_text(name, (*path, name))
        made[name] = _plain(item, (*path, name), budget)
    return made


def _plain_text(text: str, path: Steps) -> str:
    if "\0" in text:
        raise _Odd(path, "a text holds a NUL character, which nothing that runs can take")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise _Odd(path, "a text holds half a character (a lone surrogate)")
    return text


def kind_of(value: object) -> str:
    """What a value is, in the words of the files.

    >>> kind_of({}), kind_of([]), kind_of(3), kind_of(None)
    ('a table', 'a list', '3', 'null')
    """
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
