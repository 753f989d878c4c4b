"""From a call to a stored job: the stamp that says what the job needs and whose turn it is.

The same stamp is put on by the submitter, from the task it declares or from the store's
catalogue, and by a worker on jobs that were submitted by somebody who knew neither.
"""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headgate.caps import ARGUMENTS, Cap, arguments_key, use_of
from headgate.errors import DeclarationError, InvalidArguments, InvalidKey
from headgate.jobs import DEFAULT_MAX_LOST, DEFAULT_QUEUE, CapUse, NewJob
from headgate.limits import Key, Need, Needs, stored_key
from headgate.options import Options, stored_options
from headgate.stores.protocol import LimitUse, TaskSpec


@dataclass(frozen=True, slots=True)
class Use:
    """A limit as a task uses it, by name: where its key comes from, how many units."""

    name: str
    key: Key = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """All of a task that the stamp depends on."""

    task: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    expires: float | None = None
    max_lost: int = DEFAULT_MAX_LOST
    all: tuple[Use, ...] = ()
    one_of: tuple[tuple[Use, ...], ...] = ()
    fair_by: Key = None
    caps: tuple[Cap, ...] = ()

    def uses(self) -> Iterable[Use]:
        yield from self.all
        for members in self.one_of:
            yield from members


@dataclass(frozen=True, slots=True)
class Stamp:
    queue: str
    priority: int
    needs: Needs
    turn: str
    fair_limit: str
    expires: float | None
    max_lost: int
    carried: tuple[tuple[str, int | None], ...] = ()
    caps: tuple[CapUse, ...] = ()


def stamp(shape: Shape, args: Mapping[str, Any], options: Options, text: str = "{}") -> Stamp:
    """Put the stamp on one job: pure, and never computed again for that job. `text` is what is
    stored of its arguments."""
    group = options.get("concurrency_group")
    if group is None and "concurrency_limit" in options:
        group = shape.task

    keys = Keys(shape.task, args)

    def need(use: Use) -> Need:
        key = None if use.key is None else keys.find(use.key, f"limit {use.name!r}")
        return Need(use.name, key, use.units)

    every: list[Need] = []
    placed = False
    for use in shape.all:
        if group is not None and use.name == shape.task:
            every.append(need(use) if group == shape.task else Need.named(group, use.units))
            placed = True
        else:
            every.append(need(use))
    if group is not None and not placed:
        every.append(Need(group) if group == shape.task else Need.named(group))
    needs = Needs(tuple(every), tuple(tuple(need(u) for u in m) for m in shape.one_of))
    check_no_group_twice(needs, shape.task)
    turn, fair_limit = _turn(shape, keys, needs)
    carried: tuple[tuple[str, int | None], ...] = ()
    if group is not None and "concurrency_limit" in options:
        carried = ((group, options["concurrency_limit"]),)
    return Stamp(
        queue=options.get("queue", shape.queue),
        priority=options.get("priority", shape.priority),
        needs=needs,
        turn=turn,
        fair_limit=fair_limit,
        expires=_seconds(options["expires"]) if "expires" in options else shape.expires,
        max_lost=options.get("max_lost", shape.max_lost),
        carried=carried,
        caps=cap_uses(shape.caps, keys, text),
    )


def cap_uses(caps: Iterable[Cap], keys: Keys, text: str) -> tuple[CapUse, ...]:
    """The caps that one job must fit under, their keys filled in."""

    def key(cap: Cap) -> str | None:
        if cap.key is None:
            return None
        return arguments_key(text) if cap.key is ARGUMENTS else keys.find(cap.key, cap.what)

    return tuple(use_of(cap, key(cap)) for cap in caps)


def _turn(shape: Shape, keys: Keys, needs: Needs) -> tuple[str, str]:
    """(the fairness key, the limit that it is also the key of).

    The second lets a claim pass over a whole turn when that limit's group is full. So it
    must be a limit that every job of the turn needs: a member of a one-of never is.
    """
    fair_by = shape.fair_by
    if fair_by is None:
        fair_by = next((use.key for use in shape.uses() if use.key is not None), None)
    if fair_by is None:
        return "", ""
    turn = keys.find(fair_by, "fair_by")
    for use in shape.all:
        if use.key == fair_by and any(n.name == use.name and n.key == turn for n in needs.all):
            return turn, use.name
    return turn, ""


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def check_no_group_twice(needs: Needs, task: str) -> None:
    """A job holds a group once: twice would wait for itself."""
    seen: set[str] = set()
    for need in needs:
        if need.group in seen:
            raise DeclarationError(
                f"task {task!r} needs group {need.group!r} twice: ask for it once, with units(n)"
            )
        seen.add(need.group)


