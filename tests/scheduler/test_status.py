"""What a scheduler tells of its runs when very many wait, or when the store has much else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate import App
from headgate.configuration import status as telling
from headgate.configuration.building import build
from headgate.configuration.checking import load


def _status(folder: Path, own: int, others: int) -> list[str]:
    file = folder / "dsari.json"
    file.write_text(json.dumps({"jobs": {"own": {"command": ["true"]}}}))
    app = build(load(file, environ={})[0])[0]
    for _ in range(own):
        app.tasks["own"].submit()
    other = App(app.url)

    @other.task
    def foreign() -> None: ...

    for _ in range(others):
        foreign.submit()
    other.close()
    lines = list(telling.status(app.store, load(file, environ={})[0]))
    app.close()
    return lines


def test_every_run_that_waits_is_told(tmp_path: Path) -> None:
    lines = _status(tmp_path, 250, 0)
    assert lines[0] == "1 jobs, 0 running, 250 waiting, 0 for later"
    assert len({line for line in lines if line.startswith("[own ")}) == 250


def test_what_else_is_in_the_store_hides_none(tmp_path: Path) -> None:
    lines = _status(tmp_path, 3, 300)
    assert sum(line.startswith("[own ") and "blocked for" in line for line in lines) == 3


def test_where_there_is_more_than_can_be_told_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "MOST", 100)
    lines = _status(tmp_path, 150, 0)
    assert sum(line.startswith("[own ") for line in lines) == 100
    assert any("more: see headgate jobs ls --state ready" in line for line in lines)
