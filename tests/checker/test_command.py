"""`python -m headgate.checker`: exit codes, words and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate.checker", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    lines = [
        {"ev": "start", "job": "a", "token": 1, "t": 1.0, "groups": {"g": 1}, "pid": 7},
        {"ev": "start", "job": "b", "token": 2, "t": 2.0, "groups": {"g": 1}, "pid": 8},
        {"ev": "end", "job": "b", "token": 2, "t": 3.0, "ok": True},
        {"ev": "end", "job": "a", "token": 1, "t": 4.0, "ok": True},
    ]
    (tmp_path / "run.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "wide.json").write_text('{"limits": {"g": 2}}')
    (tmp_path / "narrow.json").write_text('{"limits": {"g": 2}, "changes": [[0.5, "g", 1]]}')
    (tmp_path / "jobs.json").write_text('["a", {"job": "b"}]')
    (tmp_path / "more.jsonl").write_text('"a"\n"b"\n{"job": "c"}\n')
    (tmp_path / "kills.json").write_text('[{"pid": 7, "t": 9}]')
    return tmp_path


def test_clean(files: Path) -> None:
    done = run(
        files / "run.log", "--limits", files / "wide.json", "--jobs", files / "jobs.json",
        "--kills", files / "kills.json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 2 jobs, 2 attempts, 1 groups, 0 over limit, 0 lost")


def test_faults_exit_1(files: Path) -> None:
    # the raise to 2 was 1.5 s before the start of b: the value in force then is 1
    done = run(files / "run.log", "--limits", files / "narrow.json", "--jobs", files / "more.jsonl")
    assert done.returncode == 1
    assert "g: 2 of 1 units held" in done.stdout
    assert "job c: was submitted and never started" in done.stdout


def test_json(files: Path) -> None:
    done = run(files / "run.log", "--limits", files / "narrow.json", "--json")
    data = json.loads(done.stdout)
    assert data["ok"] is False
    assert data["over"][0]["group"] == "g"
    assert data["usage"]["g"]["peak"] == 2


def test_bad_input_exits_2(files: Path) -> None:
    assert run(files / "run.log").returncode == 2
    assert run(files / "missing.log", "--limits", files / "wide.json").returncode == 2
    bad = run(files / "run.log", "--limits", files / "run.log")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
