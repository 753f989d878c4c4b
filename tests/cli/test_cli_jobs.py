"""`headgate jobs` and `headgate submit` on a real store."""

from __future__ import annotations

import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.cli import bulk
from headgate.jobs import Failure, Finish, JobFilter, State
from headgate.stores.protocol import Store
from headgate.stores.relational import searching


@pytest.fixture
def some(store: Store) -> list[str]:
    """Three jobs that wait: two mails of acme, one resize."""
    publish(store, tenant=1)
    jobs = [
        job("mail", "tenant/acme", args='{"n": 1}'),
        job("mail", "tenant/acme", args='{"n": 2}'),
        job("resize", queue="slow"),
    ]
    store.submit(jobs)
    return [j.id for j in jobs]


def test_ls(headgate: Command, some: list[str]) -> None:
    listed = headgate("jobs", "ls")
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert lines[0].split() == ["id", "task", "state", "queue", "tries", "time"]
    assert [line.split()[0] for line in lines[1:]] == some[::-1]
    assert "\x1b" not in listed.out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--task", "mail"], [1, 0]),
        (["--queue", "slow"], [2]),
        (["--group", "tenant/acme"], [1, 0]),
        (["--state", "running"], []),
        (["--state", "running", "--state", "ready"], [2, 1, 0]),
        (["--since", "1h"], [2, 1, 0]),
        (["--since", "2100-01-01"], []),
        (["--until", "2001-01-01T00:00+02:00"], []),
        (["--limit", "1"], [2]),
    ],
)
def test_ls_filters(
    headgate: Command, some: list[str], flags: list[str], expected: list[int]
) -> None:
    found = headgate("jobs", "ls", "--json", *flags).json["jobs"]
    assert [job["id"] for job in found] == [some[n] for n in expected]


def test_ls_goes_on_after_a_page(headgate: Command, some: list[str]) -> None:
    first = headgate("jobs", "ls", "--limit", "2", "--json").json
    second = headgate("jobs", "ls", "--limit", "2", "--after", first["after"], "--json").json
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == some[::-1]
    assert second["after"] is None


