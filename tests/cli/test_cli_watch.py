"""`headgate watch` and `headgate top`, on every kind of store."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.jobs import Failure, Finish, Progress
from headgate.stores import open_store
from headgate.stores.protocol import Exchange, Output, OutputPiece, Store
from tests.stores import store_url
from tests.waiting import PATIENCE


class Scene:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)
        publish(self.store, gpu=1)
        self.hands = Hands(self.store, "mail")

    def close(self) -> None:
        self.store.declare_dead(self.hands.id, "over")
        for fd in self.hands.registration.fds:
            os.close(fd)
        self.store.close()

    @contextmanager
    def start(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-m", "headgate", "--url", self.url, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(params=["sqlite", "postgres", "bucket-server"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(store_url(request.param, tmp_path, quick=True))
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(store_url("sqlite", tmp_path))
    yield made
    made.close()


def until(process: subprocess.Popen[str], what: str) -> dict[str, object]:
    """The next document that is about this."""
    assert process.stdout is not None
    for line in process.stdout:
        told = json.loads(line)
        if told["what"] == what:
            return told
    raise AssertionError(f"it ended without {what}: {process.stderr and process.stderr.read()}")


def test_a_job_is_followed_to_its_end(scene: Scene) -> None:
    store, hands = scene.store, scene.hands
    first, second = store.submit([job("mail", "gpu"), job("mail", "gpu")])
    (one,) = hands.claim()
    with scene.start("watch", second.id, "--json") as process:
        assert until(process, "state")["state"] == "ready"
        why = until(process, "why")
        assert "gpu" in str(why["text"])
        hands.finish(Finish(one.token, "succeeded"))
        (two,) = hands.claim()
        assert two.job == second.id
        assert until(process, "state")["state"] == "running"
        store.exchange(Exchange(hands.id, progress=[Progress(two.token, 0.4, "4 of 10")]))
        progress = until(process, "progress")
        assert (progress["progress"], progress["progress_text"]) == (0.4, "4 of 10")
        store.put_output([Output(two.token, [OutputPiece(0, "out", 0.0, 0, b"hello\n")])])
        assert until(process, "output")["text"] == "hello\n"
        hands.finish(Finish(two.token, "succeeded", result="7"))
        ended = until(process, "state")
        assert ended["state"] == "succeeded"
        assert ended["job"]["result"] == 7  # type: ignore[index]
        assert process.wait(PATIENCE) == 0
    assert first.id != second.id


def test_the_exit_code_tells_how_it_ended(small: Scene) -> None:
    store, hands = small.store, small.hands
    ended, waits, gone = store.submit([job("mail"), job("resize"), job("resize")])
    (claimed,) = hands.claim()
    store.put_output([Output(claimed.token, [OutputPiece(0, "out", 0.0, 0, b"out\x1b[2J\n")])])
    error = Failure("ValueError", "no such\nthing")
    hands.finish(Finish(claimed.token, "failed", "error", error=error))
    headgate = Command(small.url)
    told = headgate("watch", ended.id)
    assert told.code == 1
    assert told.out == "out\x1b[2J\n"  # a pipe gets it as it was written
    assert "failed (error): ValueError: no such thing" in told.err
    assert headgate("watch", ended.id, "--no-output").out == ""
    store.cancel(gone.id)
    assert headgate("watch", gone.id).code == 1
    late = headgate("watch", waits.id, "--timeout", "0.1")
    assert (late.code, "has not ended after 0.1 s" in late.err) == (1, True)
    assert headgate("watch", "nothing").code == 3


def test_top_shows_groups_workers_queues_and_throughput(scene: Scene) -> None:
    scene.store.submit([job("mail", "gpu") for _ in range(3)] + [job("mail")])
    claimed = scene.hands.claim()
    scene.hands.finish(*(Finish(c.token, "succeeded") for c in claimed if not c.groups))
    headgate = Command(scene.url)
    told = headgate("top", "--once")
    assert told.code == 0
    assert told.out.startswith("1 worker alive, 1 of 5 running, 2 waiting; last minute: 1 succeed")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["gpu", "1", "1", "100%", "2"] in [line[:5] for line in lines]
    assert ["web-1", "alive", "1/5"] in [line[:3] for line in lines]
    assert ["default", "2", "1", "0"] in [line[:4] for line in lines]
    assert headgate("top").out.splitlines()[0] == told.out.splitlines()[0]
    data = headgate("top", "--json").json
    (gpu,) = [group for group in data["groups"] if group["group"] == "gpu"]
    assert (gpu["active"], gpu["limit"], gpu["waiting"]) == (1, 1, 2)
    assert data["throughput"]["succeeded"] == 1
    assert data["workers"][0]["name"] == "web-1"
    assert headgate("top", "--every", "0").code == 2


def test_top_is_live_in_a_terminal_until_q(small: Scene) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "headgate", "--url", small.url, "top", "--every", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "LINES": "40", "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        deadline = time.monotonic() + 30
        written = b""
        small.store.submit([job("mail", "gpu")])
        while b"gpu" not in written or b"1 waiting" not in written:
            assert time.monotonic() < deadline, written
            written += os.read(ours, 65536)
        small.hands.claim()
        while b"1 of 5 running" not in written:
            assert time.monotonic() < deadline, written
            written += os.read(ours, 65536)
        os.write(ours, b"q")
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass  # closed
        assert process.wait(PATIENCE) == 0
    os.close(ours)
