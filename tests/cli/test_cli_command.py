"""The command itself: help, exit codes, errors, pipes, precedence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command

from headgate.cli import Root
from headgate.stores.protocol import Store


def call(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate", *args],
        cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_help_names_the_exit_codes_and_every_noun(tmp_path: Path) -> None:
    done = call("--help", cwd=tmp_path)
    assert done.returncode == 0
    for noun in Root.nouns:
        assert noun in done.stdout
    assert "4  the store is not available" in done.stdout
    assert "HEADGATE_URL" in done.stdout


def test_help_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    code = (
        "import sys; from headgate.cli import root\n"
        "try: root(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m == 'rich' or m.startswith('headgate.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "words",
    [[noun] for noun in Root.nouns]
    + [["jobs", verb] for verb in ("ls", "show", "cancel", "retry", "why")]
    + [
        ["concurrency", verb]
        for verb in (
            "status",
            "set",
            "release",
            "pause",
            "resume",
            "reset",
            "history",
            "ls",
            "weight",
            "import",
            "export",
        )
    ]
    + [["queues", verb] for verb in ("ls", "pause", "resume")]
    + [["workers", "ls"]],
)
def test_every_verb_has_help(headgate: Command, words: list[str]) -> None:
    answer = headgate(*words, "--help")
    assert answer.code == 0
    if words[0] in ("worker", "submit", "demo", "doctor") or len(words) == 2:
        assert "--json" in answer.out
        assert "--url" in answer.out


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    done = call("jobs", "ls", cwd=tmp_path)
    assert done.returncode == 4
    assert "there is no store at sqlite:///headgate.db" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is not a database " * 1000)
    done = call("jobs", "ls", "--url", "sqlite:///x.db", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("url", ["nothing", "ftp://x/y", "sqlite://x.db", "", "sqlite:///"])
def test_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    done = call("jobs", "ls", "--url", url, cwd=tmp_path)
    assert done.returncode in (2, 4), done.stderr
    assert "Traceback" not in done.stderr


def test_flag_over_environment_over_file(tmp_path: Path) -> None:
    for name in ("flag", "env", "file"):
        done = call("submit", name, "--url", f"sqlite:///{name}.db", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (tmp_path / "headgate.toml").write_text('url = "sqlite:///file.db"')

    def task(*flags: str, **env: str) -> str:
        done = call("jobs", "ls", "--json", *flags, cwd=tmp_path, **env)
        return json.loads(done.stdout)["jobs"][0]["task"]

    env = {"HEADGATE_URL": "sqlite:///env.db"}
    assert task() == "file"
    assert task(**env) == "env"
    assert task("--url", "sqlite:///flag.db", **env) == "flag"


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[queues.slow]\nspeed = 3\n")
    done = call("jobs", "ls", "--config", "other.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "other.toml" in done.stderr
    assert "queues.slow.speed" in done.stderr
    assert call("doctor", "--config", "missing.toml", cwd=tmp_path).returncode == 2


def test_a_closed_pipe_is_quiet(tmp_path: Path, store: Store, url: str) -> None:
    from headgate.jobs import NewJob

    store.submit([NewJob("x", args='{"pad": "%s"}' % ("y" * 500)) for _ in range(1000)])
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "headgate", "jobs", "ls", "--limit", "1000", "--url", url],
            stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.stderr == ""


def test_version(headgate: Command) -> None:
    assert headgate("--version").out.startswith("headgate ")


def test_an_unknown_command(headgate: Command) -> None:
    assert headgate("job").code == 2
    assert headgate("jobs", "list").code == 2
