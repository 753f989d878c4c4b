"""One configuration, merged: flag > environment > headgate.toml > default."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from headgate.errors import ConfigError, HeadgateError
from headgate.jobs import Retention
from headgate.limits import check_name, check_value, stored_key
from headgate.rates import Rate, read_rate

T = TypeVar("T")

FILE_NAME = "headgate.toml"
DATABASE = "headgate.db"
DEFAULT_URL = f"sqlite:///{DATABASE}"
CONFIG_KEYS = ("url", "concurrency", "queues", "fairness", "retention")
"""What is read here of a file, at its root."""
SCHEDULER_KEYS = (
    *("config_d", "data_dir", "database", "environment", "shutdown_kill_runs"),
    *("shutdown_kill_grace", "schedule_timezone", "jobs", "job_groups", "concurrency_groups"),
    *("notify", "template_dir", "report_html_gz", "report_output_limit"),
    *("report_run_output_start", "report_run_output_end"),
)
"""What `headgate scheduler` reads of the same file; see `headgate.configuration`."""
DEFAULT_LEASE = 30.0
MAX_WEIGHT = 1000

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """One queue as `[queues.NAME]` describes it."""

    concurrency: int | None = None
    """Jobs of this queue that one worker process runs at once; None: as many as it can."""
    weight: int = 1
    paused: bool = False

    @property
    def closed(self) -> bool:
        """Nothing of it may start here."""
        return self.paused or self.concurrency == 0


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. `Config.load()` finds the file and the environment.

    >>> Config.load(environ={}, directory=Path("/nowhere")).url
    'sqlite:///headgate.db'
    """

    url: str = DEFAULT_URL
    default_lease: float = DEFAULT_LEASE
    """Seconds: `[concurrency] default_lease_duration_secs`."""
    limits: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    queues: Mapping[str, QueueConfig] = field(default_factory=dict[str, QueueConfig])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    """Jobs per turn, by fairness key in its stored form."""
    retention: Retention = field(default_factory=Retention)
    path: Path | None = None
    """The file that was read, if any."""

    @staticmethod
    def load(
        path: str | Path | None = None,
        *,
        url: str | None = None,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Config:
        """Merge what was passed, the environment, the file and the defaults.

        The file is `path`, else `HEADGATE_CONFIG`, else `headgate.toml` in the current
        directory; only the last of these may be missing.
        """
        env = os.environ if environ is None else environ
        named = path if path is not None else env.get("HEADGATE_CONFIG") or None
        file = Path(named) if named is not None else (directory or Path()) / FILE_NAME
        if named is None and not file.exists():
            return _merge(_Table({}, "no file", ""), None, url, env)
        content = _without_jobs(_read(file), file)
        return _merge(_Table(content, str(file), ""), file, url, env)

    @staticmethod
    def of(
        content: Mapping[str, Any],
        path: Path,
        *,
        url: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Config:
        """From what was read of a file already; `path` is what errors name."""
        env = os.environ if environ is None else environ
        return _merge(_Table(dict(content), str(path), ""), path, url, env)


def database_url(directory: Path) -> str:
    """The store of a scheduler whose configuration names none."""
    return f"sqlite:///{quote(str(directory / DATABASE))}"


_DATA_OF = {"/etc/dsari": "/var/lib/dsari", "/usr/local/etc/dsari": "/usr/local/lib/dsari"}


def data_directory(content: Mapping[str, Any], base: Path) -> Path:
    """Where the scheduler of a configuration keeps what it writes: `data_dir`, else where dsari
    has it for configurations in this place, else beside the configuration.

    >>> data_directory({}, Path("/etc/dsari")), data_directory({"data_dir": "x"}, Path("/srv"))
    (PosixPath('/var/lib/dsari'), PosixPath('/srv/x'))
    """
    named: object = content.get("data_dir")
    if isinstance(named, str) and named.strip():
        try:
            return base / Path(named).expanduser()
        except RuntimeError:
            return base / named  # no such user: taken as it is written
    if (base.parent.name, base.name) == (".dsari", "etc"):
        return base.parent / "var"
    return Path(_DATA_OF.get(str(base), base))


def _without_jobs(content: dict[str, Any], file: Path) -> dict[str, Any]:
    """Of a file with jobs for `headgate scheduler`, what concerns everybody; the store is where
    the scheduler has it."""
    left = {key: value for key, value in content.items() if key not in SCHEDULER_KEYS}
    if len(left) == len(content) or "url" in left:
        return left
    base = (file if file.is_dir() else file.parent).absolute()
    return {"url": database_url(data_directory(content, base)), **left}


def _read(file: Path) -> dict[str, Any]:
    if file.is_dir() or file.suffix in (".json", ".yaml", ".yml"):
        from headgate.configuration.reading import read

        return read(file).data
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such configuration file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


class _Table:
    """One TOML table, taken apart key by key; what is left over in the end is unknown."""

    def __init__(self, content: object, file: str, path: str) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{file}: {path} must be a table, got {content!r}")
        self.left = dict(cast("dict[str, Any]", content))
        self.file = file
        self.path = path

    def name_of(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def table(self, key: str) -> _Table:
        return _Table(self.left.pop(key, {}), self.file, self.name_of(key))

    def take(self, key: str, read: Callable[[object], T], default: T) -> T:
        if key not in self.left:
            return default
        return self.read(key, read)

    def read(self, key: str, read: Callable[[object], T]) -> T:
        value = self.left.pop(key)
        try:
            return read(value)
        except (HeadgateError, ValueError) as error:
            raise ConfigError(f"{self.file}: {self.name_of(key)}: {error}") from None

    def done(self, known: str) -> None:
        if self.left:
            key = next(iter(self.left))
            raise ConfigError(
                f"{self.file}: unknown key {self.name_of(key)!r}: known here are {known}"
            )


def _merge(file: _Table, path: Path | None, url: str | None, env: Mapping[str, str]) -> Config:
    in_file = file.take("url", _text, DEFAULT_URL)
    concurrency = file.table("concurrency")
    lease = concurrency.take("default_lease_duration_secs", _lease, DEFAULT_LEASE)
    limits_table = concurrency.table("limits")
    limits = {name: limits_table.read(name, _limit(name)) for name in list(limits_table.left)}
    rates_table = concurrency.table("rates")
    rates = {name: rates_table.read(name, _rate(name)) for name in list(rates_table.left)}
    if both := sorted(set(limits) & set(rates)):
        raise ConfigError(
            f"{file.file}: {both[0]!r} stands in concurrency.limits and in concurrency.rates:"
            " a name is a limit or a rate, not both"
        )
    concurrency.done("default_lease_duration_secs, limits, rates")

    queues_table = file.table("queues")
    queues = {
        check_queue(queues_table, n): _queue(queues_table.table(n)) for n in list(queues_table.left)
    }
    fairness = file.table("fairness")
    weights_table = fairness.table("weights")
    weights = {stored_key(k): weights_table.read(k, check_weight) for k in list(weights_table.left)}
    fairness.done("weights")
    retention = _retention(file.table("retention"), env)
    file.done("url, concurrency, queues, fairness, retention")

    name = "HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS"
    if env.get(name):
        lease = _from_env(name, env[name], lambda text: _lease(float(str(text))))
    chosen = url if url is not None else env.get("HEADGATE_URL") or in_file
    return Config(chosen, lease, limits, rates, queues, weights, retention, path)


def check_queue(table: _Table, name: str) -> str:
    try:
        return check_name(name, "queue")
    except HeadgateError as error:
        raise ConfigError(f"{table.file}: {table.name_of(name)}: {error}") from None


def _queue(table: _Table) -> QueueConfig:
    queue = QueueConfig(
        concurrency=table.take("concurrency", _optional_count, None),
        weight=table.take("weight", check_weight, 1),
        paused=table.take("paused", _flag, False),
    )
    table.done("concurrency, weight, paused")
    return queue


def _retention(table: _Table, env: Mapping[str, str]) -> Retention:
    default = Retention()
    found: dict[str, float | None] = {}
    for key in ("succeeded", "failed", "cancelled", "events"):
        found[key] = table.take(key, duration, cast("float | None", getattr(default, key)))
        name = f"HEADGATE_RETENTION_{key.upper()}"
        if env.get(name):
            found[key] = _from_env(name, env[name], duration)
    table.done("succeeded, failed, cancelled, events")
    return Retention(**found)


def _from_env(name: str, text: str, read: Callable[[object], T]) -> T:
    try:
        return read(text)
    except (HeadgateError, ValueError) as error:
        raise ConfigError(f"environment variable {name}: {error}") from None


# --- one reader per kind of value -----------------------------------------------------------


def duration(value: object) -> float | None:
    """Seconds from a number or a text like `90s`, `30m`, `12h`, `7d`, `2w`; `forever` is None.

    >>> duration("12h"), duration(90), duration("forever")
    (43200.0, 90.0, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError(f"must be at least 0 seconds, got {value!r}")
        return float(value)
    if value == "forever":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f'must be seconds, a text like "7d", "12h", "30m", or "forever", got {value!r}'
        )
    return float(match[1]) * _UNITS[match[2] or "s"]


def check_weight(value: object) -> int:
    """Jobs per turn: a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WEIGHT:
        raise ConfigError(f"a weight must be a whole number from 1 to {MAX_WEIGHT}, got {value!r}")
    return value


def _limit(name: str) -> Callable[[object], int | None]:
    def read(value: object) -> int | None:
        check_name(name, "limit")
        return None if value == "unlimited" else check_value(value, name)

    return read


def _rate(name: str) -> Callable[[object], Rate]:
    return lambda value: read_rate(name, value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a non-empty text, got {value!r}")
    return value


def _lease(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 86400:
        raise ValueError(f"must be seconds from 1 to 86400, got {value!r}")
    return float(value)


def _optional_count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"must be a whole number from 0, got {value!r}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"must be true or false, got {value!r}")
    return value
