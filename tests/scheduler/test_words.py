"""What the command line says round a configuration: names, places, what to do instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.stage import Stage
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jobs: dict[str, Any] = {"a": {"command": ["true"]}}
    groups = {"twins": {"job_names": ["b", "c"], "command": ["true"]}}
    (tmp_path / "dsari.json").write_text(json.dumps({"jobs": jobs, "job_groups": groups}))
    return tmp_path


def headgate(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate", *args],
        cwd=folder, env=clean, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_name_that_no_job_of_the_configuration_has_is_refused(folder: Path) -> None:
    done = headgate(folder, "--config", "dsari.json", "submit", "nobody")
    assert done.returncode == 3
    assert "no job 'nobody' in dsari.json" in done.stderr
    assert "known are a, b, c" in done.stderr
    # One that it has may wait for its scheduler.
    assert headgate(folder, "--config", "dsari.json", "submit", "c").returncode == 0
    # Without jobs in force, somebody may come who knows it.
    assert headgate(folder, "--url", "sqlite:///other.db", "submit", "nobody").returncode == 0


def test_a_client_beside_a_configuration_is_told_how_to_name_it(folder: Path) -> None:
    assert "--config dsari.json" in headgate(folder, "jobs", "ls").stderr
    assert "--config dsari.json" not in headgate(folder, "--config", "dsari.json", "jobs").stderr


def test_a_url_without_a_store_is_refused_before_anything_starts(folder: Path) -> None:
    done = headgate(folder, "scheduler", "dsari.json", "--url", "foo://x")
    assert done.returncode == 2
    assert done.stderr.startswith("headgate: no store for url 'foo://x'")
    assert done.stderr.count("\n") == 1


def test_the_scheduler_goes_by_its_own_name(stage: Stage) -> None:
    stage.write({"jobs": {"a": {"command": ["true"]}}})
    tree = stage.start()
    wait_until(lambda: "is ready" in tree.output(), why="ready")
    assert tree.stop() == 0
    assert "headgate scheduler: stopping" in tree.output()
    assert "headgate worker: " not in tree.output()
