"""What docstrings show is true."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


def _shows_examples(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return any(">>> " in text for text in found if text)


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "headgate").rglob("*.py"))
    if path.name != "__init__.py" and _shows_examples(path)
]


@pytest.mark.parametrize("module", MODULES)
def test_its_examples(module: str) -> None:
    done = doctest.testmod(importlib.import_module(module))
    assert done.failed == 0


def test_there_are_examples() -> None:
    assert len(MODULES) > 40
