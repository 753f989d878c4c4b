"""What of a job's arguments is not shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

HIDDEN = "•••"
SECRET = re.compile(
    r"pass(word|wd|phrase)?$|secret|token$|api_?key|private_?key|credential|authori[sz]ation"
    r"|card_?number|cvv|iban|ssn$",
    re.IGNORECASE,
)


class Redactor:
    """Hides arguments that are named like secrets, and those that the operator names by task.

    >>> Redactor({"charge": ["amount"]}).shown("charge", '{"amount": 3, "api_key": "x", "to": "a"}')
    {'amount': '•••', 'api_key': '•••', 'to': 'a'}
    >>> Redactor({"letter": ["*"]}).shown("letter", '{"to": "a"}')
    {'to': '•••'}
    """

    def __init__(self, tasks: Mapping[str, Iterable[str]] | None = None) -> None:
        self._tasks = {task: frozenset(names) for task, names in (tasks or {}).items()}

    def hides(self, task: str) -> bool:
        """Is anything of this task hidden? Its words are then not searched either."""
        return task in self._tasks or "*" in self._tasks

    def shown(self, task: str, text: str | None) -> Any:
        if text is None:
            return None
        names = self._tasks.get(task, frozenset[str]()) | self._tasks.get("*", frozenset[str]())
        try:
            value = json.loads(text)
        except ValueError:
            return text
        if "*" in names and not isinstance(value, dict):
            return HIDDEN
        return _without(value, names, top=True)


def _without(value: Any, names: frozenset[str], *, top: bool = False) -> Any:
    if isinstance(value, dict):
        cells = cast("dict[str, Any]", value)
        return {
            name: HIDDEN
            if name in names or ("*" in names and top) or SECRET.search(name)
            else _without(inner, names)
            for name, inner in cells.items()
        }
    if isinstance(value, list):
        return [_without(inner, names) for inner in cast("list[Any]", value)]
    return value
