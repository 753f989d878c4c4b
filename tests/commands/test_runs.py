"""How runs begin and end: exit codes, what cannot be started, environment, limits, retries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headgate import App, CommandFailed, DeclarationError, InvalidArguments, JobFailed
from headgate.testing import drain, memory_app
from tests.commands import sample
from tests.commands.conftest import Place
from tests.waiting import PATIENCE, wait_until


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("exit 1", 1),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ],
)
def test_the_exit_code_decides(shop: Place, line: str, code: int) -> None:
    job = shop.run(sample.sh, f"echo first; echo '  the last line '; {line}")
    assert (job.state, job.reason, job.result) == ("failed", f"exit {code}", str(code))
    assert job.error is not None
    assert job.error.type == "CommandFailed"
    assert job.error.message.endswith(": the last line")
    assert f"exit code {code}" in job.error.message


def test_exit_code_0_is_success(shop: Place) -> None:
    handle = sample.sh.submit(arguments=["echo fine"])
    assert handle.result(timeout=PATIENCE) == 0
    assert handle.output() == b"fine\n"
    with pytest.raises(JobFailed, match="exit code 3"):
        sample.sh.submit(arguments=["exit 3"]).result(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("task", "code", "text"),
    [
        (sample.missing, 127, "no program 'no-such-program' is there in any folder of its PATH"),
        (sample.forbidden, 126, "nest.sh' may not be executed: Permission denied"),
        (sample.nowhere, 126, "its working directory '/no/such/folder' is not there"),
    ],
)
def test_what_cannot_be_started(shop: Place, task: object, code: int, text: str) -> None:
    job = shop.run(task)
    assert (job.state, job.reason, job.result) == ("failed", f"exit {code}", str(code))
    assert job.error is not None
    assert text in job.error.message
    assert shop.run(sample.sh, "exit 0").state == "succeeded", "the next one is not touched"


def test_the_environment(shop: Place) -> None:
    show = 'echo "$JOB_NAME|$RUN_ID|$RUN_ATTEMPT|$COLOUR|$SHAPE|$SIZE|$START_TIME|$HEADGATE_URL"'
    job = shop.run(sample.told, show, environment={"SIZE": "big", "SHAPE": "square"})
    name, run, attempt, colour, shape, size, start, url = (
        shop.output(job.id).decode().strip().split("|")
    )
    assert (name, run, attempt) == ("told", job.id, "1")
    assert (colour, shape, size) == ("red", "square", "big")
    assert float(start) >= job.created_at - 1
    assert url == shop.url


def test_an_environment_from_nothing(shop: Place) -> None:
    job = shop.run(sample.bare, "/usr/bin/env", environment={"OWN": "ü"})
    told = dict(line.split("=", 1) for line in shop.output(job.id).decode().splitlines())
    marks = {name for name in told if name.startswith("HEADGATE_")}
    assert marks == {"HEADGATE_CELL", "HEADGATE_WORKER"}
    assert set(told) - marks == {
        *("JOB_NAME", "RUN_ID", "RUN_ATTEMPT", "RUN_TOKEN", "START_TIME", "OWN"),
        *({"PWD", "_", "SHLVL", "OLDPWD"} & set(told)),
    }
    assert told["OWN"] == "ü"


def test_what_a_program_is_started_with(shop: Place) -> None:
    """Nothing to read, no signal ignored or blocked, a session of its own, no stray files."""
    job = shop.run(
        sample.sh, "wc -c; grep -E '^Sig(Ign|Blk)' /proc/self/status; cut -d' ' -f6 /proc/$$/stat"
        "; echo $$; ls /proc/self/fd"
    )  # fmt: skip
    empty, blocked, ignored, session, pid, *files = shop.output(job.id).decode().split("\n")
    assert empty == "0"
    # 32 and 33 belong to the C library, which nobody can ask to change them.
    ours = ~(0b11 << 31)
    assert {int(line.split()[1], 16) & ours for line in (blocked, ignored)} == {0}
    assert session == pid
    # Its own three, the folder that is listed, and the lock file of the worker.
    assert len([name for name in files if name]) <= 5


def test_a_working_directory(shop: Place) -> None:
    job = shop.run(sample.somewhere)
    assert shop.output(job.id) == b"/usr\n"


def test_arguments_of_a_shell_line_and_by_name(shop: Place) -> None:
    job = shop.run(sample.line, "a b", "$c")
    assert shop.output(job.id) == b"line: 2 a b $c\n"
    stranger = App(shop.url)
    try:
        id = stranger.submit("line", {"arguments": ["x"]}).id
        shop.until_done(id)
        assert shop.output(id) == b"line: 1 x \n"
    finally:
        stranger.close()


def test_the_group_that_was_picked_is_told(shop: Place) -> None:
    jobs = [
        sample.placed.submit(arguments=["echo $CONCURRENCY_GROUP; sleep 0.2"]) for _ in range(6)
    ]
    for job in jobs:
        assert job.result(timeout=PATIENCE) == 0
    used = Counter(shop.output(job.id).decode().strip() for job in jobs)
    assert set(used) == {"host-a", "host-b"}
    alone = shop.run(sample.one, "echo [$CONCURRENCY_GROUP]")
    assert shop.output(alone.id) == b"[]\n", "the limit of its own name is no choice"


def most_at_once(shop: Place, task: object, count: int) -> int:
    """By what the commands themselves noted."""
    trail = shop.folder / f"seen-{task.name}"  # type: ignore[attr-defined]
    note = f"echo + >> '{trail}'; sleep 0.1; echo - >> '{trail}'"
    for job in [task.submit(arguments=[note]) for _ in range(count)]:  # type: ignore[attr-defined]
        assert job.result(timeout=PATIENCE) == 0
    now = most = 0
    for line in trail.read_text().splitlines():
        now += 1 if line == "+" else -1
        most = max(most, now)
    return most


def test_one_run_at_a_time_unless_concurrent(shop: Place) -> None:
    assert most_at_once(shop, sample.one, 4) == 1
    assert most_at_once(shop, sample.many, 9) == 3


def test_retries_by_exit_code(shop: Place) -> None:
    state = shop.folder / "tries"
    count = f"echo x >> '{state}'; n=$(wc -l < '{state}'); echo try $n;"
    job = shop.run(sample.retried, f"{count} [ $n -ge 3 ] || exit 75; exit 9")
    assert (job.state, job.reason, job.attempt) == ("failed", "exit 9", 3)
    assert [a.reason for a in shop.app.store.attempts(job.id)] == ["exit 75", "exit 75", "exit 9"]
    assert shop.output(job.id) == b"try 1\ntry 2\ntry 3\n", "of all attempts, in order"
    job = shop.run(sample.always, "exit 9")
    assert (job.reason, job.attempt) == ("exit 9", 3)


def test_what_a_command_leaves_behind_ends_with_it(shop: Place) -> None:
    job = shop.run(sample.sh, "setsid sleep 600 & sleep 600 & echo $! ; exit 0")
    assert job.state == "succeeded"
    pid = int(shop.output(job.id))
    assert not Path(f"/proc/{pid}").exists()


def test_hooks_round_a_run(shop: Place) -> None:
    job = shop.run(sample.around, 'echo "$FROM_BEFORE $0"; pwd; exit 4')
    assert shop.output(job.id) == b"around 1 last\n/usr\n"
    assert f"{job.id} 4" in shop.lines("after")
    assert f"{job.id} CommandFailed" in shop.lines("errors")
    job = shop.run(sample.around, "echo never", "refuse")
    assert (job.state, job.error and job.error.message) == ("failed", "not today")
    assert shop.output(job.id) == b""


def test_many_short_ones(shop: Place) -> None:
    jobs = [sample.sh.submit(arguments=[f"echo {n}"]) for n in range(60)]
    for n, job in enumerate(jobs):
        assert job.result(timeout=PATIENCE) == 0
        assert job.output() == b"%d\n" % n


# --- where no worker runs them --------------------------------------------------------------


def test_a_plain_call_runs_it_here(capfd: pytest.CaptureFixture[str]) -> None:
    app = memory_app()
    hello = app.command("hello", 'echo "hello $1"; exit ${2:-0}')
    assert hello(arguments=["you"]) == 0
    assert capfd.readouterr().out == "hello you\n"
    with pytest.raises(CommandFailed, match="exit code 7") as failed:
        hello(arguments=["you", "7"])
    assert failed.value.code == 7


def test_with_the_testing_module() -> None:
    app = memory_app()
    fails = app.command("fails", ["sh", "-c", "exit 3"], retries=1)
    job = fails.submit()
    drain(app)
    wait_until(lambda: job.status() != "running")
    assert app.store.attempts(job.id)[0].reason == "exit 3"


# --- what cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options", "text"),
    [
        ([], {}, "a list of a program and its arguments"),
        ("  ", {}, "is empty"),
        ([""], {}, "names no program"),
        (["a", 1], {}, "1 is not a text"),
        (["a\0b"], {}, "NUL"),
        (b"ls", {}, "is not a text"),
        (["ls"], {"environment": {"A=B": "x"}}, "no name of an environment variable"),
        (["ls"], {"environment": {"A": 1}}, "environment A: 1 is not a text"),
        (["ls"], {"environment": ["A"]}, "a mapping of texts"),
        (["ls"], {"max_execution": 0}, "above 0"),
        (["ls"], {"max_execution_grace": -1}, "max_execution_grace"),
        (["ls"], {"retry_exit_codes": [1]}, "give both"),
        (["ls"], {"retry_exit_codes": [0], "retries": 1}, "from 1 to 255"),
        (["ls"], {"retry_exit_codes": "75", "retries": 1}, "a list of numbers"),
        (["ls"], {"max_output": 10}, "max_output"),
        (["ls"], {"isolate": "process"}, "unknown option 'isolate'"),
        (["ls"], {"limits": ["x", "x"]}, "twice"),
    ],
)
def test_declarations_that_cannot_work(
    command: object, options: dict[str, object], text: str
) -> None:
    with pytest.raises(DeclarationError, match=text):
        memory_app().command("c", command, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [{"arguments": ["a\0b"]}, {"arguments": "abc"}, {"environment": {"": "x"}}, {"more": 1}],
)
def test_submissions_that_cannot_work(given: dict[str, object]) -> None:
    app = memory_app()
    command = app.command("c", ["true"])
    with pytest.raises(InvalidArguments):
        command.submit(**given)
    with pytest.raises(InvalidArguments):
        app.submit("c", given)


def test_a_command_on_a_schedule() -> None:
    app = memory_app()
    app.command("nightly", ["true"], schedule="0 2 * * *", timezone="Europe/Berlin")
    assert list(app.schedules) == ["nightly"]
    with pytest.raises(DeclarationError):
        app.command("never", ["true"], schedule="0 2 * *")
