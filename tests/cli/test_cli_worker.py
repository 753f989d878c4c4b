"""`headgate worker` and `headgate submit --wait`, with real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until

SHOP = """
from headgate import App

app = App()

@app.task(max_concurrent=2)
def hello(name: str) -> str:
    return f"hello {name}"

@app.task
def broken() -> None:
    raise ValueError("it broke")

not_an_app = 3
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    return {**clean, "HEADGATE_URL": "sqlite:///shop.db", **more}


def headgate(shop: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headgate", *args],
        cwd=shop, env=environment(**env), capture_output=True, text=True, timeout=90,
    )  # fmt: skip


@pytest.fixture
def worker(shop: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "shop:app", "--name", "web-1"],
        cwd=shop, env=environment(HEADGATE_WORKER_CONCURRENCY="7"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_submit_and_wait(shop: Path, worker: subprocess.Popen[str]) -> None:
    well = headgate(shop, "submit", "hello", '{"name": "é"}', "--wait", "--timeout", "60")
    assert (well.returncode, well.stdout) == (0, '"hello é"\n'), well.stderr
    # The worker has published its tasks, so its flags can be looked at.
    (shown,) = json.loads(headgate(shop, "workers", "ls", "--json").stdout)["workers"]
    assert (shown["name"], shown["concurrency"]) == ("web-1", 7)
    badly = headgate(shop, "submit", "broken", "--strict", "--wait", "--timeout", "60")
    assert badly.returncode == 1
    assert "ValueError: it broke" in badly.stderr
    data = headgate(shop, "submit", "broken", "--wait", "--timeout", "60", "--json")
    assert data.returncode == 1
    assert json.loads(data.stdout)["error"]["type"] == "ValueError"


def test_waiting_ends(shop: Path) -> None:
    given_up = headgate(shop, "submit", "hello", '{"name": "x"}', "--wait", "--timeout", "0.2")
    assert given_up.returncode == 1
    assert "has not ended after 0.2 s; it goes on" in given_up.stderr


def test_burst(shop: Path) -> None:
    for name in ("a", "b", "c"):
        arguments = json.dumps({"name": name})
        made = headgate(shop, "submit", "hello", arguments, "--app", "shop:app")
        assert made.returncode == 0, made.stderr
    done = headgate(shop, "worker", "shop:app", "--burst", "--processes", "2")
    assert done.returncode == 0, done.stderr
    jobs = json.loads(headgate(shop, "jobs", "ls", "--json").stdout)["jobs"]
    assert [job["state"] for job in jobs] == ["succeeded"] * 3


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("shop", "module:app"),
        ("nowhere:app", "nowhere"),
        ("shop:nothing", "nothing"),
        ("shop:not_an_app", "App or Worker"),
    ],
)
def test_a_target_that_is_none(shop: Path, target: str, says: str) -> None:
    done = headgate(shop, "worker", target, "--burst")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    submitted = headgate(shop, "submit", "hello", "--app", target)
    assert submitted.returncode == 2
    assert says in submitted.stderr


NO_STORE = {
    "no such kind": ("nosuch://x", "no store for url 'nosuch://x': use sqlite:///path/to/file.db,"
                     " sqlite:///:memory:, postgresql://user@host/database or s3://bucket/prefix"),
    "no such folder": ("sqlite:////nosuch/dir/x.db",
                       "/nosuch/dir/x.db: the folder /nosuch/dir does not exist"),
    "not to be reached": (
        "postgresql://app:secret@127.0.0.1:1/x",
        'postgresql://app:***@127.0.0.1:1/x: cannot connect (connection to server at "127.0.0.1",'
        " port 1 failed: Connection refused Is the server running on that host and accepting TCP/IP"
        " connections?)"),
    "another version": ("sqlite:///other.db",
                        "sqlite:///{shop}/other.db has schema 99, this Headgate knows 1: it was"
                        " written by a newer version; upgrade this program"),
}  # fmt: skip


@pytest.mark.parametrize("processes", ["1", "3"])
@pytest.mark.parametrize(("url", "says"), NO_STORE.values(), ids=NO_STORE)
def test_why_there_is_no_store_is_told_in_one_line(
    shop: Path, url: str, says: str, processes: str
) -> None:
    """And nothing of what becomes of processes that were started for nothing."""
    with closing(sqlite3.connect(shop / "other.db")) as other:
        other.execute("PRAGMA user_version = 99")
    done = headgate(shop, "worker", "shop:app", "--processes", processes, HEADGATE_URL=url)
    says = says.format(shop=shop)
    assert (done.returncode, done.stderr, done.stdout) == (4, f"headgate worker: {says}\n", "")


def test_so_is_why_there_is_no_app(shop: Path) -> None:
    done = headgate(shop, "worker", "nowhere:app", "--processes", "3")
    says = f"no module 'nowhere': it is looked for in {shop} and on the import path"
    assert (done.returncode, done.stderr) == (2, f"headgate worker: {says}\n")


@pytest.mark.parametrize(
    "flags",
    [
        ["--concurrency", "0"],
        ["--concurrency", "many"],
        ["--processes", "-1"],
        ["--queues", ","],
        ["--shutdown-timeout", "-1"],
        ["--max-jobs-per-process", "0"],
    ],
)
def test_flags_that_cannot_be_used(shop: Path, flags: list[str]) -> None:
    done = headgate(shop, "worker", "shop:app", *flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("grace", "tidies"), [("20", True), ("0.2", False)])
def test_grace_is_the_time_between_term_and_kill(shop: Path, grace: str, tidies: bool) -> None:
    script = "trap 'sleep 1; touch tidied; exit' TERM; touch begun; while :; do sleep 0.1; done"
    (shop / "shop.py").write_text(
        "import os\nfrom headgate import App\napp = App()\n"
        f'app.command("slow", {script!r}, cwd=os.getcwd())\n'
    )
    headgate(shop, "submit", "slow")
    worker = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "shop:app", "--shutdown-timeout", "0",
         "--grace", grace],
        cwd=shop, env=environment(), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until((shop / "begun").exists, why="the command runs")
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert (shop / "tidied").exists() == tidies
