"""Telling of failures, recoveries and runs that take long: by a command, and to a web address."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headgate.notify import NotDelivered, tell_command, tell_webhook
from tests.scheduler.stage import Stage
from tests.scheduler.test_runs import ended, trigger
from tests.waiting import wait_until


class Heard:
    """A web server that notes what it is told; it refuses the first so many."""

    def __init__(self, refuse: int = 0) -> None:
        self.told: list[dict[str, Any]] = []
        self.refuse = refuse
        heard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if heard.refuse:
                    heard.refuse -= 1
                    self.send_response(503)
                else:
                    heard.told.append(json.loads(body))
                    self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the test reads what was told."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def occasions(self) -> list[str]:
        return [told["occasion"] for told in self.told]


@pytest.fixture
def heard() -> Any:
    found = Heard(refuse=1)
    yield found
    found.close()


def test_failure_recovery_and_over_run_are_told_once_each(stage: Stage, heard: Heard) -> None:
    out = stage.folder / "told"
    stage.write(
        {
            "notify": {
                "command": f"cat >> {out}; echo >> {out}; echo $RUN_ID $EXIT_CODE >> {out}.codes",
                "webhook": heard.url,
            },
            "jobs": {
                "turns": {"command": ["sh", "-c", "exit ${CODE:-0}"], "job_group": "some"},
                "slow": {"command": ["sleep", "3"], "over_run_after": 1},
                "quiet": {"command": ["false"], "notify": False},
            },
        }
    )
    tree = stage.start()
    for count, code in enumerate((0, 4, 5, 0, 0), 1):
        trigger(stage, "turns", {"environment": {"CODE": code}})
        runs = ended(stage, "turns", count)
    trigger(stage, "quiet")
    trigger(stage, "slow")
    ended(stage, "quiet")
    # The first delivery was refused: it comes again, after the others.
    wait_until(lambda: len(heard.told) == 4, why="four notifications")
    wait_until(lambda: out.exists() and out.read_text().count("\n") == 4, why="by command too")
    ended(stage, "slow")
    assert tree.stop() == 0
    assert sorted(heard.occasions()) == ["failure", "failure", "over-run", "recovery"]
    by_run = {told["run_id"]: told for told in heard.told}
    assert by_run[runs[1].id]["reason"] == "exit 4"
    assert by_run[runs[1].id]["previous_exit_code"] == 0
    assert by_run[runs[2].id]["previous_exit_code"] == 4
    assert by_run[runs[3].id]["occasion"] == "recovery"
    failed = by_run[runs[2].id]
    assert failed.items() >= {"exit_code": 5, "trigger_type": "file", "job_group": "some"}.items()
    assert by_run[runs[3].id]["exit_code"] == 0
    assert f"{runs[2].id} 5" in (stage.folder / "told.codes").read_text().splitlines()
    assert {json.loads(row)["run_id"] for row in out.read_text().splitlines()} == set(by_run)


def test_a_run_lost_with_its_machine_is_told_as_a_failure(stage: Stage, heard: Heard) -> None:
    heard.refuse = 0
    stage.write(
        {
            "notify": {"webhook": heard.url},
            "jobs": {
                "deadly": {"command": ["sh", "-c", "kill -9 $(cat $DATA_DIR/guard); sleep 30"]}
            },
        }
    )
    trigger(stage, "deadly")
    for _ in range(4):  # an attempt may be lost with its worker three times
        tree = stage.start()
        (stage.folder / "guard").write_text(str(tree.guard.pid))
        assert tree.wait() == -9
        wait_until(lambda: not stage.site.processes(), why="all gone")
    (stage.folder / "guard").write_text("x")
    tree = stage.start()
    wait_until(lambda: heard.told, why="told")
    assert tree.stop() == 0
    (run,) = stage.runs()
    assert (run.state, run.reason) == ("failed", "lost")
    told = {"occasion": "failure", "run_id": run.id, "exit_code": 137, "trigger_type": "file"}
    assert heard.told[0].items() >= told.items()
    with stage.store() as store:
        assert [attempt.outcome for attempt in store.attempts(run.id)] == ["lost"] * 4
    assert len(heard.told) == 1


async def told_by(command: list[str] | str, folder: Path) -> None:
    await tell_command(command, {"occasion": "failure", "folder": str(folder)}, 1.0)


def test_what_cannot_be_delivered_is_an_error(tmp_path: Path) -> None:
    import asyncio

    for command, why in (
        (["/no/such/program"], "cannot be run"),
        ("echo sorry; exit 7", "exit code 7: sorry"),
        ("sleep 20 & sleep 20", "did not end within 1 s"),
    ):
        with pytest.raises(NotDelivered, match=why):
            asyncio.run(told_by(command, tmp_path))
    with pytest.raises(NotDelivered, match="cannot be reached"):
        asyncio.run(tell_webhook("http://127.0.0.1:1/x", {}, 1.0))
    asyncio.run(told_by("cat > $FOLDER/in; echo $OCCASION >> $FOLDER/in", tmp_path))
    text = (tmp_path / "in").read_text()
    assert text.endswith("}failure\n")
