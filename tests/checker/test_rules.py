"""How the checker judges: values over time, kills, released spans, use, shares."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headgate import checker, execlog
from headgate.checker import Job, Kill, Line, Report, check
from headgate.execlog import recording


def span(
    job: str,
    begin: float,
    end: float | None,
    groups: dict[str, int],
    token: int = 0,
    **more: object,
) -> list[Line]:
    token = token or hash((job, begin)) % 1_000_000 + 1
    lines = [Line("start", job, token, begin, groups=groups, **more)]  # type: ignore[arg-type]
    if end is not None:
        lines.append(Line("end", job, token, end, groups=groups, ok=True, **more))  # type: ignore[arg-type]
    return lines


# --- values over time -------------------------------------------------------------------


def two_at(t: float, **told: object) -> Report:
    lines = span("a", 0, 100, {"g": 1}) + span("b", t, t + 1, {"g": 1})
    return check(lines, **told)  # type: ignore[arg-type]


def test_a_start_is_judged_by_the_highest_value_of_the_second_before_it() -> None:
    lowered = [(10.0, "g", 1)]
    late = two_at(10.9, limits={"g": 2}, changes=lowered)
    assert late.ok
    assert late.slack_mattered == 1
    assert "1 starts were allowed only by a value" in late.text()
    assert two_at(9.0, limits={"g": 2}, changes=lowered).slack_mattered == 0
    too_late = two_at(11.1, limits={"g": 2}, changes=lowered)
    assert [(over.group, over.held, over.limit) for over in too_late.over] == [("g", 2, 1)]


def test_a_short_raise_inside_the_second_counts() -> None:
    assert two_at(5.0, limits={"g": 1}, changes=[(4.5, "g", 2), (4.6, "g", 1)]).ok
    assert not two_at(6.0, limits={"g": 1}, changes=[(4.5, "g", 2), (4.6, "g", 1)]).ok


def test_a_start_is_judged_by_what_was_in_force_from_its_grant_on() -> None:
    """Granted ahead, it starts in slots that are held all the time, a little later."""

    def lowered_at_10(start: float, granted: float) -> Report:
        later = span("b", start, start + 1, {"g": 1}, granted=granted)
        return check(
            [*span("a", 0, 100, {"g": 1}), *later], limits={"g": 2}, changes=[(10.0, "g", 1)]
        )

    assert lowered_at_10(10.5, granted=9.9).ok
    known = lowered_at_10(10.5, granted=10.1)
    assert [over.job for over in known.over] == ["b"], "the lowering was there when it was granted"
    # In a chain it may start without a new word from the store, but never for that long.
    assert [over.job for over in lowered_at_10(12.0, granted=9.0).over] == ["b"]


def test_taking_the_groups_again_is_a_grant_of_its_own() -> None:
    first, last = span("b", 2, 12, {"g": 1}, token=7, granted=1.9)
    between = [Line("release", "b", 7, 3, groups={"g": 1}), Line("retake", "b", 7, 10.4)]
    lines = [*span("a", 0, 100, {"g": 1}), first, *between, last]
    assert check(lines, limits={"g": 2}, changes=[(10.0, "g", 1)]).ok


def test_the_log_tells_when_the_grant_was_asked_for(tmp_path: Path) -> None:
    class Running:
        job_id, attempt, token, task, groups = "j", 1, 3, "t", ("g",)
        granted_at = 12.5

    with recording(tmp_path / "log", Running()):
        pass
    start, end = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert (start["granted"], "granted" in end) == (12.5, False)


def test_what_runs_on_after_a_lowering_is_not_over() -> None:
    lines = span("a", 0, 50, {"g": 1}) + span("b", 1, 50, {"g": 1}) + span("c", 51, 52, {"g": 1})
    assert check(lines, limits={"g": 2}, changes=[(10.0, "g", 1)]).ok


def test_a_value_for_the_key_counts_before_one_for_the_name() -> None:
    lines = [line for n in range(3) for line in span(f"j{n}", n, 50, {"tenant/acme": 1})]
    assert not check(lines, limits={"tenant": 2}).ok
    assert check(lines, limits={"tenant": 2, "tenant/acme": 3}).ok
    assert check(lines, limits={"tenant": 2, "tenant/other": 9}).over[0].job == "j2"
    assert not check(lines, limits={"tenant": 9, "tenant/acme": 2}).ok


def test_a_group_without_a_known_value_is_named() -> None:
    report = check(span("a", 0, 1, {"mystery": 1}), limits={})
    assert report.ok
    assert report.unjudged == {"mystery"}
    assert "mystery" in report.text()


def test_zero_and_unlimited() -> None:
    lines = span("a", 5, 6, {"g": 1})
    assert not check(lines, limits={"g": 0}).ok
    assert check(lines, limits={"g": None}).ok


def test_a_slot_given_on_within_one_tick_of_the_clock_is_no_fault() -> None:
    lines = span("a", 0, 1, {"g": 1}) + span("b", 1, 2, {"g": 1}) + span("c", 2, 2, {"g": 1})
    assert check(lines, limits={"g": 1}).ok


# --- kills ------------------------------------------------------------------------------


def test_a_kill_ends_what_its_process_ran() -> None:
    lines = span("a", 0, None, {"g": 1}, token=1, pid=7) + span("a", 5, 6, {"g": 1}, token=2, pid=8)
    told = {"limits": {"g": 1}, "jobs": ["a"]}
    assert check(lines, **told, kills=[Kill(4.0, pid=7)]).ok  # type: ignore[arg-type]
    unexplained = check(lines, **told)  # type: ignore[arg-type]
    assert unexplained.broken
    assert unexplained.doubled
    assert unexplained.over
    still_alive = check(lines, **told, kills=[Kill(5.5, pid=7)])  # type: ignore[arg-type]
    assert still_alive.over
    assert still_alive.doubled


def test_a_kill_reaches_children_of_the_process_and_jobs_of_the_worker() -> None:
    child = span("a", 0, None, {"g": 1}, pid=70, ppid=7)
    assert not check(child, limits={"g": 1}, kills=[Kill(4.0, pid=7)]).broken
    of_worker = span("a", 0, None, {"g": 1}, pid=70, worker="w1")
    assert not check(of_worker, limits={"g": 1}, kills=[Kill(4.0, worker="w1")]).broken
    assert check(of_worker, limits={"g": 1}, kills=[Kill(4.0, worker="w2")]).broken


def test_an_earlier_kill_of_the_same_pid_explains_nothing() -> None:
    lines = span("a", 10, None, {"g": 1}, pid=7)
    assert check(lines, limits={"g": 1}, kills=[Kill(4.0, pid=7)]).broken
    both = [Kill(4.0, pid=7), Kill(12.0, pid=7), Kill(30.0, pid=7)]
    report = check(lines, limits={"g": 1}, kills=both)
    assert not report.broken
    assert report.attempts[0].until == 12.0


def test_the_moment_between_a_kill_and_its_effect_is_counted_apart() -> None:
    lines = span("a", 0, None, {"g": 1}, token=1, pid=7) + span("a", 5, 6, {"g": 1}, token=2, pid=8)
    report = check(lines, limits={"g": 1}, kills=[Kill(5.01, pid=7, sent=4.99)])
    assert report.ok
    assert report.kill_mattered == 1


def test_a_finish_cut_off_by_a_kill_explains_a_second_run() -> None:
    lines = span("a", 0, 1, {}, token=1, pid=7) + span("a", 5, 6, {}, token=2, pid=8)
    assert not check(lines, limits={}).ok
    assert check(lines, limits={}, kills=[Kill(1.01, pid=7)]).ok
    assert not check(lines, limits={}, kills=[Kill(5.5, pid=7)]).ok


def test_more_lost_attempts_than_allowed_are_found() -> None:
    lines = [line for n in range(1, 4) for line in span("a", n, None, {}, token=n, pid=n)] + span(
        "a", 9, 10, {}, token=9
    )
    kills = [Kill(n + 0.5, pid=n) for n in range(1, 4)]
    assert check(lines, limits={}, jobs=[Job("a", lost=3)], kills=kills).ok
    assert check(lines, limits={}, jobs=[Job("a", lost=2)], kills=kills).doubled


# --- outcomes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "ran", "ok"),
    [
        ("succeeded", "well", True),
        ("succeeded", "badly", False),
        ("succeeded", "never", False),
        ("failed", "badly", True),
        ("failed", "well", False),
        ("failed", "never", False),
        ("cancelled", "never", True),
        ("cancelled", "badly", True),
        ("cancelled", "well", False),
        ("unrun", "never", True),
        ("unrun", "badly", False),
        ("any", "well", True),
        ("any", "never", True),
    ],
)
def test_outcomes(expect: str, ran: str, ok: bool) -> None:
    lines: list[Line] = []
    if ran != "never":
        lines = [Line("start", "a", 1, 0.0), Line("end", "a", 1, 1.0, ok=ran == "well")]
    assert check(lines, limits={}, jobs=[Job("a", expect=expect)]).ok is ok


def test_damaged_lines_make_the_log_doubtful(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b'{"ev":"start","job":"a","token":1,"t":1.0}\n{"ev":"en\n\xff\xfe\n[]\n\n')
    report = check([log], limits={})
    assert len(report.broken) == 4  # three lines, and the start that now has no end
    assert not report.ok


def test_an_end_without_a_start_and_a_start_within_a_start() -> None:
    assert check([Line("end", "a", 1, 1.0)], limits={}).broken
    twice = [Line("start", "a", 1, 1.0), Line("start", "a", 1, 2.0), Line("end", "a", 1, 3.0)]
    report = check(twice, limits={})
    assert report.broken
    assert report.doubled


# --- use and turns ----------------------------------------------------------------------


def test_use_is_what_was_held_of_what_could_be_packed() -> None:
    # 7 units under jobs of 3: full at 6. One of two places stays empty for half of the time.
    lines = (
        span("a", 0, 10, {"gpu": 3}) + span("b", 5, 10, {"gpu": 3}) + span("c", 10, 11, {"gpu": 3})
    )
    jobs = [Job(j, submitted=0.0) for j in "abc"]
    usage = check(lines, limits={"gpu": 7}, jobs=jobs).usage["gpu"]
    assert usage.contended == pytest.approx(10)
    assert usage.used == pytest.approx(3 * 5 + 6 * 5)
    assert usage.packable == pytest.approx(6 * 10)
    assert usage.ratio == pytest.approx(0.75)


def test_a_limit_is_not_blamed_for_what_another_holds_back() -> None:
    # b waits for tenant/x only: the two free places of api are nobody's fault.
    both = {"api": 1, "tenant/x": 1}
    lines = span("a", 0, 10, both) + span("b", 10, 20, both)
    jobs = [Job(j, submitted=0.0) for j in "ab"]
    usage = check(lines, limits={"api": 3, "tenant": 1}, jobs=jobs).usage
    assert usage["api"].ratio == pytest.approx(1)
    assert usage["tenant"].ratio == pytest.approx(1)


def test_a_limit_lowered_below_what_runs_is_fully_used() -> None:
    lines = span("a", 0, 10, {"g": 1}) + span("b", 0, 10, {"g": 1}) + span("c", 10, 11, {"g": 1})
    jobs = [Job(j, submitted=0.0) for j in "abc"]
    usage = check(lines, limits={"g": 2}, changes=[(5.0, "g", 1)], jobs=jobs).usage["g"]
    assert usage.ratio == pytest.approx(1)
    assert usage.packable == pytest.approx(20)


def test_use_is_not_judged_while_the_workers_are_full() -> None:
    lines = span("a", 0, 10, {}) + span("b", 10, 20, {"g": 1})
    jobs = [Job(j, submitted=0.0) for j in "ab"]
    assert check(lines, limits={"g": 1}, jobs=jobs).usage["g"].ratio == 0
    assert check(lines, limits={"g": 1}, jobs=jobs, room=1).usage["g"].ratio is None


def test_an_idle_member_of_a_one_of_is_blamed() -> None:
    lines = span("a", 0, 10, {"host-a": 1}) + span("b", 10, 20, {"host-a": 1})
    jobs = [Job(j, submitted=0.0, one_of=[["host-a", "host-b"]]) for j in "ab"]
    usage = check(lines, limits={"host-a": 1, "host-b": 1}, jobs=jobs).usage
    assert usage["host-a"].ratio == pytest.approx(1)
    assert usage["host-b"].ratio == 0


def test_shares_are_counted_while_all_turns_have_work() -> None:
    lines: list[Line] = []
    for n in range(100):
        lines += span(f"hot-{n}", n, n + 1, {"g": 1}, turn="hot")
    for n in range(10):
        lines += span(f"cold-{n}", 50 + 2 * n + 0.5, 51 + 2 * n, {"g": 1}, turn="cold")
    jobs = [Job(f"hot-{n}", submitted=0.0) for n in range(100)]
    jobs += [Job(f"cold-{n}", submitted=50.0) for n in range(10)]
    assert check(lines, limits={"g": 9}, jobs=jobs).shares["g"] == {"hot": 19, "cold": 10}


def judged(count: int) -> Report:
    """Jobs of 200 tenants under a shared limit: 10 at a time, with a gap between two."""
    lines: list[Line] = []
    for n in range(count):
        begin, groups = n // 10 + n % 10 / 100, {"api": 1, f"tenant/{n % 200}": 1}
        lines += span(f"j{n}", begin, begin + 0.995, groups, token=n + 1, turn=str(n % 200))
    jobs = [Job(f"j{n}", submitted=0.0) for n in range(count)]
    return check(lines, limits={"api": 10, "tenant": 2}, jobs=jobs)


def steps(call: Callable[[], object]) -> int:
    """Lines of Python that are run."""
    count = 0

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_long_run_is_judged_in_reasonable_time() -> None:
    report = judged(10_000)
    assert report.ok, report.text()
    assert report.usage["api"].ratio == pytest.approx(0.995, abs=0.001)
    few, many = steps(lambda: judged(500)), steps(lambda: judged(2000))
    print(f"{few} steps for 500 jobs, {many} for 2000")
    assert many < 5 * few


# --- the log as jobs write it -----------------------------------------------------------


class FakeContext:
    def __init__(self, n: int, groups: tuple[str, ...] = ()) -> None:
        self.job_id, self.attempt, self.token, self.task = f"job-{n}", 1, n + 1, "work"
        self.groups = groups


def _write_many(path: Path, first: int) -> None:
    for n in range(first, first + 200):
        with recording(path, FakeContext(n), note="é" * 500):
            pass


def test_many_processes_share_one_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(log, n * 1000)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    report = check([log], limits={})
    assert report.ok, report.text()
    assert len(report.attempts) == 800


def test_what_is_recorded(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    ctx = FakeContext(1, ("gpu", "tenant/x"))
    with pytest.raises(ValueError, match="no"), recording(log, ctx, units={"gpu": 3}, turn="x"):
        raise ValueError("no")
    with recording(log, {"job": "j", "token": 5}, groups={"a": 2}) as rec, rec.released():
        pass
    first, second = check([log], limits={"gpu": 3, "tenant": 1, "a": 2}).attempts
    assert (first.groups, first.ok, first.turn) == ({"gpu": 3, "tenant/x": 1}, False, "x")
    assert (first.pid, first.task) == (os.getpid(), "work")
    assert (second.groups, second.ok, len(second.spans)) == ({"a": 2}, True, 2)


def test_a_released_span_holds_nothing() -> None:
    waits = [
        Line("start", "a", 1, 0.0, groups={"g": 1}),
        Line("release", "a", 1, 1.0, groups={"g": 1}),
        Line("retake", "a", 1, 3.0, groups={"g": 1}),
        Line("end", "a", 1, 4.0, groups={"g": 1}, ok=True),
    ]
    assert check(waits + span("b", 1.5, 2.5, {"g": 1}), limits={"g": 1}).ok
    retook_early = check(waits + span("b", 1.5, 3.5, {"g": 1}), limits={"g": 1})
    assert [over.job for over in retook_early.over] == ["a"]


# --- the checker stands alone -----------------------------------------------------------


def test_the_checker_shares_no_code_with_the_engine() -> None:
    imports = re.compile(r"^\s*(?:from|import) (headgate[\w.]*)", re.MULTILINE)
    for file in [*Path(checker.__file__).parent.glob("*.py"), Path(execlog.__file__)]:
        for module in imports.findall(file.read_text()):
            assert module.startswith("headgate.checker"), f"{file.name} imports {module}"
