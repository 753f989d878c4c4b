"""A crontab, or a dsari configuration, as a headgate.toml that means the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.configuration.checking import load
from headgate.configuration.crontab import read, to_toml
from headgate.configuration.localzone import local_zone
from headgate.configuration.model import JobConfig

TAB = r"""
# of the operator
MAILTO=operator@example.com
PATH = "/usr/local/bin:/bin"
*/5 9-17 * * 1-5	/usr/bin/poll --quiet >/dev/null 2>&1
@daily cd work && ./tidy
CRON_TZ=Europe/Berlin
30 2 * * 7 mail -s "100\% done" operator%Hello,%it's done.%
SHELL=/bin/bash
0~30 4 1,15 * * poll -v
@reboot start-it
70 * * * * wrong
* * * * *
"""


def imported(text: str, folder: Path, *, system: bool = False) -> dict[str, JobConfig]:
    file = folder / "headgate.toml"
    file.write_text(to_toml(read(text, "crontab", system=system), "crontab"))
    return dict(load(file, environ={})[0].jobs)


def test_a_crontab_becomes_jobs(tmp_path: Path) -> None:
    jobs = imported(TAB, tmp_path)
    assert list(jobs) == ["poll", "cd", "mail", "poll-2"]
    poll, tidy, mail, again = jobs.values()
    assert poll.command == "/usr/bin/poll --quiet >/dev/null 2>&1"
    assert poll.environment == {"PATH": "/usr/local/bin:/bin"}
    assert poll.cwd == str(Path.home())
    assert [job.schedule.when for job in jobs.values() if job.schedule] == [
        "*/5 9-17 * * 1-5",
        "0 0 * * *",
        "30 2 * * 7",
        "H(0-30) 4 1,15 * *",
    ]
    assert tidy.command == "cd work && ./tidy"
    assert mail.schedule is not None
    assert mail.schedule.timezone == "Europe/Berlin"
    assert again.command == ("/bin/bash", "-c", "poll -v")


def test_a_zone_for_commands_is_none_for_schedules(tmp_path: Path) -> None:
    """cron hands TZ to what it runs, and takes its own times by CRON_TZ."""
    jobs = imported("TZ=Asia/Tokyo\n0 1 * * * a\nCRON_TZ=Europe/Berlin\n0 1 * * * b\n", tmp_path)
    assert [job.environment.get("TZ") for job in jobs.values()] == ["Asia/Tokyo"] * 2
    zones = [job.schedule.timezone for job in jobs.values() if job.schedule]
    assert (zones[0] == local_zone(), zones[1]) == (True, "Europe/Berlin")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("CRON_TZ=Mars/Olympus", "time zone 'Mars/Olympus' is not known"),
        ("'A=B'=c", "'A=B' cannot be the name of a variable"),
        ("HOME=~nobody-of-that-name", ""),
        ("SHELL=", ""),
    ],
)
def test_odd_settings_make_no_file_that_is_refused(setting: str, told: str, tmp_path: Path) -> None:
    tab = f"{setting}\n0 1 * * * /opt/headgate.sh\n"
    (job,) = imported(tab, tmp_path).values()
    assert job.command == "/opt/headgate.sh"
    problems = read(tab, "crontab").problems
    assert [(problem.line, told in problem.message) for problem in problems] == [
        *([(1, True)] if told else [])
    ]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    (job,) = imported("0 1 * * * echo a\x0cb\u2028c\x85d\r\n", tmp_path).values()
    assert job.command == "echo a\x0cb\u2028c\x85d"


def test_what_cannot_be_carried_over_is_said_with_its_line() -> None:
    problems = read(TAB, "crontab").problems
    assert [(problem.line, problem.message.split(":")[0]) for problem in problems] == [
        (3, "MAILTO has no effect"),
        (11, "left out"),
        (12, "left out"),
        (13, "left out"),
    ]


def test_input_behind_a_percent_sign_reaches_the_command(tmp_path: Path) -> None:
    jobs = imported("0 0 * * * cat; echo 5\\%%one%it's two%\n", tmp_path)
    done = subprocess.run(str(jobs["cat"].command), shell=True, capture_output=True, text=True)
    assert done.stdout == "one\nit's two\n5%\n"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (r"printf '\%s|' x", "x|"),
        # The backslash is escaped, so the % is not: it ends the command.
        (r"cat; echo A\\%in", "in\nA\\\n"),
        (r"cat%a\%b", "a%b\n"),
        (r"cat%a\\%b", "a\\%b\n"),
        ("cat%", ""),
        ("cat # and no more%a", "a\n"),
        ("echo x &%", "x\n"),
    ],
)
def test_backslashes_before_percent_signs(written: str, told: str, tmp_path: Path) -> None:
    (job,) = imported(f"0 0 * * * {written}\n", tmp_path).values()
    done = subprocess.run(
        str(job.command), shell=True, capture_output=True, text=True, input="not this"
    )
    assert done.stdout == told


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ("30 4 */2 * MON", lambda d: d.day % 2 == 1 and d.weekday() == 0),
        ("30 4 1-7 * */7", lambda d: d.day <= 7 and d.weekday() == 6),
        ("30 4 */10 3,4 1-5", lambda d: d.day % 10 == 1 and d.month in (3, 4) and d.weekday() < 5),
        ("30 4 */1 * 2", lambda d: d.weekday() == 1),
        ("30 4 13 * 5", lambda d: d.day == 13 or d.weekday() == 4),
    ],
)
def test_days_of_month_and_week_are_joined_as_cron_does(
    when: str, fits: Callable[[datetime], bool], tmp_path: Path
) -> None:
    (job,) = imported(f"CRON_TZ=UTC\n{when} x\n", tmp_path).values()
    assert job.schedule is not None
    start = datetime(2026, 1, 1, tzinfo=UTC)
    days = [start + timedelta(days=n) for n in range(800)]
    wanted = [day + timedelta(hours=4, minutes=30) for day in days if fits(day)]
    found = job.schedule.timetable("x").between(start.timestamp(), days[-1].timestamp() + 86399)
    assert [datetime.fromtimestamp(moment, UTC) for moment in found] == wanted


def test_days_that_cannot_be_joined_are_said_with_their_line() -> None:
    found = read("* * * * * a\n0~30 4 */2 * 1 b\n", "crontab")
    (problem,) = found.problems
    assert problem.line == 2
    assert "must both fit" in problem.message


def test_bytes_that_are_no_text_are_said_with_their_line(tmp_path: Path) -> None:
    tab = tmp_path / "tab"
    tab.write_bytes("# Gr\u00fc\u00dfe\n0 1 * * * a\n0 2 * * * echo \u00e9\n".encode("latin-1"))
    run = [sys.executable, "-m", "headgate", "import", "crontab", str(tab)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert f"{tab}:3: warning: left out: not valid UTF-8: byte 0xe9" in done.stderr
    assert "[jobs.a]" in done.stdout
    assert "[jobs.echo]" not in done.stdout


def test_the_user_of_a_system_crontab(tmp_path: Path) -> None:
    jobs = imported("17 * * * * root run-parts /etc/cron.hourly\n", tmp_path, system=True)
    assert jobs["run-parts"].command == (
        *("sudo", "-H", "-u", "root", "--", "/bin/sh", "-c"),
        "run-parts /etc/cron.hourly",
    )


@pytest.mark.parametrize("name", ["overlap", "groups", "distribution"])
def test_the_examples_mean_the_same_as_a_headgate_toml(name: str, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "dsari" / f"{name}.json"
    out = tmp_path / "headgate.toml"
    run = [sys.executable, "-m", "headgate", "import", "dsari", str(example), "-o", str(out)]
    assert subprocess.run(run, capture_output=True).returncode == 0
    before, after = load(example, environ={})[0], load(out, environ={})[0]
    assert (after.jobs, after.groups) == (before.jobs, before.groups)
    # What is there already is not overwritten.
    assert subprocess.run(run, capture_output=True).returncode == 2
