"""What of a job's arguments is not shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

HIDDEN = "•••"
SECRET = re.compile(
    r"pass(word|wd|phrase|code)?\d*$|secret|tokens?$|(api|access|private|signing)[_-]?key"
    r"|credential|authori[sz]ation|cookie$|card[_-]?number|cvv|iban|ssn$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"([\w.+-]{1,20}://[^\s:/?#@'\"]*:)[^\s/?#'\"]+(?=@)")


class Redactor:
    """Hides arguments that are named like secrets, and those that the operator names by task.

    >>> Redactor({"charge": ["amount"]}).shown("charge", '{"amount": 3, "api_key": "x", "to": "a"}')
    {'amount': '•••', 'api_key': '•••', 'to': 'a'}
    >>> Redactor({"letter": ["*"]}).shown("letter", '{"to": "a"}')
    {'to': '•••'}
    """

    def __init__(self, tasks: Mapping[str, Iterable[str]] | None = None) -> None:
        self._tasks = {task: frozenset(names) for task, names in (tasks or {}).items()}

    def shown(self, task: str, text: str | None) -> Any:
        if text is None:
            return None
        names = self._tasks.get(task, frozenset[str]()) | self._tasks.get("*", frozenset[str]())
        try:
            value = json.loads(text)
        except ValueError:
            return without_passwords(text)
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
    return without_passwords(value) if isinstance(value, str) else value


def without_passwords(text: str) -> str:
    """Without those in addresses, which arguments and the words of errors often hold.

    >>> without_passwords("cannot connect to postgresql://app:hunter2@db/app (refused)")
    'cannot connect to postgresql://app:•••@db/app (refused)'
    """
    return _IN_URL.sub(rf"\1{HIDDEN}", text) if "://" in text else text
