"""The app: what a program declares, and the store its jobs live in."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headgate.clock import Clock
from headgate.concurrency import Concurrency
from headgate.config import Config
from headgate.context import Context
from headgate.errors import ConfigError, InvalidArguments, JobNotFound
from headgate.handle import is_text
from headgate.jobs import JobRecord
from headgate.limits import Limit, split_group
from headgate.local import local_context
from headgate.options import seconds
from headgate.rates import Pace
from headgate.slotblock import SlotBlock
from headgate.slots import Slots, who
from headgate.stores import open_store, shown
from headgate.stores.protocol import Publication, Schedules, Store
from headgate.submit import Stamp
from headgate.submitting import Submitting
from headgate.tasks import Task
from headgate.threads import in_thread
from headgate.waiting import Watch
from headgate.why import Explained, ask

if TYPE_CHECKING:
    from datetime import timedelta

R = TypeVar("R")

MAX_ARGS_BYTES = 16 * 1024 * 1024


class App(Submitting):
    """Tasks, limits and the store they share.

    >>> app = App("sqlite:///jobs.db")                                  # doctest: +SKIP
    >>> api = app.limit("payments-api", 10)                             # doctest: +SKIP

    Without a url: `HEADGATE_URL`, else the `url` of headgate.toml, else
    `sqlite:///headgate.db`. `release` orders the programs that declare different values for
    one limit: the highest wins. `ageing`: what waited for more than so many seconds is
    looked at first now and then, whatever its priority.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        release: str = "",
        ageing: float | timedelta | None = None,
        config: Config | str | Path | None = None,
        clock: Clock | None = None,
        max_args_bytes: int = MAX_ARGS_BYTES,
    ) -> None:
        super().__init__()
        self._url: str | None = url
        self._config_source: Config | str | Path | None = config
        self.release = release
        self.ageing = None if ageing is None else seconds(ageing, "ageing", above=True)
        self.clock: Clock = clock or Clock()
        self.max_args_bytes = max_args_bytes
        self.slots = Slots(self)
        self.concurrency = Concurrency(lambda: self.store, who)
        self._lock = threading.Lock()
        self._watches: dict[str, Watch] = {}
        self._store: Store | None = None
        self._keepers = 0
        self._forked = False
        _apps.add(self)

    def __repr__(self) -> str:
        url = None if self._url is None else shown(self._url)
        return f"<App {url or 'of the configuration'} with {len(self.tasks)} tasks>"

    # --- configuration and store ---------------------------------------------------------

    @functools.cached_property
    def config(self) -> Config:
        """The configuration, read when it is first needed."""
        if isinstance(self._config_source, Config):
            return self._config_source
        return Config.load(self._config_source, url=self._url)

    @property
    def url(self) -> str:
        return self._url if self._url is not None else self.config.url

    @property
    def store(self) -> Store:
        """The store, opened when it is first needed and again in a forked child."""
        store = self._store
        if store is not None:
            return store
        with self._lock:
            if self._store is None:
                if self._forked and ":memory:" in self.url:
                    raise ConfigError(
                        f"{self.url} lives in the process that opened it: after a fork use a"
                        " file (sqlite:///path/to/file.db)"
                    )
                self._store = open_store(self.url, clock=self.clock)
            return self._store

    @contextmanager
    def kept_open(self) -> Generator[None]:
        """For a worker: its jobs may say `with app:`, which must not close the store under
        it and under all other jobs of this process."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._keepers -= 1

    def close(self) -> None:
        """Close the store; the next use opens it again. It stays open while a worker of this
        app runs in this process."""
        with self._lock:
            if self._keepers:
                return
            store, self._store = self._store, None
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.close()
        if store is not None:
            store.close()

    def __enter__(self) -> Self:
        _ = self.store
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await in_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await in_thread(self.close)

    # --- what is declared ---------------------------------------------------------------

    @property
    def weights(self) -> Mapping[str, int]:
        """Jobs per turn by fairness key; the configuration file wins over code."""
        return {**self._weights, **self.config.weights}

    def publication(self, declarer: str) -> Publication:
        """All that this app declares, as a worker publishes it at its start."""
        specs = {task.name: task.spec() for task in self.tasks.values()}
        return Publication(
            declarer=declarer,
            release=self.release,
            tasks=tuple(specs.values()),
            code=self._book.code(),
            file={**self.config.limits, **{n: r.max for n, r in self.config.rates.items()}},
            code_rates=self._book.code_rates(),
            file_rates={name: rate.pace for name, rate in self.config.rates.items()},
        )

    def declared_schedules(self, declarer: str) -> Schedules:
        """All that this app schedules, as a worker declares it at its start."""
        found = tuple(scheduled.spec() for scheduled in self.schedules.values())
        return Schedules(declarer, self.release, found)

    # --- look ----------------------------------------------------------------------------

    def get_job(self, id: str) -> JobRecord:
        """The job with that id, or `JobNotFound`."""
        record = self.store.job(id) if is_text(id) else None
        if record is None:
            raise JobNotFound(f"no job {id!r} in {shown(self.url)}: it may have been pruned")
        return record

    async def aget_job(self, id: str) -> JobRecord:
        """`get_job` for code in an event loop."""
        return await in_thread(self.get_job, id)

    def why(self, id: str) -> Explained:
        """Why the job is where it is: what it waits for, who holds that, when it may start.

        >>> print(app.why(handle.id))                                   # doctest: +SKIP
        The job waits for tenant/acme: 2 of 2 units are held by …
        """
        if not is_text(id):
            raise JobNotFound(f"no job {id!r} in {shown(self.url)}")
        return ask(self.store, id)

    async def awhy(self, id: str) -> Explained:
        """`why` for code in an event loop."""
        return await in_thread(self.why, id)

    def slot(
        self,
        group: str,
        *,
        limit: int | None = None,
        units: int = 1,
        timeout: float | None = None,
        lease_duration: float | timedelta | None = None,
    ) -> SlotBlock:
        """Hold a slot of a group in code that is not a job; jobs and these share groups.

        >>> with app.slot("gpu", limit=2):                              # doctest: +SKIP
        ...     train()

        Waits `timeout` seconds (None: for ever, 0: not at all) and raises `TimeoutError`.
        """
        return SlotBlock(self, group, limit, units, timeout, lease_duration)

    # --- for the other parts ---------------------------------------------------------------

    def declare(self, limit: Limit) -> Limit:
        return self._book.declare(limit)

    def find_limit(self, name: str) -> Limit | None:
        return self._book.find(name)

    def check_needs(self, stamp: Stamp) -> None:
        self._book.check(stamp)

    def check_size(self, size: int, what: str) -> None:
        if size > self.max_args_bytes:
            raise InvalidArguments(
                f"{what} are {size:,} bytes of JSON, at most {self.max_args_bytes:,} are stored:"
                " pass a reference to where the data lies, or set App(max_args_bytes=…)"
            )

    def declared_value(self, group: str) -> tuple[bool, int | None]:
        return self._book.declared_value(split_group(group)[0])

    def declared_pace(self, group: str) -> Pace | None:
        return self._book.declared_pace(split_group(group)[0])

    def require_limit(self, group: str) -> None:
        self._book.require(group, split_group(group)[0])

    def watch(self, what: str) -> Watch:
        with self._lock:
            if what not in self._watches:
                self._watches[what] = Watch(lambda: self.store, what)
            return self._watches[what]

    @contextmanager
    def replaced(self, url: str, clock: Clock) -> Generator[None]:
        """Another store and clock for the time of the block (`headgate.testing`)."""
        before = (self._url, self._config_source, self.clock, self._store, self._watches)
        self._book.forget()
        self._url, self._config_source, self.clock = url, Config(url=url), clock
        self._store, self._watches = None, {}
        self.__dict__.pop("config", None)
        try:
            yield
        finally:
            self.close()
            self._url, self._config_source, self.clock, self._store, self._watches = before
            self.__dict__.pop("config", None)
            self._book.forget()

    def local_context(self, task: Task[..., Any]) -> Context:
        return local_context(self, task)


_apps: weakref.WeakSet[App] = weakref.WeakSet()
_abandoned: list[Store] = []


def _after_fork_in_child() -> None:
    # The child must not touch the parent's connections, nor close them (closing one drops
    # locks), nor wait for a lock that some thread of the parent held at the fork: the old
    # store is kept unused for ever, and every app starts with a new lock.
    for app in list(_apps):
        app._lock = threading.Lock()
        app._watches = {}
        if app._store is not None:
            _abandoned.append(app._store)
            app._store = None
            app._forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)
