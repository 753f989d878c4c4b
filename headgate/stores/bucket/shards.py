"""Where every task and limit is at home, in a store of several shards: one small object, replaced
by compare-and-swap.

A task, all its limits with all their keys and its jobs live in one shard. So whatever a task and a
limit join must have the same home; a home never changes, and whoever finds a name that has none
gives it one, the first for all. What a directory says is therefore true for ever: it may be
remembered, and must be read again only for a name that it does not hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headgate.errors import ConfigError, DeclarationError, StoreError, StoreUnavailable
from headgate.jobs import NewJob
from headgate.limits import Needs, split_group
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import new_nonce
from headgate.stores.bucket.objects import UNCHANGED, Lost, Objects
from headgate.stores.bucket.patience import patiently
from headgate.stores.protocol import Publication, TaskSpec

FORMAT = 1
TOKENS = 48
"""The shard of an attempt stands in its token, above so many bits."""
MOST_NAMES = 20_000
OWN_GROUPS = ""
"""The name that stands for all groups which submissions name for themselves: there may be as many
of those as jobs, so all tasks that do so have one home."""

T = TypeVar("T")
Name = tuple[str, str]
"""Of what kind (task, limit, cap or schedule), and its name."""


class Homes(msgspec.Struct, omit_defaults=True):
    format: int
    shards: int
    nonce: str = ""
    tasks: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    limits: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    caps: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    schedules: dict[str, int] = msgspec.field(default_factory=dict[str, int])

    def of(self, kind: str) -> dict[str, int]:
        return {
            "task": self.tasks, "limit": self.limits, "cap": self.caps, "schedule": self.schedules,
        }[kind]  # fmt: skip

    def home(self, name: Name) -> int | None:
        return self.of(name[0]).get(name[1])


@dataclass(frozen=True, slots=True)
class Joined:
    """Names that must have one home, and what joins them."""

    by: str
    names: tuple[Name, ...]


def shard_of(token: int) -> int:
    return token >> TOKENS


def hashed(name: str, shards: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % shards


# --- what joins ---------------------------------------------------------------------------------


def of_task(spec: TaskSpec) -> Joined:
    uses = (*spec.limits, *(use for members in spec.one_of for use in members))
    names: dict[Name, None] = {("task", spec.name): None}
    names |= {("task", alias): None for alias in spec.aliases}
    names |= {("limit", use.name): None for use in uses}
    names |= {("cap", cap.name): None for cap in spec.caps}
    return Joined(f"task {spec.name!r}", tuple(names))


def of_publication(said: Publication) -> list[Joined]:
    told = [of_task(spec) for spec in said.tasks]
    # A task that is told of others' ends needs a home, and may have another one than they.
    hears = dict.fromkeys(spec.on_aborted for spec in said.tasks if spec.on_aborted is not None)
    return told + [Joined(f"task {name!r}", (("task", name),)) for name in hears]


def of_job(job: NewJob) -> Joined:
    names: dict[Name, None] = {("task", job.task): None}
    names |= dict.fromkeys(of_needs(job.needs))
    names |= {("cap", split_group(cap.group)[0]): None for cap in job.caps}
    return Joined(f"a job of task {job.task!r}", tuple(names))


def of_needs(needs: Needs) -> Iterable[Name]:
    for need in needs:
        own = not need.name and "/" not in need.group
        yield ("own" if own else "limit"), need.limit


class Directory:
    """The directory of one store; any thread may use it."""

    def __init__(self, objects: Objects, layout: Layout, where: str) -> None:
        self._objects = objects
        self._key = layout.shards
        self._ledger = layout.ledger
        self._where = where
        # One attribute, so that threads need no lock, which a fork might find held.
        self._now = (Homes(FORMAT, 0), "")
        self.in_use: Callable[[int, str], bool] = lambda shard, name: False
        """Does this shard know a group of exactly this name?"""

    @property
    def homes(self) -> Homes:
        return self._now[0]

    # --- to open ----------------------------------------------------------------------------------

    def open(self, shards: int | None) -> None:
        """Read it, or make it with so many shards."""
        if not self.refresh():
            if shards is None:
                raise StoreUnavailable(f"{self._where}: there are no shards here")
            self._make(shards)
            self.refresh()
        if shards not in (None, self.homes.shards):
            raise ConfigError(
                f"{self._where} was made with {self.homes.shards} shards, and their number is"
                f" fixed; the url asks for {shards}: write shards={self.homes.shards}, or leave it"
                " out"
            )

    def _make(self, shards: int) -> None:
        plain = ConfigError(
            f"{self._where} holds a store without shards; the url asks for {shards}: use another"
            " prefix, or leave shards= out"
        )
        if patiently(lambda: self._objects.get(self._ledger)) is not None:
            raise plain
        body = msgspec.json.encode(Homes(FORMAT, shards, new_nonce()))
        try:
            patiently(lambda: self._objects.create(self._key, body))
        except Lost:
            got = patiently(lambda: self._objects.get(self._key))
            if got is None or got.body != body:
                return  # somebody else was first
            # To ourselves: an answer was lost.
        # Somebody who makes a store without shards here looks for this object before and after it
        # makes its ledger, and we for its ledger before and after this: one of us sees the other.
        if patiently(lambda: self._objects.get(self._ledger)) is not None:
            self._objects.delete(self._key)
            raise plain

    def refresh(self) -> bool:
        """Read it again; False: there is none."""
        return self._look() is not None

    def _look(self) -> Homes | None:
        """What this look finds; another thread may remember the outcome of an earlier one."""
        homes, known = self._now
        got = patiently(lambda: self._objects.get(self._key, known or None))
        if got is None:
            if known:
                raise StoreUnavailable(
                    f"{self._where}: the object {self._key} was deleted while it was in use; put it"
                    " back"
                )
            return None
        if got is not UNCHANGED:
            homes = _read(got.body, self._where)
            self._now = (homes, got.etag)
        return homes

    # --- to ask -----------------------------------------------------------------------------------

    def home(self, kind: str, name: str) -> int | None:
        """None: it has none yet."""
        found = self.homes.home((kind, name))
        if found is None:
            homes = self._look()
            found = None if homes is None else homes.home((kind, name))
        return found

    def settle(self, joined: Sequence[Joined]) -> list[int]:
        """The home of each of these, given to it where it had none; a `DeclarationError` where
        they would join what lives in two."""
        while True:
            homes = [home for one in joined if (home := self._known(one)) is not None]
            if len(homes) == len(joined):
                return homes
            # Again, if need be: another thread that read the directory before this may remember
            # what it read after it.
            self._assign(joined)

    def by_hand(self, group: str) -> int:
        """The home of a group that is not used by way of a task."""
        return self.settle([Joined(f"group {group!r}", (("limit", split_group(group)[0]),))])[0]

    def _known(self, joined: Joined) -> int | None:
        homes = self.homes
        home: int | None = None
        for name in joined.names:
            found = homes.home(_settled(name, homes))
            if found is None:
                return None
            if home is not None and found != home:
                raise _two(joined, homes)
            home = found
        return home

    # --- to give homes ----------------------------------------------------------------------------

    def _assign(self, joined: Sequence[Joined]) -> None:
        while True:
            self.refresh()
            now, etag = self._now
            homes = msgspec.json.decode(msgspec.json.encode(now), type=Homes)
            if not self._give(homes, joined):
                return
            if len(homes.limits) > MOST_NAMES:
                raise StoreError(
                    f"{self._where}: more than {MOST_NAMES} limits in a store of several shards;"
                    " name groups name/key, so that one name stands for all of a kind"
                )
            homes.nonce = new_nonce()
            body = msgspec.json.encode(homes)
            try:
                patiently(lambda b=body, e=etag: self._objects.replace(self._key, b, e))
            except Lost:
                # To somebody else, or to ourselves by an answer that was lost: what is there now
                # tells, and if it has given all of these a home there is nothing left to do.
                continue

    def _give(self, homes: Homes, joined: Sequence[Joined]) -> bool:
        """Fill in what has no home; is there anything new?"""
        new = False
        for part in _components(joined, homes):
            names = list(dict.fromkeys(_settled(name, homes) for one in part for name in one.names))
            missing = [name for name in names if homes.home(name) is None]
            if not missing:
                for one in part:
                    _check(one, homes)
                continue
            home = self._choose(homes, part, names, missing)
            for kind, name in missing:
                homes.of(kind)[name] = home
            new = True
        return new

    def _choose(
        self, homes: Homes, part: list[Joined], names: list[Name], missing: list[Name]
    ) -> int:
        found = {home for name in names if (home := homes.home(name)) is not None}
        if len(found) > 1:
            raise _conflict(part, homes)
        own = homes.limits.get(OWN_GROUPS)
        if own is not None and found != {own}:
            # A submission may have named it for itself, and so it counts there already.
            used = next((n for k, n in missing if k == "limit" and self.in_use(own, n)), None)
            if used is not None:
                homes.limits[used] = own
                return self._choose(homes, part, names, [m for m in missing if m[1] != used])
        if found:
            return found.pop()
        if not any(kind == "task" for kind, _ in names):
            # What is used by hand stands where a submission would count it too.
            return own if own is not None else hashed(names[0][1], homes.shards)
        load = [0] * homes.shards
        for home in homes.tasks.values():
            load[home] += 1
        return load.index(min(load))


def _settled(name: Name, homes: Homes) -> Name:
    """A group that a submission named for itself is the limit of its name, if that has a home."""
    kind, text = name
    if kind != "own":
        return name
    return ("limit", text if text in homes.limits else OWN_GROUPS)


def _components(joined: Sequence[Joined], homes: Homes) -> list[list[Joined]]:
    """Those that have a name in common, together."""
    parts: list[list[Joined]] = []
    where: dict[Name, list[Joined]] = {}
    for one in joined:
        part = [one]
        parts.append(part)
        for name in (_settled(name, homes) for name in one.names):
            other = where.get(name)
            if other is not None and other is not part:
                small, large = sorted((part, other), key=len)
                large.extend(small)
                for moved in small:
                    where.update((_settled(each, homes), large) for each in moved.names)
                small.clear()
                part = large
            where[name] = part
        where.update((_settled(name, homes), part) for name in one.names)
    return [part for part in parts if part]


def _conflict(part: list[Joined], homes: Homes) -> DeclarationError:
    """Which of these joins two homes: from those that are known, on by what they join."""
    known = msgspec.json.decode(msgspec.json.encode(homes), type=Homes)
    while True:
        before = sum(map(len, (known.tasks, known.limits, known.caps, known.schedules)))
        for one in part:
            names = [_settled(name, known) for name in one.names]
            found = {home for name in names if (home := known.home(name)) is not None}
            if len(found) > 1:
                return _two(one, known)
            for kind, text in names if found else ():
                known.of(kind)[text] = next(iter(found))
        if before == sum(map(len, (known.tasks, known.limits, known.caps, known.schedules))):
            return DeclarationError("these tasks and limits live in different shards")


def _check(one: Joined, homes: Homes) -> None:
    if len({homes.home(_settled(name, homes)) for name in one.names}) > 1:
        raise _two(one, homes)


def _two(joined: Joined, homes: Homes) -> DeclarationError:
    told: dict[int, str] = {}
    own = ""
    for name in joined.names:
        kind, text = _settled(name, homes)
        home = homes.home((kind, text))
        if home is not None and home not in told:
            told[home] = f"{kind} {text!r}"
            if name[0] == "own" and text == OWN_GROUPS:
                told[home] = f"group {name[1]!r}, as all that submissions name for themselves,"
                own = " Name such groups name/key: then only those of one name live together."
    (one, first), (other, second) = list(told.items())[:2]
    return DeclarationError(
        f"{joined.by} would join two shards: {first} lives in shard {one}, {second} in shard"
        f" {other}. A task and all its limits live in one shard, for good: use other names, or"
        f" another prefix.{own}"
    )


def _read(body: bytes, where: str) -> Homes:
    try:
        homes = msgspec.json.decode(body, type=Homes)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{where}: the directory of its shards cannot be read: {error}") from error
    if homes.format != FORMAT:
        raise StoreError(
            f"{where}: the directory of its shards has format {homes.format}, this Headgate knows"
            f" {FORMAT}"
        )
    return homes
