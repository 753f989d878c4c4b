"""From a call to a stored job: the stamp that says what the job needs and whose turn it is.

The same stamp is put on by the submitter, from the task it declares or from the store's
catalogue, and by a worker on jobs that were submitted by somebody who knew neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.errors import DeclarationError, InvalidArguments, InvalidKey
from headgate.jobs import DEFAULT_MAX_LOST, DEFAULT_QUEUE, NewJob
from headgate.limits import Key, Need, Needs, split_group, stored_key
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
    expires: float | None
    max_lost: int
    carried: tuple[tuple[str, int | None], ...] = ()


def stamp(shape: Shape, args: Mapping[str, Any], options: Options) -> Stamp:
    """Put the stamp on one job: pure, and never computed again for that job."""
    group = options.get("concurrency_group")
    if group is None and "concurrency_limit" in options:
        group = shape.task
    keyed: list[str] = []

    def need(use: Use) -> Need:
        if use.key is None:
            return Need(use.name, None, use.units)
        key = stored_key(
            find_key(use.key, args, shape.task, f"limit {use.name!r}"),
            f"key of limit {use.name!r} for task {shape.task!r}",
        )
        keyed.append(key)
        return Need(use.name, key, use.units)

    every: list[Need] = []
    replaced = False
    for use in shape.all:
        if group is not None and use.name == shape.task and group != shape.task:
            every.append(Need(*split_group(group), use.units))
            replaced = True
        else:
            replaced = replaced or use.name == group
            every.append(need(use))
    if group is not None and not replaced:
        every.append(Need(*split_group(group)))
    needs = Needs(tuple(every), tuple(tuple(need(u) for u in m) for m in shape.one_of))
    check_no_group_twice(needs, shape.task)

    if shape.fair_by is not None:
        what = f"fairness key of task {shape.task!r}"
        turn = stored_key(find_key(shape.fair_by, args, shape.task, "fair_by"), what)
    else:
        turn = keyed[0] if keyed else ""
    carried: tuple[tuple[str, int | None], ...] = ()
    if group is not None and "concurrency_limit" in options:
        carried = ((group, options["concurrency_limit"]),)
    return Stamp(
        queue=options.get("queue", shape.queue),
        priority=options.get("priority", shape.priority),
        needs=needs,
        turn=turn,
        expires=_seconds(options["expires"]) if "expires" in options else shape.expires,
        max_lost=options.get("max_lost", shape.max_lost),
        carried=carried,
    )


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


def find_key(key: Key, args: Mapping[str, Any], task: str, what: str) -> object:
    """The value of a key: the argument of that name, or what the callable gives."""
    if isinstance(key, str):
        if key not in args:
            raise InvalidArguments(
                f"task {task!r}: {what} is keyed by argument {key!r}, which is missing"
            )
        return args[key]
    assert key is not None
    try:
        return key(**_accepted(key, args))
    except (InvalidKey, InvalidArguments):
        raise
    except Exception as error:
        raise InvalidKey(
            f"task {task!r}: the key function of {what} raised {type(error).__qualname__}: {error}"
        ) from error


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
        delay=_seconds(options.get("delay")) or 0.0,
        run_at=options["run_at"].timestamp() if "run_at" in options else None,
        expires=stamped.expires,
        max_lost=stamped.max_lost,
        idempotency_key=options.get("idempotency_key"),
        carried=stamped.carried,
        options=stored_options(options),
        parent=parent,
    )


def unrouted_job(task: str, args: str, options: Options) -> NewJob:
    """A job that somebody who knows the task must stamp; what was set travels in `options`."""
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
        expires=_seconds(options.get("expires")),
        max_lost=options.get("max_lost", DEFAULT_MAX_LOST),
        carried=carried,
    )
    job = new_job(blank, task, args, options)
    return replace(job, routed=False)


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
