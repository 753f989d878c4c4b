"""Submitting by name: from the store's catalogue of tasks, or left for a worker to stamp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from headgate.caps import Cap, cap_of, no_rule_twice, period_name, unique
from headgate.codec import encode
from headgate.errors import CapNeedsCode, DeclarationError, InvalidArguments, UnknownTask
from headgate.handle import JobHandle, accepted
from headgate.jobs import NewJob, Submitted
from headgate.limits import check_name
from headgate.options import Options
from headgate.stores.protocol import CapSpec, TaskSpec
from headgate.submit import Keys, Shape, cap_uses, new_job, shape_of, stamp, unrouted_job

if TYPE_CHECKING:
    from headgate.app import App

FRESH = 1.0
"""Seconds for which an entry of the catalogue is not read again."""


class ByName:
    """Makes jobs of tasks whose code is not here."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._specs: dict[str, tuple[float, TaskSpec]] = {}

    def handle(self, done: Submitted) -> JobHandle[Any]:
        return accepted(JobHandle(self._app, done.id, None, done))

    def new_job(self, name: str, payload: object, options: Options, strict: bool) -> NewJob:
        check_name(name, "task")
        what = f"the payload for task {name!r}"
        args = encode(payload, what).decode()
        self._app.check_size(len(args.encode()), what)
        spec = self._spec(name)
        if spec is None:
            if strict:
                raise UnknownTask(
                    f"task {name!r} is declared neither in this app nor by any worker that has"
                    " used this store: check the name, or submit without strict to let the job"
                    " wait for a worker that knows it"
                )
            if options.get("caps") or options.get("unique_for") is not None:
                raise CapNeedsCode(
                    f"task {name!r} cannot be submitted with a cap: no worker has published it in"
                    " this store yet, so nobody here knows what else caps it. Start a worker first"
                )
            return unrouted_job(name, args, options)
        if not spec.payload and not isinstance(payload, Mapping):
            raise InvalidArguments(
                f"{what} must be a mapping of its arguments, got {type(payload).__qualname__}"
            )
        shape = shape_of(spec)
        given = cast("Mapping[str, Any]", payload if isinstance(payload, Mapping) else {})
        caps = _caps(spec, given, options)
        if shape is None or (not spec.payload and _lacks_a_key(shape, given)):
            # A key is a callable, or an argument that is left to its default: only those who
            # have the code can tell the group.
            return unrouted_job(name, args, options, cap_uses(caps, Keys(name, given), args))
        stamped = stamp(replace(shape, caps=caps), given, options, args)
        if stamped.needs:
            self._app.check_needs(stamped)
        return new_job(stamped, spec.name, args, options)

    def _spec(self, name: str) -> TaskSpec | None:
        now = self._app.clock.boot()
        cached = self._specs.get(name)
        if cached is not None and now - cached[0] <= FRESH:
            return cached[1]
        spec = self._app.store.task(name)
        if spec is not None:
            self._specs[name] = (now, spec)
        return spec


def _caps(spec: TaskSpec, args: Mapping[str, Any], options: Options) -> tuple[Cap, ...]:
    """The caps of the task, and those of this submission; what cannot be told here is an error,
    for a job cannot be refused any more once it is stored."""
    given = tuple(options.get("caps", ()))
    told_caps, period = _period(spec, options)
    caps = [*given, *period]
    for told in told_caps:
        # The period of the task is no cap of that name: it stays beside those that are given.
        if any(cap.name == told.name for cap in given) and not _is_period(spec, told):
            continue
        if told.callable:
            raise CapNeedsCode(
                f"task {spec.name!r} cannot be submitted by name: the key of its cap"
                f" {told.name!r} is found by code that is not here. Submit it from the app that"
                " declares it, or key the cap by the name of an argument"
            )
        if told.key is not None and told.key not in args:
            raise CapNeedsCode(
                f"task {spec.name!r} cannot be submitted by name without its argument"
                f" {told.key!r}, by which cap {told.name!r} counts: pass it"
            )
        caps.append(cap_of(told))
    return no_rule_twice(tuple(caps), f"task {spec.name!r}: caps")


def _period(spec: TaskSpec, options: Options) -> tuple[list[CapSpec], tuple[Cap, ...]]:
    """The caps of the task as `unique_for` and `unique_key` of this submission leave them, and
    the one that they make instead."""
    if "unique_for" not in options and "unique_key" not in options:
        return list(spec.caps), ()
    own = next((told for told in spec.caps if _is_period(spec, told)), None)
    left = [told for told in spec.caps if told is not own]
    seconds = cast("float | None", options.get("unique_for", own.unique_for if own else None))
    if seconds is None and "unique_key" in options:
        raise DeclarationError(f"task {spec.name!r}: unique_key says nothing without unique_for")
    if own is None or seconds is None or "unique_key" in options:
        return left, unique(spec.name, seconds, options.get("unique_key"))
    return [*left, replace(own, unique_for=seconds)], ()


def _is_period(spec: TaskSpec, told: CapSpec) -> bool:
    """Is it what `unique_for` of the task stands for?"""
    only = told.max_total is None and told.max_waiting is None
    return only and told.name == period_name(spec.name)


def _lacks_a_key(shape: Shape, args: Mapping[str, Any]) -> bool:
    keys = [use.key for use in shape.uses()] + [shape.fair_by]
    return any(isinstance(key, str) and key not in args for key in keys)
