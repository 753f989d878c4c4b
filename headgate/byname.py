"""Submitting by name: from the store's catalogue of tasks, or left for a worker to stamp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from headgate.codec import encode
from headgate.errors import InvalidArguments, UnknownTask
from headgate.jobs import NewJob
from headgate.limits import check_name
from headgate.options import Options
from headgate.stores.protocol import TaskSpec
from headgate.submit import Shape, new_job, shape_of, stamp, unrouted_job

if TYPE_CHECKING:
    from headgate.app import App

FRESH = 1.0
"""Seconds for which an entry of the catalogue is not read again."""


class ByName:
    """Makes jobs of tasks whose code is not here."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._specs: dict[str, tuple[float, TaskSpec]] = {}

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
            return unrouted_job(name, args, options)
        if not spec.payload and not isinstance(payload, Mapping):
            raise InvalidArguments(
                f"{what} must be a mapping of its arguments, got {type(payload).__qualname__}"
            )
        shape = shape_of(spec)
        given = cast("Mapping[str, Any]", payload if isinstance(payload, Mapping) else {})
        if shape is None or (not spec.payload and _lacks_a_key(shape, given)):
            # A key is a callable, or an argument that is left to its default: only those who
            # have the code can tell the group.
            return unrouted_job(name, args, options)
        stamped = stamp(shape, given, options)
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


def _lacks_a_key(shape: Shape, args: Mapping[str, Any]) -> bool:
    keys = [use.key for use in shape.uses()] + [shape.fair_by]
    return any(isinstance(key, str) and key not in args for key in keys)
