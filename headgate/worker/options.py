"""What can be said about a worker before it starts."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, get_args

from headgate.errors import ConfigError, how_to_install
from headgate.worker.logs import LogFormat

DEFAULT_CONCURRENCY = 10
DEFAULT_SHUTDOWN_TIMEOUT = 30.0
DEFAULT_GRACE = 5.0

EventLoop = Literal["auto", "asyncio", "uvloop"]
"""In which event loop a worker process runs."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The flags of `headgate worker`; None means: not said, take the default.

    >>> WorkerOptions("shop.jobs:app", concurrency=20, queues=("mail",)).processes
    1
    """

    target: str
    """`module:attribute` of an `App` or a `Worker`."""
    concurrency: int | None = None
    """Jobs at once in one worker process."""
    processes: int = 1
    queues: tuple[str, ...] | None = None
    """None: all queues."""
    groups: tuple[str, ...] | None = None
    """Of a one-of only these limits are picked here; None: any of them."""
    burst: bool = False
    name: str | None = None
    shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT
    max_jobs_per_process: int | None = None
    stall_timeout: float | None = None
    grace: float = DEFAULT_GRACE
    """Seconds between SIGTERM and SIGKILL for an isolated task that must stop."""
    loop: EventLoop = "auto"
    """`auto`: uvloop, which is faster, where it is installed."""
    scheduler: bool = True
    """False: it does not submit what is scheduled; others do."""
    url: str | None = None
    """Overrides the store of the app."""
    log_level: str = "INFO"
    log_format: LogFormat = "text"
    metrics: str | None = None
    """HOST:PORT on which the keeper serves `/metrics`; None: nothing is counted."""
    key_metrics: tuple[str, ...] = ()
    """Limits whose keys are told apart there."""
    otel: bool = False
    """Spans and metrics go to a collector of OpenTelemetry."""

    def checked(self) -> WorkerOptions:
        """Itself, or a `ConfigError` that names the flag that cannot be used."""
        at_least_one("--processes", self.processes)
        if self.concurrency is not None:
            at_least_one("--concurrency", self.concurrency)
        if self.max_jobs_per_process is not None:
            at_least_one("--max-jobs-per-process", self.max_jobs_per_process)
        _seconds("--shutdown-timeout", self.shutdown_timeout)
        _seconds("--grace", self.grace)
        if self.stall_timeout is not None:
            _seconds("--stall-timeout", self.stall_timeout)
        _check_loop(self.loop)
        if self.metrics is not None:
            _check_metrics(self.metrics)
        if self.otel:
            _check_otel()
        if self.queues is not None:
            queues = tuple(dict.fromkeys(queue.strip() for queue in self.queues))
            if not queues or not all(queues):
                raise ConfigError("--queues names no queue, or an empty one: give a,b or leave it")
            return replace(self, queues=queues)
        return self

    def to_message(self) -> dict[str, Any]:
        """For another process, as JSON can carry it."""
        return asdict(self)

    @staticmethod
    def from_message(message: dict[str, Any]) -> WorkerOptions:
        options = WorkerOptions(**message)
        # JSON knows lists only.
        if options.queues is not None:
            options = replace(options, queues=(*options.queues,))
        if options.groups is not None:
            options = replace(options, groups=(*options.groups,))
        return replace(options, key_metrics=(*options.key_metrics,))


def _check_metrics(where: str) -> None:
    try:
        from headgate.telemetry.serving import address
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ConfigError(f"--metrics needs {package}: {how_to_install('metrics')}") from None
    address(where)


def _check_otel() -> None:
    try:
        importlib.import_module("headgate.telemetry.exporting")
    except ImportError as error:
        package = ".".join((error.name or "").split(".")[:2])
        raise ConfigError(f"--otel needs {package}: {how_to_install('otlp')}") from None


def _check_loop(loop: object) -> None:
    if loop not in get_args(EventLoop):
        raise ConfigError(f"--loop must be 'auto', 'asyncio' or 'uvloop', got {loop!r}")
    if loop == "uvloop" and find_spec("uvloop") is None:
        raise ConfigError(f"--loop uvloop needs uvloop: {how_to_install('uvloop')}")


def at_least_one(flag: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{flag} must be a whole number from 1, got {value!r}")


def _seconds(flag: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ConfigError(f"{flag} must be a number of seconds from 0, got {value!r}")
