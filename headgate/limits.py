"""Limits and what a job needs of them: names, keys, groups, lanes.

A *limit* is a name with a value. A *group* is what is counted: the limit itself, or one
per key of a keyed limit, written `tenant/acme`. What a job needs is stamped once, at
submit, as a `Needs`; from it follow the job's *band* and *lane*, the two texts by which
the ready jobs are ordered in every store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from headgate.errors import DeclarationError, InvalidKey

Key = str | Callable[..., object] | None
"""How a keyed limit finds its key: an argument's name, or a callable of the arguments."""

MAX_NAME = 128
MAX_STORED_KEY = 128
MAX_VALUE = 2**31 - 1

_CONTROL = re.compile(r"[\x00-\x1f\x7f%]")


class Limit:
    """At most `max` units of this name may be held at once, everywhere.

    >>> tenant = Limit("tenant", 2, key="tenant_id")
    >>> gpu = Limit("gpu-memory", 24)
    >>> gpu.units(6).width
    6

    `max=None` means unlimited; `max=0` keeps the jobs and starts none.
    """

    __slots__ = ("key", "max", "name", "width")

    def __init__(self, name: str, max: int | None, *, key: Key = None, units: int = 1) -> None:
        self.name = check_name(name, "limit")
        self.max = check_value(max, name)
        # Also from untyped code.
        if key is not None and not callable(key) and not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DeclarationError(
                f"limit {name!r}: key must be the name of an argument or a callable, got {key!r}"
            )
        self.key = key
        self.width = check_units(units, name)

    def units(self, n: int) -> Limit:
        """The same limit, of which a job takes `n` units instead of one."""
        return Limit(self.name, self.max, key=self.key, units=n)

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key is not None else ""
        units = f", units={self.width}" if self.width != 1 else ""
        return f"Limit({self.name!r}, {self.max}{key}{units})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Limit):
            return NotImplemented
        return (self.name, self.max, self.key, self.width) == (
            other.name,
            other.max,
            other.key,
            other.width,
        )

    def __hash__(self) -> int:
        return hash((self.name, self.max, self.width))


class OneOf:
    """A job needs one of these limits; which one is picked when it is claimed.

    >>> OneOf("host-a", "host-b").members
    ('host-a', 'host-b')
    """

    __slots__ = ("members",)

    def __init__(self, *members: str | Limit) -> None:
        if not members:
            raise DeclarationError("OneOf() needs at least one limit")
        names = [m.name if isinstance(m, Limit) else check_name(m, "limit") for m in members]
        if len(set(names)) != len(names):
            raise DeclarationError(f"OneOf{tuple(names)} names a limit twice")
        self.members = members

    def __repr__(self) -> str:
        return f"OneOf({', '.join(repr(m) for m in self.members)})"


@dataclass(frozen=True, slots=True)
class Need:
    """Units of one group. `key` is the stored form of the key, None for a plain limit.

    Names make bands, and bands must be few. A group that the submission names for itself has
    no name here but is all key (`Need.named`): there may be as many of those as jobs.
    """

    name: str
    key: str | None = None
    units: int = 1

    @staticmethod
    def named(group: str, units: int = 1) -> Need:
        return Need("", group, units)

    @property
    def group(self) -> str:
        if self.key is None:
            return self.name
        return f"{self.name}/{self.key}" if self.name else self.key

    @property
    def limit(self) -> str:
        """The name of the limit, also where the submission gave the whole group."""
        return self.name or split_group(self.group)[0]