class Keys:
    """The keys of one job, in their stored form. A key function is called once per job."""

    def __init__(self, task: str, args: Mapping[str, Any]) -> None:
        self._task = task
        self._args = args
        self._found: dict[object, str] = {}

    def find(self, key: str | Callable[..., object], what: str) -> str:
        if key not in self._found:
            value = self._value(key, what)
            self._found[key] = stored_key(_as_json(value), f"key of {what}, task {self._task!r},")
        return self._found[key]

    def _value(self, key: str | Callable[..., object], what: str) -> object:
        if isinstance(key, str):
            if key not in self._args:
                raise InvalidArguments(
                    f"task {self._task!r}: {what} is keyed by argument {key!r}, which is missing"
                )
            return self._args[key]
        try:
            return key(**_accepted(key, self._args))
        # A key function is anybody's code.
        except Exception as error:
            raise InvalidKey(
                f"task {self._task!r}: the key function of {what} raised"
                f" {type(error).__qualname__}: {error}"
            ) from error


def _as_json(value: object) -> object:
    """A UUID, an enum, a datetime as the scalar they are stored as: whoever submits by name
    has only that, and must come to the same group."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, str | int | float):
        return value
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return value  # refused by its type's name


def _accepted(fn: Callable[..., object], args: Mapping[str, Any]) -> dict[str, Any]:
    """Of the arguments, those that `fn` takes by name."""
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(args)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in args.items() if name in names}


def new_job(
    stamped: Stamp, task: str, args: str, options: Options, parent: str | None = None
) -> NewJob:
    """A stamped job, ready to be stored."""
    return NewJob(
        task=task,
        args=args,
        queue=stamped.queue,
        priority=stamped.priority,
        needs=stamped.needs,
        turn=stamped.turn,
        fair_limit=stamped.fair_limit,
        delay=_seconds(options.get("delay")) or 0.0,
        run_at=options["run_at"].timestamp() if "run_at" in options else None,
        expires=stamped.expires,
        max_lost=stamped.max_lost,
        idempotency_key=options.get("idempotency_key"),
        carried=stamped.carried,
        options=stored_options(options),
        parent=parent,
        caps=stamped.caps,
    )


def unrouted_job(task: str, args: str, options: Options, caps: tuple[CapUse, ...] = ()) -> NewJob:
    """A job that somebody who knows the task must stamp; what was set travels in `options`.
    Its caps are decided now: it cannot be refused later."""
    carried: tuple[tuple[str, int | None], ...] = ()
    if "concurrency_limit" in options:
        # Said now, while the submitter is here: the group defaults to the task's own. The
        # worker that stamps the job finds the group again in `options`.
        options = {**options, "concurrency_group": options.get("concurrency_group", task)}
        carried = ((options["concurrency_group"], options["concurrency_limit"]),)
    blank = Stamp(
        queue=options.get("queue", DEFAULT_QUEUE),
        priority=options.get("priority", 0),
        needs=Needs(),
        turn="",
        fair_limit="",
        expires=_seconds(options.get("expires")),
        max_lost=options.get("max_lost", DEFAULT_MAX_LOST),
        carried=carried,
        caps=caps,
    )
    job = new_job(blank, task, args, options)
    kept = _with_mark(job.options) if caps else job.options
    return replace(job, routed=False, options=kept)


CAPPED = "capped"
"""In the options of an unrouted job: the submitter knew its caps."""


def _with_mark(options: str) -> str:
    return json.dumps({**json.loads(options), CAPPED: True}, ensure_ascii=False)


def knew_caps(options: str) -> bool:
    """Were the caps of this unrouted job decided when it was submitted?"""
    return CAPPED in json.loads(options)


def shape_of(spec: TaskSpec) -> Shape | None:
    """The shape of a task from the catalogue; None where a key is a callable, which only
    those who have the code can call."""

    def use(told: LimitUse) -> Use:
        return Use(told.name, told.key, told.units)

    told = [*spec.limits, *(u for members in spec.one_of for u in members)]
    if spec.fair_callable or any(u.callable for u in told):
        return None
    return Shape(
        task=spec.name,
        queue=spec.queue,
        priority=spec.priority,
        expires=spec.expires,
        max_lost=spec.max_lost,
        all=tuple(use(u) for u in spec.limits),
        one_of=tuple(tuple(use(u) for u in members) for members in spec.one_of),
        fair_by=spec.fair_by,
    )


def describe(use: Use) -> LimitUse:
    """A use as the catalogue tells it."""
    called = use.key is not None and not isinstance(use.key, str)
    return LimitUse(
        use.name, use.key if isinstance(use.key, str) else None, callable=called, units=use.units
    )
