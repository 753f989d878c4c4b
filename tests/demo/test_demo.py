"""`headgate demo`: its last line, its exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until

LINE = re.compile(r"demo: (\d+) jobs, (\d+) groups, 0 over limit, 0 lost")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Demos started by a test; whatever happens, no process or folder of theirs stays."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert_gone(tmp_path)


def demo(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", "demo", *args],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "HEADGATE_DEMO_TEST": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes_of(tmp_path: Path) -> list[int]:
    """Every process that has the folder of this demo in its environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(tmp_path).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def assert_gone(tmp_path: Path) -> None:
    wait_until(lambda: not processes_of(tmp_path), why=lambda: f"left: {processes_of(tmp_path)}")


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


def test_ends_well(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    process = demo(tmp_path)
    started.append(process)
    out, _ = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, out
    last = LINE.fullmatch(out.splitlines()[-1])
    assert last is not None, out
    assert int(last[1]) > 400
    assert int(last[2]) == 6  # three tenants, the shared limit, the pair
    assert "is killed with" in out
    assert "takes its place" in out
    assert re.search(r"[1-9]\d* attempts ended with a killed process", out), out
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_document(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    process = demo(tmp_path, "--json")
    started.append(process)
    out, _ = process.communicate(timeout=2 * PATIENCE)
    data = json.loads(out)
    assert data["ok"] is True, data
    assert data["over"] == data["lost"] == data["doubled"] == []
    assert data["killed_attempts"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, started: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = demo(tmp_path)
    started.append(process)
    read_until(process, "tenant/globex 4/4")
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" not in out
    assert_gone(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_its_workers_end_when_it_is_killed(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = demo(tmp_path)
    started.append(process)
    read_until(process, "tenant/globex 4/4")
    process.kill()
    process.wait()
    assert_gone(tmp_path)
