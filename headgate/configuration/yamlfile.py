"""YAML, read safely: no key twice, dates left as texts, errors with their line."""

from __future__ import annotations

import functools
from typing import Any, cast

import yaml

from headgate.configuration.problems import Path

_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class Unparsed(Exception):
    """The text is not YAML that can be used; `line` where that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class Loader(yaml.SafeLoader):
    """SafeLoader, but no key may stand twice, and dates stay the texts they are written as."""

    line: int | None = None
    """Where the value stands that was made last."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [(tag, pattern) for tag, pattern in rules if tag != _TIMESTAMP]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        self.line = node.start_mark.line + 1
        # PyYAML tells no types of what it makes.
        return super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: set[tuple[str, str]] = set()
        for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            # What << merges may be repeated; and only scalars can be compared.
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                name = (key.tag, str(key.value))
                if name in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                    )
                seen.add(name)
        # As above.
        return super().construct_mapping(node, deep)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def load(text: str) -> Any:
    """What the text says, or `Unparsed`."""
    loader: Loader | None = None
    try:
        loader = Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        raise _unparsed(error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unparsed(f"the character {chr(error.character)!r} cannot stand here", line) from None
    except yaml.YAMLError as error:
        raise Unparsed(" ".join(str(error).split())) from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # A tag such as !!int on a text that is none: the conversion's own error comes out.
        line = None if loader is None else loader.line
        raise Unparsed(f"a value does not fit its kind: {error}", line) from None


def _unparsed(error: yaml.MarkedYAMLError) -> Unparsed:
    mark = error.problem_mark or error.context_mark
    parts = [part for part in (error.context, error.problem) if part]
    return Unparsed(" ".join(parts) or "cannot be read", None if mark is None else mark.line + 1)


def line_of(text: str, path: Path) -> int | None:
    """The line of the value at `path`, or of the nearest one around it."""
    node = _composed(text)
    line: int | None = None
    for step in path:
        found = _inside(node, step)
        if found is None:
            break
        line, node = found
    return line


@functools.lru_cache(maxsize=4)
def _composed(text: str) -> Any:
    """The nodes of a file, kept: there may be many problems to find the lines of."""
    try:
        # As above.
        return yaml.compose(text, Loader=Loader)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _inside(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in cast("list[tuple[Any, Any]]", node.value):
            if key.value == step:
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        items = cast("list[Any]", node.value)
        if step < len(items):
            return items[step].start_mark.line + 1, items[step]
    return None