@dataclass(frozen=True, slots=True)
class Needs:
    """All that a job must hold to run: every `all`, and one of each `one_of`."""

    all: tuple[Need, ...] = ()
    one_of: tuple[tuple[Need, ...], ...] = ()

    def __iter__(self) -> Iterator[Need]:
        yield from self.all
        for members in self.one_of:
            yield from members

    def __bool__(self) -> bool:
        return bool(self.all or self.one_of)

    @property
    def wide(self) -> bool:
        """Can others that need less keep this one waiting for ever?"""
        return len(self.all) + len(self.one_of) > 1 or any(need.units > 1 for need in self)

    def to_json(self) -> str:
        return json.dumps(
            [
                [list(_cells(n)) for n in self.all],
                [[list(_cells(n)) for n in members] for members in self.one_of],
            ],
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @staticmethod
    @lru_cache(maxsize=8192)
    def from_json(text: str) -> Needs:
        every, one_of = json.loads(text)
        return Needs(
            tuple(Need(*cells) for cells in every),
            tuple(tuple(Need(*cells) for cells in members) for members in one_of),
        )


NO_NEEDS = Needs()


def _cells(need: Need) -> tuple[str, str | None, int]:
    return need.name, need.key, need.units


def band_of(task: str, needs: Needs, fair_limit: str = "") -> str:
    """The band: task, limit names and units, whatever the keys.

    When one of those limits is full or paused as a whole, or a worker does not know the
    task, everything in the band is passed over in one step. `fair_limit` names the limit
    whose key is also the turn, if any: when that group is full, so is the whole turn.
    """
    every = [[n.name, int(n.key is not None), n.units] for n in needs.all]
    one_of = [[[n.name, int(n.key is not None), n.units] for n in m] for m in needs.one_of]
    return json.dumps([task, every, one_of, fair_limit], ensure_ascii=False, separators=(",", ":"))


def lane_of(needs: Needs) -> str:
    """The lane inside its band and turn: the keys, in the order of the band's needs."""
    keys = [need.key for need in needs if need.key is not None]
    return json.dumps(keys, ensure_ascii=False, separators=(",", ":")) if keys else ""


@dataclass(frozen=True, slots=True)
class Band:
    """A band read back from its text."""

    task: str
    all: tuple[tuple[str, bool, int], ...]
    one_of: tuple[tuple[tuple[str, bool, int], ...], ...]
    fair_limit: str = ""

    @property
    def wide(self) -> bool:
        """As `Needs.wide`: can others that need less keep these jobs waiting for ever?"""
        units = [u for _, _, u in self.all] + [u for m in self.one_of for _, _, u in m]
        return len(self.all) + len(self.one_of) > 1 or any(u > 1 for u in units)

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Band:
        task, every, one_of, fair_limit = json.loads(text)
        return Band(
            task,
            tuple((name, bool(keyed), units) for name, keyed, units in every),
            tuple(tuple((n, bool(k), u) for n, k, u in members) for members in one_of),
            fair_limit,
        )


@lru_cache(maxsize=16384)
def needs_of(band: str, lane: str) -> Needs:
    """What the jobs of a lane need, from the two texts alone."""
    shape = Band.parse(band)
    keys: Iterator[str] = iter(json.loads(lane) if lane else ())

    def need(name: str, keyed: bool, units: int) -> Need:
        return Need(name, next(keys) if keyed else None, units)

    every = tuple(need(*n) for n in shape.all)
    return Needs(every, tuple(tuple(need(*n) for n in members) for members in shape.one_of))


# --- names, keys and values -------------------------------------------------------------


def check_name(name: object, what: str) -> str:
    """A name of a limit, task or queue; typed errors say what to change."""
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"the name of a {what} must be a non-empty text, got {name!r}")
    if len(name) > MAX_NAME:
        raise DeclarationError(
            f"the name of {what} {name[:40]!r}… has {len(name)} characters, at most {MAX_NAME}"
        )
    if what == "limit" and "/" in name:
        raise DeclarationError(
            f"limit name {name!r} holds a '/': that separates a limit from its key (tenant/acme)"
        )
    if _CONTROL.sub("", name).strip() != name or not name.isprintable():
        raise DeclarationError(
            f"the name of {what} {name!r} holds control characters, '%' or outer spaces"
        )
    return name


def check_value(value: object, name: str) -> int | None:
    """The value of a limit: a whole number from 0, or None for unlimited."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise DeclarationError(f"limit {name!r}: the value must be a whole number, got {value!r}")
    if not 0 <= value <= MAX_VALUE:
        raise DeclarationError(
            f"limit {name!r}: the value must be from 0 to {MAX_VALUE}, or None for unlimited,"
            f" got {value}"
        )
    return value


def check_units(units: object, name: str) -> int:
    if isinstance(units, bool) or not isinstance(units, int) or not 1 <= units <= MAX_VALUE:
        raise DeclarationError(
            f"limit {name!r}: units must be a whole number from 1, got {units!r}"
        )
    return units


def key_text(value: object, what: str = "key") -> str:
    """The text of a JSON scalar: `42` and `"42"` are the same key, case matters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value
    elif isinstance(value, int):
        text = str(value)
    elif isinstance(value, float):
        text = json.dumps(value)
    else:
        raise InvalidKey(
            f"the {what} must be a text, a number or a boolean, got {type(value).__name__}"
            + (": a job without a key cannot be counted" if value is None else "")
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidKey(f"the {what} {text[:40]!r} is not valid unicode") from None
    return text


def stored_key(value: object, what: str = "key") -> str:
    """The key as it stands in groups and lanes: printable, bounded, one to one.

    `%` and control characters are escaped; a long key keeps its beginning, followed by its
    digest (the full text stays in the job's arguments).

    >>> stored_key("acme"), stored_key(42), stored_key("a\\nb")
    ('acme', '42', 'a%0Ab')
    """
    text = _CONTROL.sub(lambda m: f"%{ord(m.group()):02X}", key_text(value, what))
    if len(text) > MAX_STORED_KEY:
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        text = f"{text[:48]}%~{digest}"
    return text


def split_group(group: str) -> tuple[str, str | None]:
    """`tenant/acme` → (`tenant`, `acme`); `gpu` → (`gpu`, None)."""
    name, slash, key = group.partition("/")
    return name, key if slash else None


def check_group(group: object) -> str:
    """A group as a user writes it: a limit's name, or name/key."""
    if not isinstance(group, str) or not group:
        raise DeclarationError(f"a group is a limit's name or name/key, got {group!r}")
    name, key = split_group(group)
    check_name(name, "limit")
    if key is None:
        return name
    if len(key) <= MAX_STORED_KEY and not re.search(r"[\x00-\x1f\x7f]", key):
        key_text(key)
        return group  # already in its stored form, or needs none
    return f"{name}/{stored_key(key)}"
