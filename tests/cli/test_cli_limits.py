"""`headgate concurrency`, `queues`, `workers` and `doctor` on a real store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.stores.protocol import Store


def test_status(headgate: Command, store: Store) -> None:
    publish(store, tenant=2, gpu=None)
    store.submit([job("mail", "tenant/acme") for _ in range(3)])
    claimed = Hands(store, "mail").claim()
    listed = headgate("concurrency", "status")
    assert listed.code == 0
    acme = next(line for line in listed.out.splitlines() if line.startswith("tenant/acme"))
    assert acme.split()[1:4] == ["2", "2", "100%"]
    assert "full" in acme
    groups = {g["group"]: g for g in headgate("concurrency", "status", "--json").json["groups"]}
    assert (groups["tenant/acme"]["limit"], groups["tenant/acme"]["active"]) == (2, 2)
    one = headgate("concurrency", "status", "tenant/acme", "--json").json
    assert {slot["task_id"] for slot in one["slots"]} == {c.job for c in claimed}
    shown = headgate("concurrency", "status", "tenant/acme").out
    assert "web-1" in shown
    assert claimed[0].job in shown


def test_status_of_many_keys(headgate: Command, store: Store) -> None:
    publish(store, tenant=2, web=1)
    keys = [f"tenant/{n:02} it's" for n in range(5)]
    store.submit([job("mail", key) for key in keys])
    assert len(Hands(store, "mail").claim()) == 5

    def names(*flags: str) -> list[str]:
        told = headgate("concurrency", "status", *flags, "--json").json
        return [one["group"] for one in told["groups"]]

    first = headgate("concurrency", "status", "--limit", "2")
    assert first.err == (
        "there may be more groups: --after 'tenant/01 it'\"'\"'s'; one of them: headgate"
        " concurrency status GROUP\n"
    )
    assert names("--limit", "2") == ["tenant", *keys[:2], "web"], "all limits, and some keys"
    assert names("--limit", "2", "--after", keys[1]) == keys[2:4]
    assert names("--limit", "2", "--after", keys[3]) == keys[4:]
    assert headgate("concurrency", "status", "--limit", "2", "--json").json["after"] == keys[1]
    whole = headgate("concurrency", "status")
    assert (whole.err, len(whole.out.splitlines())) == ("", 8)
    assert headgate("concurrency", "status", "--json").json["after"] is None
    end = headgate("concurrency", "status", "--after", keys[4])
    assert (end.code, end.out, end.err) == (0, "", "no more groups\n")
    wrong = headgate("concurrency", "status", "tenant", "--after", keys[0])
    assert wrong.code == 2
    assert "leave out GROUP" in wrong.err


def test_ls_of_many_words(headgate: Command, store: Store) -> None:
    publish(store, tenant=2)
    store.submit([job("mail", "tenant/held")])
    assert len(Hands(store, "mail").claim()) == 1
    for n in range(5):
        headgate("concurrency", "set", f"tenant/{n}", "--limit", "3", "--reason", "test")
    first = headgate("concurrency", "ls", "--limit", "3", "--json").json
    assert [one["group"] for one in first["groups"]] == ["tenant", *(f"tenant/{n}" for n in "012")]
    rest = headgate("concurrency", "ls", "--after", first["after"], "--json").json
    assert [one["group"] for one in rest["groups"]] == ["tenant/3", "tenant/4"]
    assert rest["after"] is None, "of what is merely held nobody said anything"
    assert headgate("concurrency", "ls", "--after", "z").err == "no more groups\n"
    told = headgate("concurrency", "ls", "--limit", "3")
    assert told.err.startswith("there may be more groups: --after tenant/2; ")


def test_status_of_nothing(headgate: Command, store: Store) -> None:
    assert headgate("concurrency", "status").code == 0
    nothing = headgate("concurrency", "status", "nothing")
    assert nothing.code == 3
    assert "nothing declares a limit" in nothing.err
    assert headgate("concurrency", "status", "nothing", "--json").code == 3


def test_set_reset_pause_resume(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    steps = [
        (["set", "gpu", "--limit", "2", "--reason", "hot"], (2, "override", False)),
        (["set", "gpu", "--limit", "none", "--reason", "cool"], (None, "override", False)),
        (["set", "gpu", "--limit", "0", "--reason", "stop"], (0, "override", False)),
        (["pause", "gpu"], (0, "override", True)),
        (["reset", "gpu"], (4, "code", True)),
        (["resume", "gpu"], (4, "code", False)),
    ]
    for words, expected in steps:
        after = headgate("concurrency", *words, "--json")
        assert after.code == 0, after
        record = store.values(["gpu"])["gpu"]
        assert (record.value, record.source, record.paused) == expected
        assert (after.json["limit"], after.json["source"], after.json["paused"]) == expected
    told = headgate("concurrency", "set", "gpu", "--limit", "3", "--reason", "x")
    assert told.out == "gpu: limit 3 (override), 0 held\n"


def test_every_change_is_told(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    assert headgate("concurrency", "history").out == ""
    headgate("concurrency", "set", "gpu", "--limit", "2", "--reason", "too hot")
    headgate("concurrency", "pause", "gpu")
    headgate("concurrency", "set", "other", "--limit", "1", "--reason", "new")
    last, first = headgate("concurrency", "history", "gpu", "--json").json["changes"]
    assert (first["old"], first["new"], first["reason"]) == (4, 2, "too hot")
    assert (last["was_paused"], last["paused"]) == (False, True)
    assert "@" in first["by"]
    shown = headgate("concurrency", "history").out.splitlines()
    assert len(shown) == 4
    assert "too hot" in shown[-1]


def test_over_runs_are_told(headgate: Command, store: Store) -> None:
    publish(store, tenant=2)
    store.submit([job("mail", "tenant/acme")])
    hands = Hands(store, "mail")
    (claimed,) = hands.claim()
    store.declare_dead(hands.id, "its lease ended")
    assert store.over_ran(claimed.job, claimed.token, "web-1")
    told = headgate("doctor")
    assert told.code == 1
    assert "over-runs: attempts that ran on" in told.out
    (overrun,) = headgate("concurrency", "history", "--json").json["overruns"]
    assert (overrun["subject"], overrun["groups"]) == (claimed.job, ["tenant/acme"])
    (line,) = headgate("concurrency", "history", "tenant/acme").out.splitlines()[1:]
    assert f"job {claimed.job} ran on" in line
    assert headgate("concurrency", "history", "tenant/other").out == ""


def test_a_key_can_have_a_limit_of_its_own(headgate: Command, store: Store) -> None:
    publish(store, tenant=2)
    headgate("concurrency", "set", "tenant/acme", "--limit", "9", "--reason", "big")
    values = store.values(["tenant/acme", "tenant/other"])
    assert [values[g].value for g in ("tenant/acme", "tenant/other")] == [9, 2]


@pytest.mark.parametrize(
    "words",
    [
        ["set", "gpu", "--limit", "-1", "--reason", "x"],
        ["set", "gpu", "--limit", "many", "--reason", "x"],
        ["set", "gpu", "--limit", "1.5", "--reason", "x"],
        ["set", "gpu", "--limit", "³", "--reason", "x"],
        ["set", "gpu", "--limit", "9" * 30, "--reason", "x"],
        ["set", "gpu", "--limit", "3"],
        ["set", "", "--limit", "3", "--reason", "x"],
        ["set", "a\nb", "--limit", "3", "--reason", "x"],
        ["release", "gpu", "1"],
        ["release", "gpu", "one", "--force"],
    ],
)
def test_bad_input(headgate: Command, store: Store, words: list[str]) -> None:
    answer = headgate("concurrency", *words)
    assert answer.code == 2, answer
    assert answer.err


def test_release_by_force(headgate: Command, store: Store) -> None:
    publish(store, gpu=1)
    store.submit([job("mail", "gpu")])
    Hands(store, "mail").claim()
    slot = headgate("concurrency", "status", "gpu", "--json").json["slots"][0]["slot_id"]
    refused = headgate("concurrency", "release", "gpu", str(slot))
    assert refused.code == 2
    assert "--force" in refused.err
    freed = headgate("concurrency", "release", "gpu", str(slot), "--force", "--json")
    assert freed.json == {"group": "gpu", "slot_id": slot, "released": True}
    assert store.values(["gpu"])["gpu"].held == 0
    assert headgate("concurrency", "release", "gpu", str(slot), "--force").code == 3


def test_queues(headgate: Command, store: Store) -> None:
    publish(store)
    store.submit([job("mail", queue="slow") for _ in range(2)])
    assert headgate("queues", "pause", "slow", "--reason", "backup").code == 0
    (slow,) = headgate("queues", "ls", "--json").json["queues"]
    assert (slow["queue"], slow["paused"], slow["waiting"]) == ("slow", True, 2)
    assert "paused by" in headgate("queues", "ls").out
    assert Hands(store, "mail").claim() == []
    assert headgate("queues", "resume", "slow").out == "queue slow is open\n"
    assert headgate("queues", "pause", "a\x00b").code == 2


def test_workers(headgate: Command, store: Store) -> None:
    assert headgate("workers", "ls").out == ""
    Hands(store, "mail", name="web-7")
    (worker,) = headgate("workers", "ls", "--json").json["workers"]
    assert (worker["name"], worker["state"], worker["pid"]) == ("web-7", "alive", os.getpid())
    assert str(os.getpid()) in headgate("workers", "ls").out


def test_doctor_is_content(headgate: Command, store: Store) -> None:
    answer = headgate("doctor")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "no trouble found")
    assert headgate("doctor", "--json").json["ok"] is True


def test_doctor_finds_and_repairs(headgate: Command, store: Store, tmp_path: Path) -> None:
    publish(store)
    store.submit([job("mail")])
    with sqlite3.connect(tmp_path / "jobs.db") as damage:
        damage.execute("DELETE FROM ready")
    sick = headgate("doctor")
    assert sick.code == 1
    assert "TROUBLE: jobs-nowhere" in sick.out
    assert "headgate doctor --repair" in sick.out
    assert headgate("doctor", "--json").json["troubles"][0]["repaired"] is False
    assert headgate("doctor", "--repair").code == 0
    assert headgate("doctor").code == 0
    assert [claimed.task for claimed in Hands(store, "mail").claim()] == ["mail"]
