"""Completion, asked for as the shells do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command
from hands import job, publish

from headgate.stores.protocol import Store


def completed(url: str, line: str, cwd: Path, **env: str) -> list[str]:
    """The words that bash is offered for the last of the line."""
    words = line.split(" ")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "headgate")],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={
            **os.environ,
            "_HEADGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "HEADGATE_URL": url,
            **env,
        },
    )
    assert done.stderr == ""
    return [found.partition(",")[2] for found in done.stdout.splitlines() if found]


def test_names_come_from_the_store(url: str, store: Store, tmp_path: Path) -> None:
    publish(store, gpu=1, tenant=2)
    (one,) = store.submit([job("mail", "gpu", queue="letters")])
    assert "concurrency" in completed(url, "headgate con", tmp_path)
    assert completed(url, "headgate concurrency status g", tmp_path) == ["gpu"]
    assert completed(url, "headgate queues pause l", tmp_path) == ["letters"]
    assert completed(url, "headgate jobs why ", tmp_path) == [one.id]
    assert completed(url, f"headgate watch {one.id[:9]}", tmp_path) == [one.id]
    assert completed(url, "headgate submit r", tmp_path) == ["resize"]
    assert completed(url, "headgate jobs ls --queue ", tmp_path) == ["letters"]
    other = "sqlite:///elsewhere.db"
    assert completed(other, f"headgate jobs why --url {url} ", tmp_path) == [one.id]
    assert completed(other, f"headgate --url {url} jobs why ", tmp_path) == [one.id]


def test_where_there_is_no_store_there_are_no_names_and_no_words(tmp_path: Path) -> None:
    assert completed("sqlite:///none.db", "headgate jobs why ", tmp_path) == []
    assert completed("nonsense", "headgate jobs why ", tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_that_shell(headgate: Command, shell: str) -> None:
    told = headgate("completion", shell)
    assert told.code == 0
    assert "_HEADGATE_COMPLETE" in told.out
    assert headgate("completion", shell, "--json").json["shell"] == shell
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=told.out, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_refused(headgate: Command) -> None:
    assert headgate("completion", "tcsh").code == 2
