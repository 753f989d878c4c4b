"""What a run finds: its environment, its directory, the runs before it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from headgate.stores.protocol import Store
from tests.scheduler.stage import Stage
from tests.waiting import wait_until


def trigger(stage: Stage, job: str, content: object = None, name: str = "trigger.json") -> Path:
    """As a careful program does it: written elsewhere, then moved there."""
    folder = stage.folder / "trigger" / job
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "new"
    aside.write_text(content if isinstance(content, str) else json.dumps(content or {}))
    return aside.rename(folder / name)


def ended(stage: Stage, job: str, count: int = 1) -> Any:
    """The runs of a job, the oldest first, when so many of them are over."""

    def found(store: Store) -> Any:
        runs = [r for r in stage.runs(task=job) if r.done]
        return sorted(runs, key=lambda run: run.id) if len(runs) >= count else None

    return stage.wait_for(found, why=f"{count} runs of {job}")


def test_the_environment_tells_all_about_a_run_and_those_before_it(stage: Stage) -> None:
    dump = (
        'env > $OUT/$RUN_ID; echo "$@" > $OUT/args; pwd > $OUT/pwd; echo \'{"n": 1}\' >'
        " $RUN_DIR/return_data.json; exit ${CODE:-0}"
    )
    stage.write(
        {
            "environment": {"OUT": str(stage.folder), "PATH": "/usr/bin:/bin", "L": "global"},
            "jobs": {
                "full": {
                    "command": ["sh", "-c", dump, "sh"],
                    "command_append_run": True,
                    "jenkins_environment": True,
                    "concurrency_groups": ["here"],
                    "environment": {"L": "job", "J": 1},
                    "job_group": "some",
                    "schedule_timezone": "America/New_York",
                }
            },
        }
    )
    tree = stage.start()
    trigger(stage, "full", {"environment": {"CODE": 3}})
    (bad,) = ended(stage, "full", 1)
    trigger(stage, "full", {"type": "git", "environment": {"L": "trigger"}})
    _, good = ended(stage, "full", 2)
    trigger(stage, "full", {"schedule_time": "2019-12-31T19:00", "environment": {"PWD": "/"}})
    *_, last = ended(stage, "full", 3)
    tree.stop()
    assert [(bad.state, bad.reason), (good.state, good.reason)] == [
        ("failed", "exit 3"),
        ("succeeded", ""),
    ]
    assert json.loads(good.result or "") == {"exit_code": 0, "return_data": {"n": 1}}

    def env_of(run: str) -> dict[str, str]:
        rows = (stage.folder / run).read_text().splitlines()
        return dict(row.split("=", 1) for row in rows if "=" in row)

    first, second, third = (env_of(run.id) for run in (bad, good, last))
    run_dir = stage.folder / "runs" / "full" / bad.id
    assert (
        first.items()
        >= {
            "CI": "true",
            "DSARI": "true",
            "JOB_NAME": "full",
            "RUN_ID": bad.id,
            "RUN_DIR": str(run_dir),
            "PWD": str(run_dir),
            "JOB_DIR": str(run_dir.parent),
            "DATA_DIR": str(stage.folder),
            "TRIGGER_DIR": str(stage.folder / "trigger" / "full"),
            "TRIGGER_TYPE": "file",
            "CONCURRENCY_GROUP": "here",
            "JOB_GROUP": "some",
            "L": "job",
            "J": "1",
            "BUILD_TAG": f"dsari-full-{bad.id}",
            "WORKSPACE": str(run_dir),
            "PATH": "/usr/bin:/bin",
        }.items()
    )
    assert not [name for name in first if name.startswith("PREVIOUS_")]
    # Nothing of the scheduler's own environment.
    assert "HEADGATE_URL" not in first
    assert float(first["SCHEDULE_TIME"]) <= float(first["START_TIME"])
    assert (
        second.items()
        >= {
            "TRIGGER_KIND": "git",
            "L": "trigger",
            "PREVIOUS_RUN_ID": bad.id,
            "PREVIOUS_EXIT_CODE": "3",
            "PREVIOUS_BAD_RUN_ID": bad.id,
            "PREVIOUS_BAD_EXIT_CODE": "3",
            "PREVIOUS_START_TIME": first["START_TIME"],
        }.items()
    )
    assert "PREVIOUS_GOOD_RUN_ID" not in second
    assert third["PREVIOUS_GOOD_RUN_ID"] == third["PREVIOUS_RUN_ID"] == good.id
    assert third["PREVIOUS_BAD_RUN_ID"] == bad.id
    assert third["SCHEDULE_TIME"] == "1577836800.0"
    assert (stage.folder / "pwd").read_text() == "/\n"
    assert (stage.folder / "args").read_text() == f"full {last.id}\n"


def test_a_bad_trigger_is_reported_and_set_aside_and_the_rest_goes_on(stage: Stage) -> None:
    stage.write({"jobs": {"a": {"command": ["true"]}, "b": {"command": ["true"]}}})
    folder = stage.folder / "trigger"
    trigger(stage, "a", "{not json")
    trigger(stage, "b", "a: b: c", "trigger.yaml")
    trigger(stage, "nobody")
    tree = stage.start()
    for aside in ("a/trigger.json.bad", "b/trigger.yaml.bad", "nobody/trigger.json.bad"):
        wait_until((folder / aside).exists, why=aside)
    assert (folder / "a" / "trigger.json.bad").read_text() == "{not json"
    trigger(stage, "a", {"schedule_time": [], "environment": {"=": 1}})
    trigger(stage, "b")
    ended(stage, "b")
    tree.signal(signal.SIGUSR1)  # looks at once
    wait_until(lambda: len(list((folder / "a").glob("*.bad"))) == 2, why="both set aside")
    output = tree.output()
    assert "trigger.json:1: not valid JSON" in output
    assert "schedule_time: must be" in output
    assert "there is no job 'nobody'" in output
    # The same mistake again, after the file was taken away, is told again.
    told = output.count("trigger.json:1: not valid JSON")
    (folder / "a" / "trigger.json.bad").unlink()
    trigger(stage, "a", "{not json")
    wait_until((folder / "a" / "trigger.json.bad").exists, why="set aside once more")
    wait_until(
        lambda: tree.output().count("trigger.json:1: not valid JSON") == told + 1, why="told again"
    )
    assert tree.stop() == 0
    assert stage.runs(task="a") == []
    assert not list(folder.glob("*/*.taken"))


def test_a_run_that_is_tried_again_was_due_when_it_was_due(stage: Stage) -> None:
    dump = 'echo "$RUN_ATTEMPT $SCHEDULE_TIME $START_TIME" >> $DATA_DIR/times; exit 1'
    job = {"command": ["sh", "-c", dump], "retries": 1, "retry_delay": 0.5}
    told = stage.folder / "told"
    # Moved when it is whole: who looks for it must not find half of it.
    tell = f"cat > {told}.new && mv {told}.new {told}"
    stage.write({"jobs": {"again": job}, "notify": {"command": tell}})
    tree = stage.start()
    trigger(stage, "again")
    ended(stage, "again")
    rows = [row.split() for row in (stage.folder / "times").read_text().splitlines()]
    (_, due, _), (attempt, still, start) = rows
    assert attempt == "2"
    assert abs(float(still) - float(due)) < 0.1
    assert float(start) - float(still) >= 0.3
    wait_until(told.exists, why="told")
    assert round(json.loads(told.read_text())["schedule_time"], 3) == float(still)
    assert tree.stop() == 0


def test_a_run_is_told_what_started_it(stage: Stage) -> None:
    stage.write(
        {
            "jobs": {
                "told": {
                    "command": ["sh", "-c", "echo $TRIGGER_TYPE >> $DATA_DIR/types"],
                    "schedule": "0 0 1 1 * 0",
                }
            }
        }
    )
    tree = stage.start()
    stage.wait_for(lambda store: store.schedule("told"), why="declared")
    for count, verb in enumerate((("submit",), ("schedules", "run-now")), 1):
        command = [sys.executable, "-m", "headgate", "--url", stage.url, *verb, "told"]
        assert subprocess.run(command, capture_output=True).returncode == 0
        ended(stage, "told", count)
    trigger(stage, "told")
    ended(stage, "told", 3)
    assert tree.stop() == 0
    assert (stage.folder / "types").read_text().split() == ["submit", "schedule", "file"]
