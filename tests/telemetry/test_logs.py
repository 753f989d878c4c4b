"""Logs as JSON: each line a document, those about a job with the job."""

from __future__ import annotations

import json
import logging
import sys

from headgate.telemetry.jsonlog import JsonFormatter
from tests.telemetry import sample
from tests.telemetry.conftest import Metered


def test_lines_say_which_job_they_are_about(quick: Metered) -> None:
    charge = sample.charge.submit(7)
    greet = sample.greet.submit("nobody")
    alone = sample.alone.submit()
    tree = quick.work("--burst", "--log-format", "json", "--log-level", "debug")
    assert tree.wait() == 0
    lines = [json.loads(line) for line in tree.output().splitlines()]
    (said,) = [line for line in lines if line["message"] == "charging 7"]
    (isolated,) = [line for line in lines if line["message"] == "all alone"]
    assert (isolated["job"], isolated["task"]) == (alone.id, "alone")
    assert said["level"] == "WARNING"
    assert (said["job"], said["task"], said["attempt"]) == (charge.id, "charge", 1)
    assert (said["group"], said["groups"], said["queue"]) == ("api", ["api"], "default")
    (failed,) = [line for line in lines if line.get("outcome") == "failed"]
    assert (failed["job"], failed["groups"]) == (greet.id, ["tenant/nobody"])
    ended = [line["job"] for line in lines if line.get("outcome") == "succeeded"]
    assert {charge.id, alone.id} < set(ended)
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)


def test_errors_are_told_whole_and_on_one_line() -> None:
    try:
        int("two\nlines")
    except ValueError:
        record = logging.LogRecord("x", 40, "f", 1, "a %s", ("b\nc",), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "a b\nc"
    assert told["error"]["type"] == "ValueError"
    assert "Traceback" in told["error"]["traceback"]