def test_ls_says_where_it_stopped(
    headgate: Command, some: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LOOK", 1)
    nothing = headgate("jobs", "ls", "--task", "mail")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no such jobs among the 5,000 looked at" in nothing.err
    assert f"--after {some[2]}" in nothing.err
    assert headgate("jobs", "ls", "--task", "mail", "--json").json == {
        "jobs": [], "after": some[2],
    }  # fmt: skip
    one = headgate("jobs", "ls", "--task", "mail", "--after", some[2])
    assert some[1] in one.out
    assert "1 such job among the 5,000 looked at" in one.err
    assert f"may be more: --after {some[1]}" in one.err
    last = headgate("jobs", "ls", "--task", "mail", "--after", some[0])
    assert last.err == "no such jobs\n"


def test_ls_goes_through_a_state_of_which_there_are_many(
    headgate: Command, some: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LOOK", 2)
    flags = ["--state", "ready", "--state", "running", "--json"]
    first = headgate("jobs", "ls", *flags).json
    assert first["after"].startswith("ready:")
    second = headgate("jobs", "ls", *flags, "--after", first["after"]).json
    assert second["after"] is None
    assert {job["id"] for job in first["jobs"] + second["jobs"]} == set(some)
    refused = headgate("jobs", "ls", "--state", "failed", "--after", first["after"])
    assert refused.code == 2
    assert "is no place in this list" in refused.err


def test_flags_come_from_the_environment_too(headgate: Command, some: list[str]) -> None:
    listed = headgate("jobs", "ls", "--json", env={"HEADGATE_JOBS_LS_LIMIT": "1"})
    assert len(listed.json["jobs"]) == 1
    listed = headgate("jobs", "ls", "--json", "--limit", "3", env={"HEADGATE_JOBS_LS_LIMIT": "1"})
    assert len(listed.json["jobs"]) == 3


def test_show(headgate: Command, store: Store, some: list[str]) -> None:
    hands = Hands(store, "mail")
    (claimed,) = hands.claim()
    error = Failure("ValueError", "no such mail", "Traceback …\nValueError: no such mail")
    hands.finish(Finish(claimed.token, "failed", error=error))
    shown = headgate("jobs", "show", claimed.job)
    assert shown.code == 0
    for text in ("failed", "tenant/acme", "web-1", "ValueError: no such mail", "Traceback …"):
        assert text in shown.out
    data = headgate("jobs", "show", claimed.job, "--json").json
    assert data["state"] == "failed"
    assert data["args"] == {"n": 1}
    assert data["needs"]["all"] == [{"group": "tenant/acme", "units": 1}]
    assert [a["error"]["type"] for a in data["attempts"]] == ["ValueError"]
    assert data["error"]["type"] == "ValueError"


def test_control_characters_do_not_reach_the_terminal(headgate: Command, store: Store) -> None:
    hostile = job("mail", turn="x", args='"\\u001b[2J\\u0000 é"')
    store.submit([hostile])
    shown = headgate("jobs", "show", hostile.id)
    assert "\x1b" not in shown.out
    assert "\x00" not in shown.out
    assert "é" in shown.out


@pytest.mark.parametrize("verb", ["show", "why", "cancel", "retry"])
@pytest.mark.parametrize("id", ["nope", "", "x" * 10_000, "é\n"])
def test_no_such_job(headgate: Command, store: Store, verb: str, id: str) -> None:
    answer = headgate("jobs", verb, id)
    assert answer.code == 3
    assert answer.err.startswith("headgate: ")
    assert "Traceback" not in answer.err


# --- cancel and retry ---------------------------------------------------------------------


def test_cancel_by_id(headgate: Command, store: Store, some: list[str]) -> None:
    done = headgate("jobs", "cancel", some[0], some[2], "--reason", "a mistake")
    assert (done.code, done.out) == (0, "2 jobs cancelled\n")
    assert [store.job(id).state for id in some] == ["cancelled", "ready", "cancelled"]  # type: ignore[union-attr]
    again = headgate("jobs", "cancel", some[0])
    assert (again.code, again.out) == (0, "1 job had ended before\n")


def test_cancel_tells_running_jobs(headgate: Command, store: Store, some: list[str]) -> None:
    (claimed,) = Hands(store, "mail").claim()
    done = headgate("jobs", "cancel", "--state", "running", "--yes")
    assert done.out == "1 job running: told to stop\n"
    assert "was asked for" in headgate("jobs", "why", claimed.job).out


def test_bulk_acts_on_all_in_steps(
    headgate: Command, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LOOK", 3)
    monkeypatch.setattr(bulk, "PAGE", 2)
    monkeypatch.setattr(bulk, "COUNTED", 4)
    store.submit([job("mail", turn=str(n % 3)) for n in range(8)])
    store.submit([job("mail", delay=1e5) for _ in range(5)])
    others = [done.id for done in store.submit([job("resize") for _ in range(5)])]
    refused = headgate("jobs", "cancel", "--task", "mail")
    assert "this would cancel more than 4 jobs" in refused.err
    done = headgate("jobs", "cancel", "--task", "mail", "--yes")
    assert (done.code, done.out) == (0, "13 jobs cancelled\n")
    again = headgate("jobs", "retry", "--state", "cancelled", "--yes")
    assert (again.code, again.out) == (0, "13 jobs sent back\n")
    assert {store.job(id).state for id in others} == {"ready"}  # type: ignore[union-attr]


def test_bulk_misses_no_job_that_moves_meanwhile(store: Store, some: list[str]) -> None:
    hands = Hands(store, "mail")
    (claimed,) = hands.claim()
    states: frozenset[State] = frozenset(("ready", "scheduled", "running"))
    ids = bulk._ids(store, JobFilter(states=states))
    found = [next(ids)]  # those that are scheduled have been read, and there was none
    hands.finish(Finish(claimed.token, "retry", delay=1e5))
    assert sorted([*found, *ids]) == sorted(some)


def test_bulk_needs_a_yes(headgate: Command, store: Store, some: list[str]) -> None:
    refused = headgate("jobs", "cancel", "--task", "mail")
    assert refused.code == 2
    assert "this would cancel 2 jobs" in refused.err
    assert store.count(JobFilter(states=frozenset(("ready",)))) == 3
    done = headgate("jobs", "cancel", "--task", "mail", "--yes", "--json")
    assert {job["id"] for job in done.json["changed"]} == set(some[:2])
    assert store.count(JobFilter(states=frozenset(("ready",)))) == 1


def test_bulk_over_many_pages(headgate: Command, store: Store) -> None:
    publish(store)
    store.submit([job("mail") for _ in range(600)])
    store.submit([job("mail") for _ in range(601)])
    done = headgate("jobs", "cancel", "--state", "ready", "--yes")
    assert done.out == "1,201 jobs cancelled\n"
    again = headgate("jobs", "cancel", "--state", "ready", "--yes")
    assert (again.code, again.out) == (0, "0 jobs cancelled\n")


def test_retry(headgate: Command, store: Store, some: list[str]) -> None:
    hands = Hands(store, "mail", "resize")
    for claimed in hands.claim():
        hands.finish(Finish(claimed.token, "failed", error=Failure("E", "x")))
    assert headgate("jobs", "retry", "--task", "mail", "--since", "1h", "--yes").out == (
        "1 job sent back\n"
    )
    waiting = headgate("jobs", "retry", some[1])
    assert waiting.code == 1
    assert "only a finished job" in waiting.err
    assert headgate("jobs", "retry", some[1], "nope").code == 1


def test_which_jobs_must_be_said(headgate: Command, store: Store) -> None:
    assert headgate("jobs", "cancel").code == 2
    assert headgate("jobs", "retry", "--yes").code == 2
    assert headgate("jobs", "cancel", "x", "--state", "ready").code == 2


@pytest.mark.parametrize("since", ["yesterday", "", "12 parsecs", "-3h", "forever", "\0"])
def test_times_that_are_none(headgate: Command, store: Store, since: str) -> None:
    answer = headgate("jobs", "ls", "--since", since)
    assert answer.code == 2
    assert "is no date and time" in answer.err


# --- submit -------------------------------------------------------------------------------


def test_submit_prints_the_id(headgate: Command, store: Store) -> None:
    publish(store, mail=3)
    done = headgate("submit", "mail", '{"to": "é"}', "--queue", "slow", "--priority", "-5")
    record = store.job(done.out.strip())
    assert record is not None
    assert (record.task, record.queue, record.priority) == ("mail", "slow", -5)
    assert record.args == '{"to":"é"}'


def test_submit_reads_stdin(headgate: Command, store: Store) -> None:
    done = headgate("submit", "later", "-", "--json", input='{"n": [1, 2]}')
    assert done.json["args"] == {"n": [1, 2]}
    assert done.json["state"] == "ready"


def test_submit_later(headgate: Command, store: Store) -> None:
    publish(store)
    assert headgate("submit", "mail", "--delay", "2h", "--json").json["state"] == "scheduled"
    at = headgate("submit", "mail", "--at", "2100-01-01T00:00+00:00", "--json").json
    assert at["run_at"] == "2100-01-01T00:00:00+00:00"
    assert headgate("submit", "mail", "--at", "soon").code == 2
    assert headgate("submit", "mail", "--at", "2100-01-01", "--delay", "1").code == 2


def test_submit_twice_with_one_key(headgate: Command, store: Store) -> None:
    first = headgate("submit", "x", '{"n": 1}', "--idempotency-key", "k")
    assert headgate("submit", "x", '{"n": 1}', "--idempotency-key", "k").out == first.out
    other = headgate("submit", "x", '{"n": 2}', "--idempotency-key", "k")
    assert other.code == 2
    assert "Traceback" not in other.err


def test_submit_into_a_group_of_its_own(headgate: Command, store: Store) -> None:
    publish(store)
    made = headgate(
        "submit", "mail", "--concurrency-group", "heavy", "--concurrency-limit", "5", "--json"
    )
    assert made.json["needs"]["all"] == [{"group": "heavy", "units": 1}]


@pytest.mark.parametrize(
    "args",
    [
        ["x", "{"],
        ["x", '{"a": NaN}'],
        ["x", "[" * 100_000],
        ["x", "{}", "--priority", "101"],
        ["x", "{}", "--priority", "high"],
        ["x", "{}", "--concurrency-limit", "-1"],
        ["x", "{}", "--concurrency-limit", "9" * 40],
        ["", "{}"],
        ["x" * 1000, "{}"],
        ["a\nb", "{}"],
        ["x", "{}", "--idempotency-key", ""],
        ["x", "{}", "--concurrency-group", "a\x00b"],
        [],
    ],
)
def test_submit_refuses(headgate: Command, store: Store, args: list[str]) -> None:
    answer = headgate("submit", *args)
    assert answer.code == 2, answer
    assert answer.err
    assert store.count(JobFilter()) == 0


def test_a_task_nobody_declared(headgate: Command, store: Store) -> None:
    strict = headgate("submit", "typo", "--strict")
    assert strict.code == 3
    assert "'typo'" in strict.err
    waits = headgate("submit", "typo").out.strip()
    assert "'typo', and no running worker knows it" in headgate("jobs", "why", waits).out
