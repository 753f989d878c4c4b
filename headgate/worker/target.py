"""From `module:attribute` to the app, with errors that say what is wrong."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from headgate.app import App
from headgate.errors import ConfigError, HeadgateError
from headgate.worker.embedded import Worker


@dataclass(frozen=True, slots=True)
class Target:
    """What a target names: an app, and the worker that wraps it, if it is one."""

    app: App
    module: str
    worker: Worker | None = None


def find_target(target: str) -> Target:
    """Import `module:attribute`, from the current directory too.

    >>> find_target("shop.jobs:app").app                                # doctest: +SKIP
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{target!r} is not of the form module:app, for example shop.jobs:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except HeadgateError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise ConfigError(
                f"no module {module_name!r}: it is looked for in {here} and on the import path"
            ) from None
        raise ConfigError(f"module {module_name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(
                f"module {module_name!r} has no {attribute!r}: name the App or Worker in it"
            ) from None
    if isinstance(found, App):
        return Target(found, module_name)
    if isinstance(found, Worker):
        return Target(found.app, module_name, found)
    raise ConfigError(
        f"{target!r} is a {type(found).__name__}: it must be a headgate App or Worker"
    )
