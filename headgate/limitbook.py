"""The limits an app knows: those it declares, and those it finds in file and store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headgate.errors import DeclarationError, TooWide, UnknownLimit
from headgate.limits import Limit, Need
from headgate.rates import Pace, pace_of
from headgate.submit import Stamp

if TYPE_CHECKING:
    from headgate.app import App

FRESH = 1.0
"""Seconds for which a value read from the store is good enough to refuse by."""


class LimitBook:
    """Declares limits, resolves their names, and knows which job is too wide for one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._values: dict[str, tuple[float, bool, int | None]] = {}
        self._paces: dict[str, Pace | None] = {}
        self.declared: dict[str, Limit] = {}

    def declare(self, limit: Limit) -> Limit:
        """Note a limit of this app; the same name twice must mean the same limit."""
        with self._lock:
            known = self.declared.setdefault(limit.name, limit.units(1))
        if (known.max, known.key, pace_of(known)) != (limit.max, limit.key, pace_of(limit)):
            raise DeclarationError(
                f"limit {limit.name!r} is declared twice in this app, as {known!r} and as"
                f" {limit.units(1)!r}: declare it once with app.limit(…) and use that"
            )
        return limit

    def find(self, name: str) -> Limit | None:
        """The limit of that name; None where only its value is known (from file or store)."""
        if name in self.declared:
            return self.declared[name]
        self.require(name, name)
        return None

    def require(self, group: str, name: str) -> None:
        """Raise `UnknownLimit` unless somebody declares a value for this group."""
        if name in self._seen or name in self.declared:
            return
        if name in self._app.config.limits or name in self._app.config.rates:
            return
        found = self._app.store.values([name, group])
        if found[name].source not in ("none", "carried"):
            self._seen.add(name)  # every key of it has a value then
            return
        if found[group].source != "none":
            return
        raise UnknownLimit(
            f"limit {name!r} is declared nowhere: not in this app, the configuration file or"
            f" the store. Declare it with app.limit({name!r}, N), in [concurrency.limits], or"
            " pass concurrency_limit="
        )

    def _check_kind(self, name: str) -> None:
        """The same name must not be a limit here and a rate in the file, or the other way round:
        neither could stand for the other."""
        config = self._app.config
        rate = pace_of(self.declared[name]) is not None
        if name in (config.limits if rate else config.rates):
            here, there = ("rate", "limits") if rate else ("limit", "rates")
            raise DeclarationError(
                f"{name!r} is a {here} in this app and stands in [concurrency.{there}] of"
                f" {config.path}: move it to [concurrency.{'rates' if rate else 'limits'}], or give"
                " one of them another name"
            )

    def check(self, stamp: Stamp) -> None:
        """Refuse a job that could never start: an unknown limit, or one it is too wide for."""
        carried = dict(stamp.carried)
        for need in stamp.needs:
            if need.group not in carried:
                self.require(need.group, need.limit)
        if all(need.units == 1 for need in stamp.needs):
            return  # one unit is never too wide, so the common job asks the store nothing
        for need in stamp.needs.all:
            if self._too_narrow(need, carried):
                raise self._too_wide(need)
        for members in stamp.needs.one_of:
            if all(self._too_narrow(need, carried) for need in members):
                raise self._too_wide(members[0])

    def _too_narrow(self, need: Need, carried: dict[str, int | None]) -> bool:
        value = self.value(need, carried)
        # A limit of 0 keeps its jobs until it is raised; nothing is too wide for it.
        if not value:
            return False
        pace = self._paces.get(need.group) or self.declared_pace(need.limit)
        return need.units > (value if pace is None else pace.at_once(value))

    def value(self, need: Need, carried: dict[str, int | None]) -> int | None:
        """The value in force as far as can be told from here."""
        now = self._app.clock.boot()
        cached = self._values.get(need.group)
        if cached is None or now - cached[0] > FRESH:
            record = self._app.store.values([need.group])[need.group]
            cached = (now, record.source != "none", record.value)
            if len(self._values) > 10_000:
                self._values.clear()
                self._paces.clear()
            self._values[need.group] = cached
            self._paces[need.group] = record.pace
        if cached[1]:
            return cached[2]
        # Nobody has published it yet: what this program would publish itself.
        found, value = self.declared_value(need.limit)
        return value if found else carried.get(need.group)

    def declared_value(self, name: str) -> tuple[bool, int | None]:
        """(is there one, the value) that this program declares: in its file, else in code."""
        config = self._app.config
        if name in config.limits:
            return True, config.limits[name]
        if name in config.rates:
            return True, config.rates[name].max
        if name in self.declared:
            return True, self.declared[name].max
        return False, None

    def declared_pace(self, name: str) -> Pace | None:
        """What makes it a rate, by what this program declares."""
        found = self._app.config.rates.get(name) or self.declared.get(name)
        return None if found is None else pace_of(found)

    def _too_wide(self, need: Need) -> TooWide:
        value = self.value(need, {})
        pace = self._paces.get(need.group) or self.declared_pace(need.limit)
        if pace is not None and value:
            return TooWide(
                f"the job asks for {need.units} units of {need.group!r}, of which"
                f" {pace.at_once(value)} may start at once: ask for fewer units, or raise the rate"
                " or its burst"
            )
        return TooWide(
            f"the job asks for {need.units} units of {need.group!r}, which has only"
            f" {value}: ask for fewer units or raise the limit"
        )

    def forget(self) -> None:
        """Forget what was read from the store: there is another one now."""
        self._seen.clear()
        self._values.clear()
        self._paces.clear()

    def code(self) -> dict[str, int | None]:
        """The values declared in code, as they are published."""
        for name in self.declared:
            self._check_kind(name)
        return {name: limit.max for name, limit in self.declared.items()}

    def code_rates(self) -> dict[str, Pace]:
        """Of those, what makes some of them rates."""
        paces = ((name, pace_of(limit)) for name, limit in self.declared.items())
        return {name: pace for name, pace in paces if pace is not None}
