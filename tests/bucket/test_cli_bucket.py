"""The command line on a bucket: what people see, and what they never do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import App
from headgate.stores import exists, settled, shown
from tests.bucket import server
from tests.cli.conftest import Answer, Command
from tests.waiting import PATIENCE, wait_until

TASKS = """
from headgate import App

app = App()
tenant = app.limit("tenant", 2, key="tenant_id")


@app.task(limits=[tenant])
def charge(tenant_id: str, note: str) -> str:
    return note * 2
"""


class Place:
    """A folder to work in, with a url whose cache is named from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = server.shared().endpoint
        name = folder.name.replace("_", "-")
        self.url = f"s3://{server.BUCKET}/{name}?endpoint={self.endpoint}&cache=copy&poll=0.5"
        self.shown = f"s3://{server.BUCKET}/{name}?endpoint={self.endpoint}"
        self.headgate = Command(self.url)

    def worker(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", "worker", "tasks:app", "--name", "web"],
            cwd=self.folder,
            env={**os.environ, "HEADGATE_URL": self.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    server.credentials()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    (tmp_path / "tasks.py").write_text(TASKS)
    return Place(tmp_path)


def ok(answer: Answer) -> str:
    assert answer.code == 0, answer.err
    assert answer.err == ""
    return answer.out


def test_a_worker_and_all_that_one_asks_about_it(place: Place) -> None:
    worker = place.worker()
    try:
        app = App(place.url)
        wait_until(app.store.workers, why="the worker is there")
        note = "n" * 5000
        handle = app.submit("charge", {"tenant_id": "acme", "note": note})
        assert handle.result(timeout=PATIENCE) == note * 2
        app.close()
        headgate = place.headgate
        assert "web" in ok(headgate("workers", "ls"))
        assert "charge" in ok(headgate("jobs", "ls"))
        assert "succeeded" in ok(headgate("jobs", "show", handle.id))
        assert json.loads(ok(headgate("jobs", "show", handle.id, "--json")))["result"] == note * 2
        assert "succeeded" in ok(headgate("jobs", "why", handle.id))
        waiting = ok(
            headgate("submit", "charge", '{"tenant_id": "a", "note": ""}', "--delay", "99")
        )
        assert "becomes ready" in ok(headgate("jobs", "why", waiting.strip()))
        assert "1 job cancelled" in ok(headgate("jobs", "cancel", waiting.strip()))
        ok(headgate("concurrency", "set", "tenant", "--limit", "3", "--reason", "more"))
        assert "3" in ok(headgate("concurrency", "status"))
        assert "more" in ok(headgate("concurrency", "history"))
        assert headgate("queues", "ls").code == 0
        told = ok(headgate("doctor"))
        assert re.search(r"ledger  \d+ kB, written \d+ times;", told)
        assert re.search(r"objects .*, 2 bodies, 0 probes; 0 that nobody names", told)
        assert "a month: 259,200 writes, 5,184,000 reads" in told
        costs = json.loads(ok(headgate("doctor", "--json")))["costs"]
        assert costs["requests"]["write"] > 0
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=PATIENCE)
    assert f"all queues, {place.shown}\n" in log
    # Neither the client's own words nor where the copy is, nor who we are.
    for word in ("botocore", "cache=", "credential", "Traceback", "WARNING", "ERROR"):
        assert word not in log


def test_who_only_looks_makes_no_store(place: Place) -> None:
    answer = place.headgate("jobs", "ls")
    assert answer.code == 4
    assert answer.err.startswith(f"headgate: there is no store at {place.shown}: ")
    assert not exists(place.url)
    assert ok(place.headgate("migrate")) == f"{place.shown} is new, and has format 1\n"
    assert ok(place.headgate("migrate")) == f"{place.shown} has format 1 already\n"
    assert json.loads(ok(place.headgate("migrate", "--json")))["format"] == 1
    assert exists(place.url)
    assert "no such jobs" in place.headgate("jobs", "ls").err


def test_a_store_of_several_shards_is_refused(place: Place) -> None:
    key = f"{place.folder.name.replace('_', '-')}/shards.json"
    server.client(place.endpoint).put_object(Bucket=server.BUCKET, Key=key, Body=b"{}")
    for words in (["migrate"], ["jobs", "ls"], ["submit", "charge", "{}"], ["worker", "tasks:app"]):
        answer = place.headgate(*words)
        assert answer.code == 4
        assert f"{place.shown}: {key} says that this is a store of several shards" in answer.err
        assert "name another prefix" in answer.err


def test_sql_is_refused_for_a_bucket(place: Place) -> None:
    answer = place.headgate("migrate", "--sql")
    assert answer.code == 2
    assert f"--sql and --grant are for PostgreSQL, not for {place.shown}" in answer.err


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://no-such-bucket/x?endpoint={}", "there is no bucket 'no-such-bucket'; create it"),
        ("s3://tests-x?endpoint={}&profile=nobody", "The config profile (nobody) could not be"),
        ("s3://key:secret@jobs/x", "a url holds no credentials: they come from the environment"),
        ("s3://jobs/x?endpoint=http://key:secret@host", "an endpoint holds no credentials"),
        ("s3://jobs/x?endpoint=http%3A%2F%2Fkey%3Asecret%40host", "an endpoint holds no"),
        ("s3://jobs/x?colour=red", "unknown option 'colour'"),
    ],
)
def test_an_error_says_what_to_do_and_no_secret(place: Place, url: str, told: str) -> None:
    answer = Command(url.format(place.endpoint))("jobs", "ls")
    assert answer.code in (2, 4)
    assert told in answer.err
    assert "secret" not in answer.err


def test_urls_are_shown_short_and_settled(place: Place) -> None:
    assert shown(place.url) == place.shown
    assert settled(place.url) == place.url.replace("cache=copy", f"cache={place.folder}/copy")
    assert settled(settled(place.url)) == settled(place.url)
    plain = "s3://jobs/team%20a?region=eu-west-1"
    assert (shown(plain), settled(plain)) == ("s3://jobs/team%20a", plain)
