"""Triggers as files: each becomes one run, whoever else writes, reads or dies meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headgate.configuration.triggers import NAMES, Trigger, TriggerBox
from headgate.errors import StoreUnavailable

JOBS = frozenset(("a", "b"))


class Desk:
    """Takes what is submitted; the same key twice is the same run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, Trigger] = {}
        self.submitted = 0
        self.said: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.box = TriggerBox(folder, self.submit, self.said.append)

    def submit(self, trigger: Trigger) -> None:
        self.meanwhile()
        self.submitted += 1
        self.runs[trigger.key] = trigger

    def put(self, job: str, content: str, name: str = "trigger.json", *, old: bool = False) -> Path:
        file = self.folder / job / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        if old:
            then = time.time() - 60
            os.utime(file, (then, then))
        return file

    def files(self) -> set[str]:
        return {str(file.relative_to(self.folder)) for file in self.folder.glob("*/*")}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "trigger")


def test_a_trigger_is_read_submitted_and_deleted(desk: Desk) -> None:
    assert desk.box.look(JOBS) == 0  # no folder yet
    desk.put("a", '{"type": "git", "environment": {"X": 1}, "schedule_time": 5}')
    desk.put("b", "{}", "trigger.yaml")
    assert desk.box.look(JOBS) == 2
    found = {trigger.job: trigger for trigger in desk.runs.values()}
    assert (found["a"].type, found["a"].environment) == ("git", {"X": "1"})
    assert (found["a"].schedule_time, found["b"].schedule_time) == (5.0, None)
    assert desk.files() == set()
    assert desk.box.look(JOBS) == 0


def test_one_written_while_another_is_submitted_is_not_lost(desk: Desk) -> None:
    desk.put("a", '{"type": "first"}')

    def write() -> None:
        desk.meanwhile = lambda: None
        desk.put("a", '{"type": "second"}')

    desk.meanwhile = write
    desk.box.look(JOBS)
    desk.box.look(JOBS)
    assert [trigger.type for trigger in desk.runs.values()] == ["first", "second"]


def test_the_same_text_again_is_another_run(desk: Desk) -> None:
    for _ in range(3):
        desk.put("a", "{}")
        desk.box.look(JOBS)
    assert len(desk.runs) == 3


def test_the_same_file_again_is_another_run(desk: Desk, tmp_path: Path) -> None:
    """A link to one that is kept elsewhere has the same node, time and size each time; a copy that
    keeps the time often has, too."""
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    (desk.folder / "a").mkdir(parents=True)
    for _ in range(3):
        os.link(kept, desk.folder / "a" / "trigger.json")
        desk.box.look(JOBS)
    assert len(desk.runs) == 3
    assert kept.exists()


def test_a_time_without_a_zone_is_one_of_the_job(desk: Desk) -> None:
    zones = {"a": "Europe/Berlin", "b": "America/New_York"}
    box = TriggerBox(desk.folder, desk.submit, desk.said.append, zone=zones.__getitem__)
    for job in zones:
        desk.put(job, '{"schedule_time": "2026-01-31T06:00"}')
    desk.put("b", '{"schedule_time": "2026-01-31T06:00", "schedule_timezone": "UTC"}', NAMES[1])
    assert box.look(JOBS) == 3
    hours = [
        (run.job, datetime.fromtimestamp(run.schedule_time or 0, UTC).hour)
        for run in desk.runs.values()
    ]
    assert sorted(hours) == [("a", 5), ("b", 6), ("b", 11)]


def test_after_a_death_between_submit_and_delete_it_is_the_same_run(desk: Desk) -> None:
    desk.put("a", "{}")

    def die() -> None:
        (taken,) = (desk.folder / "a").glob("*.taken")
        os.link(taken, kept := desk.folder / "kept")  # what a crash would have left
        desk.meanwhile = lambda: None
        desk.left = kept, taken.name  # type: ignore[attr-defined]

    desk.meanwhile = die
    desk.box.look(JOBS)
    kept, name = desk.left  # type: ignore[attr-defined]
    kept.rename(desk.folder / "a" / name)
    assert desk.box.look(JOBS) == 1
    assert (desk.submitted, len(desk.runs)) == (2, 1)
    assert desk.files() == set()


def test_a_store_that_is_away_loses_nothing(desk: Desk) -> None:
    desk.put("a", '{"type": "kept"}')

    def away() -> None:
        desk.meanwhile = lambda: None
        raise StoreUnavailable("not now")

    desk.meanwhile = away
    with pytest.raises(StoreUnavailable):
        desk.box.look(JOBS)
    assert desk.box.look(JOBS) == 1
    assert [trigger.type for trigger in desk.runs.values()] == ["kept"]


def test_one_that_is_still_being_written_is_waited_for(desk: Desk) -> None:
    file = desk.put("a", '{"type": "sl')
    with file.open("a") as writing:
        assert desk.box.look(JOBS) == 0
        assert desk.said == []
        writing.write('ow"}')
    assert desk.box.look(JOBS) == 1
    assert [trigger.type for trigger in desk.runs.values()] == ["slow"]


def test_bad_ones_are_set_aside_and_none_of_them_is_lost(desk: Desk) -> None:
    desk.put("a", "{", old=True)
    desk.put("b", "\x00", "trigger.yaml", old=True)
    desk.put("c", "{}", old=True)
    desk.box.look(JOBS)
    desk.put("a", "[]", old=True)
    desk.box.look(JOBS)
    assert len(list((desk.folder / "a").glob("*.bad"))) == 2
    assert (desk.folder / "b" / "trigger.yaml.bad").exists()
    assert (desk.folder / "c" / "trigger.json.bad").exists()
    assert any("there is no job 'c'" in told for told in desk.said)
    assert desk.runs == {}
    desk.said.clear()
    desk.box.look(JOBS)
    assert desk.said == []


def test_odd_things_in_the_folder_do_no_harm(desk: Desk) -> None:
    desk.folder.mkdir(parents=True)
    (desk.folder / "file").write_text("x")
    (desk.folder / "a").mkdir()
    (desk.folder / "a" / "trigger.json").mkdir()
    (desk.folder / "a" / "x.taken").write_text("{}")
    (desk.folder / "b").symlink_to("/nowhere")
    desk.put("a", "{}", "trigger.yaml")
    desk.box.look(JOBS)
    assert [trigger.job for trigger in desk.runs.values()].count("a") >= 1


def test_what_is_no_regular_file_is_named_and_never_read(desk: Desk) -> None:
    (desk.folder / "a" / "trigger.json").mkdir(parents=True)
    (desk.folder / "b").mkdir()
    os.mkfifo(desk.folder / "b" / "trigger.yaml")
    (desk.folder / "b" / "trigger.yml").symlink_to("nowhere")
    taken = desk.folder / "b" / "trigger.json.00.taken"
    os.mkfifo(taken)
    os.utime(taken, (1, 1))
    (desk.folder / "trigger.json").write_text("{}")
    desk.put("b", "{}", "trigger.json")
    assert desk.box.look(JOBS) == 1
    named = {said.partition(":")[0] for said in desk.said}
    assert named == {
        str(desk.folder / name)
        for name in (
            *("trigger.json", "a/trigger.json", "b/trigger.yaml", "b/trigger.yml"),
            *("b/trigger.json", "b/trigger.json.bad"),
        )
    }
