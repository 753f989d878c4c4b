"""Promise: type checkers know a task's arguments at `submit` and its result at `result()`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def complaints() -> dict[str, dict[int, set[str]]]:
    """What the type checker says, by file and line."""
    checker = Path(sys.executable).with_name("basedpyright")
    if not checker.exists():
        pytest.skip("basedpyright is not installed beside this Python")
    files = [str(HERE / name) for name in ("right.py", "wrong.py", "loose.py")]
    done = subprocess.run(
        [str(checker), "--outputjson", "--project", str(HERE.parent.parent), *files],
        capture_output=True,
        text=True,
        timeout=150,
    )
    found: dict[str, dict[int, set[str]]] = {}
    for said in json.loads(done.stdout)["generalDiagnostics"]:
        lines = found.setdefault(Path(said["file"]).name, {})
        lines.setdefault(said["range"]["start"]["line"] + 1, set()).add(said.get("rule", "?"))
    return found


def test_right_uses_are_accepted(complaints: dict[str, dict[int, set[str]]]) -> None:
    assert complaints.get("right.py", {}) == {}


def test_functions_without_annotations_are_left_alone(
    complaints: dict[str, dict[int, set[str]]],
) -> None:
    assert complaints.get("loose.py", {}) == {}


def test_wrong_uses_are_refused_and_nothing_else(
    complaints: dict[str, dict[int, set[str]]],
) -> None:
    expected: dict[int, set[str]] = {}
    for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), 1):
        if match := re.search(r"# wrong: (.+)$", line):
            expected[number] = set(match[1].split())
    assert len(expected) > 20
    assert complaints["wrong.py"] == expected
