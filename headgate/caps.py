"""Caps: how much may be submitted, and what happens to one submission too many.

A limit decides at claim who may *run*; a cap decides at submit what is *taken in*. The face
fills in the key and stamps the job with `CapUse`s, the store decides.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from headgate.errors import ConcurrencyLimitReached, DeclarationError
from headgate.jobs import CapUse, NewJob, Refusal, Submitted
from headgate.limits import MAX_VALUE, Key, check_name, check_value
from headgate.options import check_unique_for, seconds
from headgate.stores.protocol import CapSpec

Policy = Literal["reject", "skip", "replace", "cancel_running", "block"]
POLICIES: tuple[Policy, ...] = ("reject", "skip", "replace", "cancel_running", "block")

DEFAULT_TIMEOUT = 60.0


def ARGUMENTS() -> None:
    """The key of a cap that is one for each set of arguments, as they are stored."""


class Cap:
    """At most so many jobs may be there; `when_full` says what becomes of one more.

    >>> Cap("tenant", max_total=100, key="tenant_id")
    Cap('tenant', max_total=100, key='tenant_id')

    `max_total` counts the jobs that are not over, `max_waiting` those of them that do not run,
    `unique_for` lets one be submitted in so many seconds. `key`: the name of an argument or a
    callable of the arguments, for a count of its own per key. `when_full`: `reject` raises
    `ConcurrencyLimitReached`, `skip` gives the handle of the job that is there, `replace` puts
    the new job in the place of one that waits, `cancel_running` asks the running one to stop
    and starts after it, `block` waits up to `timeout` seconds (None: for ever) for room.
    """

    __slots__ = ("key", "max_total", "max_waiting", "name", "timeout", "unique_for", "when_full")

    def __init__(
        self,
        name: str,
        *,
        max_total: int | None = None,
        max_waiting: int | None = None,
        unique_for: float | timedelta | None = None,
        key: Key = None,
        when_full: Policy = "reject",
        timeout: float | timedelta | None = DEFAULT_TIMEOUT,
    ) -> None:
        self.name = check_name(name, "cap")
        if "/" in name:
            raise DeclarationError(
                f"cap name {name!r} holds a '/': that separates a cap from its key (tenant/acme)"
            )
        self.max_total = _count(max_total, f"cap {name!r}: max_total")
        self.max_waiting = _count(max_waiting, f"cap {name!r}: max_waiting")
        self.unique_for = check_unique_for(unique_for)
        # Also from untyped code.
        if key is not None and not callable(key) and not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DeclarationError(
                f"cap {name!r}: key must be the name of an argument or a callable, got {key!r}"
            )
        self.key = key
        self.when_full: Policy = check_policy(when_full, f"cap {name!r}: when_full")
        self.timeout = (
            None if timeout is None else seconds(timeout, f"cap {name!r}: timeout", above=False)
        )
        self._check_together()

    def _check_together(self) -> None:
        if not self.rules:
            raise DeclarationError(
                f"cap {self.name!r} caps nothing: give max_total, max_waiting or unique_for"
            )
        changes = self.when_full in ("replace", "cancel_running")
        if self.unique_for is not None and changes:
            raise DeclarationError(
                f"cap {self.name!r}: what was submitted stays submitted until the period is over,"
                f" so unique_for goes with reject, skip or block, not with {self.when_full}"
            )
        if self.when_full == "cancel_running" and self.max_total is None:
            raise DeclarationError(
                f"cap {self.name!r}: cancel_running makes room among jobs that run, which"
                " max_waiting does not count: give max_total"
            )

    @property
    def what(self) -> str:
        return f"cap {self.name!r}"

    @property
    def rules(self) -> tuple[str, ...]:
        """What it counts: `total`, `waiting`, `period`."""
        named = (
            ("total", self.max_total),
            ("waiting", self.max_waiting),
            ("period", self.unique_for),
        )
        return tuple(rule for rule, value in named if value is not None)

    def __repr__(self) -> str:
        shown = [repr(self.name)]
        for name in ("max_total", "max_waiting", "unique_for", "key"):
            value = getattr(self, name)
            if value is not None:
                shown.append(f"{name}={value!r}")
        if self.when_full != "reject":
            shown.append(f"when_full={self.when_full!r}")
        return f"Cap({', '.join(shown)})"

    def _parts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return self._parts() == other._parts() if isinstance(other, Cap) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.name, self.max_total, self.max_waiting, self.unique_for))


def check_policy(value: object, what: str) -> Policy:
    if value not in POLICIES:
        raise DeclarationError(f"{what} is one of {', '.join(POLICIES)}, got {value!r}")
    return value


def check_caps(value: object, what: str = "caps") -> tuple[Cap, ...]:
    """A list of caps, of which no two count the same."""
    # Also from untyped code: one cap instead of a list is an easy mistake.
    if isinstance(value, str | Cap) or not isinstance(value, Sequence):
        raise DeclarationError(f"{what} must be a list of Caps, got {value!r}")
    caps = tuple(cast("Sequence[object]", value))
    for cap in caps:
        if not isinstance(cap, Cap):
            raise DeclarationError(f"{what} must be a list of Caps, one is {cap!r}")
    return no_rule_twice(cast("tuple[Cap, ...]", caps), what)


def no_rule_twice(caps: tuple[Cap, ...], what: str) -> tuple[Cap, ...]:
    seen: set[tuple[str, str]] = set()
    for cap in caps:
        for rule in cap.rules:
            if (cap.name, rule) in seen:
                raise DeclarationError(
                    f"{what}: {cap.name!r} is capped twice by the same count ({rule}): name it once"
                )
            seen.add((cap.name, rule))
    return caps


def unique(task: str, unique_for: float | None, key: Key) -> tuple[Cap, ...]:
    """The cap that `unique_for=` of a task stands for."""
    if unique_for is None:
        return ()
    return (Cap(period_name(task), unique_for=unique_for, key=key or ARGUMENTS),)


def period_name(task: str) -> str:
    return task.replace("/", "|")


def _count(value: object, what: str) -> int | None:
    try:
        return check_value(value, what)
    except DeclarationError:
        raise DeclarationError(
            f"{what} must be a whole number from 0 to {MAX_VALUE}, got {value!r}"
        ) from None


# --- from a cap to its use by one job ----------------------------------------------------------


def arguments_key(args: str) -> str:
    """The same for the same arguments, in whatever order they were named."""
    plain = json.dumps(json.loads(args, parse_float=str), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def use_of(cap: Cap, key: str | None) -> CapUse:
    """The cap with its key filled in. Who blocks is refused by the store, and tries again."""
    blocks = cap.when_full == "block"
    wait = (math.inf if cap.timeout is None else cap.timeout) if blocks else 0.0
    return CapUse(
        group=cap.name if key is None else f"{cap.name}/{key}",
        max_total=cap.max_total,
        max_waiting=cap.max_waiting,
        unique_for=cap.unique_for,
        when_full="reject" if cap.when_full == "block" else cap.when_full,
        wait=wait,
    )


def check_waits(uses: Iterable[CapUse], why: str) -> None:
    """Refuse a submission that may have to wait where nobody can."""
    for use in uses:
        if use.wait:
            raise DeclarationError(
                f"the cap {use.group!r} blocks when it is full, but {why}: give it another"
                " when_full there, with using(caps=[Cap(…)])"
            )


def wait_of(job: NewJob, done: Submitted) -> float:
    """Seconds for which this submission may be tried again: those of the cap that refused it."""
    refused = done.refused
    if refused is None:
        return 0.0
    # Two caps may share a group, each with a count of its own: the one that refused decides.
    return max(
        (
            use.wait
            for use in job.caps
            if use.group == refused.group
            and {
                "total": use.max_total,
                "waiting": use.max_waiting,
                "period": use.unique_for,
            }[refused.rule]
            is not None
        ),
        default=0.0,
    )


def refusal_error(refusal: Refusal) -> ConcurrencyLimitReached:
    return ConcurrencyLimitReached(
        refusal.group,
        refusal.count,
        refusal.cap,
        rule=refusal.rule,
        existing=refusal.existing,
        until=refusal.until,
    )


# --- the catalogue ------------------------------------------------------------------------------


def describe_cap(cap: Cap) -> CapSpec:
    """A cap as the catalogue tells it to those who submit by name."""
    whole = cap.key is ARGUMENTS
    return CapSpec(
        name=cap.name,
        max_total=cap.max_total,
        max_waiting=cap.max_waiting,
        unique_for=cap.unique_for,
        key=cap.key if isinstance(cap.key, str) else None,
        callable=cap.key is not None and not whole and not isinstance(cap.key, str),
        arguments=whole,
        when_full=cap.when_full,
        timeout=cap.timeout,
    )


def cap_of(told: CapSpec) -> Cap:
    """The other way round, for one whose key needs no code."""
    return Cap(
        told.name,
        max_total=told.max_total,
        max_waiting=told.max_waiting,
        unique_for=told.unique_for,
        key=ARGUMENTS if told.arguments else told.key,
        when_full=check_policy(told.when_full, f"cap {told.name!r}: when_full"),
        timeout=told.timeout,
    )
