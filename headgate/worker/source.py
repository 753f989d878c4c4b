"""Where the code of a task is found from another process."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import msgspec

from headgate import app as apps
from headgate.errors import HeadgateError
from headgate.tasks import Task
from headgate.worker.otel import export_if_told

MAIN_COPY = "__headgate_main__"
"""The name under which a script is run again to find its tasks: not `__main__`, so that
what stands under `if __name__ == "__main__":` is left out."""


class Source(msgspec.Struct, frozen=True):
    """A task by the modules that declare it, as another process can import them."""

    task: str
    module: str
    qualname: str
    path: tuple[str, ...] = ()
    """The import path of the worker."""
    main: str | None = None
    """The file of the script, when the task was defined in one."""
    also: str | None = None
    """The module of the app, when functions are declared as tasks there."""
    url: str | None = None


def source_of(task: Task[..., Any], also: str | None, url: str | None) -> Source:
    module, qualname = task.import_path
    main: str | None = None
    if module == "__main__":
        script = sys.modules["__main__"]
        spec = getattr(script, "__spec__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__") if spec.name != "__main__" else module
        if module == "__main__":
            main = getattr(script, "__file__", None)
            if main is None:
                raise HeadgateError(
                    f"task {task.name!r} was defined interactively: isolate='process' needs a"
                    " module or a script that another process can import"
                )
            main = str(Path(main).resolve())
    path = tuple(entry or str(Path.cwd()) for entry in sys.path)
    return Source(task.name, module, qualname, path, main, also, url)


_found: dict[Source, Task[..., Any]] = {}
_mains: dict[str, types.ModuleType] = {}


def find_task(source: Source) -> Task[..., Any]:
    """Import what declares the task, and find it there."""
    task = _found.get(source)
    if task is None:
        task = _find(source)
        if source.url is not None:
            task.app._url = source.url
        export_if_told(task.app)
        _found[source] = task
    return task


def _find(source: Source) -> Task[..., Any]:
    sys.path[:] = source.path
    if source.also is not None:
        importlib.import_module(source.also)
    if source.main is not None:
        module = _run_script(source.main).__name__
    else:
        module = importlib.import_module(source.module).__name__
    for app in list(apps._apps):
        task = app.tasks.get(source.task)
        if task is not None and task.import_path == (module, source.qualname):
            return task
    raise HeadgateError(
        f"task {source.task!r} is not declared after importing {source.module}"
        f" (looked for {source.qualname}): declare it at module level, not under"
        " if __name__ == '__main__' and not inside a function"
    )


def _run_script(path: str) -> types.ModuleType:
    module = _mains.get(path)
    if module is None:
        module = types.ModuleType(MAIN_COPY)
        module.__file__ = path
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        # In place before it runs: classes look up the module they are defined in.
        sys.modules[MAIN_COPY] = _mains[path] = module
        exec(code, module.__dict__)  # noqa: S102 - the user's own script
    return module


def inside_copy() -> bool:
    """Are we in a script that is being run again only to find its tasks?"""
    return MAIN_COPY in sys.modules
