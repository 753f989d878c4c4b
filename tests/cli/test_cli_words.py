"""`headgate concurrency ls|history|weight|import|export`, and what looks wrong."""

from __future__ import annotations

import sqlite3
import tomllib
from pathlib import Path

import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.stores.protocol import LimitChange, Publication, Store


def test_a_limit_for_some_time(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    told = headgate("concurrency", "set", "gpu", "--limit", "2", "--for", "2h", "--reason", "hot")
    assert told.code == 0
    assert told.out.startswith("gpu: limit 2 (override), 0 held, until ")
    shown = headgate("concurrency", "status", "gpu").out
    assert ": hot" in shown
    assert "until" in shown
    assert "declared" in shown
    one = headgate("concurrency", "status", "gpu", "--json").json
    assert one["override"]["reason"] == "hot"
    assert one["override"]["until"] > one["override"]["at"]
    assert headgate("concurrency", "set", "gpu", "--limit", "2", "--for", "no", "--reason", "x"
                    ).code == 2  # fmt: skip
    assert "until" in headgate("concurrency", "history", "gpu").out
    paused = headgate("concurrency", "pause", "gpu", "--for", "30m", "--reason", "repair")
    assert ", paused, until " in paused.out


def test_what_is_not_there_to_be_taken_back_is_asked_about(headgate: Command, store: Store) -> None:
    publish(store, tenant=4)
    headgate("concurrency", "pause", "tenant")
    told = headgate("concurrency", "resume", "tenant/acme")
    assert (told.code, "nobody has paused tenant/acme" in told.err) == (0, True)
    assert "nobody has set the limit of tenat" in headgate("concurrency", "reset", "tenat").err
    assert headgate("concurrency", "resume", "tenant").err == ""


def test_ls_says_what_was_said_and_by_whom(headgate: Command, store: Store) -> None:
    assert headgate("concurrency", "ls").code == 0
    publish(store, gpu=4, tenant=2)
    headgate("concurrency", "set", "tenant/acme", "--limit", "5", "--reason", "their migration")
    headgate("concurrency", "pause", "gpu", "--reason", "repair")
    headgate("concurrency", "weight", "someone", "3", "--reason", "they pay")
    rows = [line.split() for line in headgate("concurrency", "ls").out.splitlines()[1:]]
    assert [row[:4] for row in rows if row[1] != "pause"] == [
        ["gpu", "limit", "4", "code"],
        ["someone", "weight", "3", "operator"],
        ["tenant", "limit", "2", "code"],
        ["tenant/acme", "limit", "5", "operator"],
    ]
    groups = {g["group"]: g for g in headgate("concurrency", "ls", "--json").json["groups"]}
    assert groups["gpu"]["pause"]["reason"] == "repair"
    assert groups["someone"]["weight"]["value"] == 3


def test_weights(headgate: Command, store: Store) -> None:
    told = headgate("concurrency", "weight", "tenant/acme", "3", "--reason", "their contract")
    assert told.out == "tenant/acme: 3 jobs per turn\n"
    (words,) = store.words()
    assert words.weight is not None
    assert words.weight.value == 3
    assert "weight 3" in headgate("concurrency", "history", "tenant/acme").out
    told = headgate("concurrency", "weight", "tenant/acme", "reset", "--reason", "it ended")
    assert told.out == "tenant/acme: no weight of its own\n"
    assert store.words() == []
    for wrong in ("0", "-1", "many", "1.5", "9" * 30):
        assert headgate("concurrency", "weight", "--reason", "x", "--", "a", wrong).code == 2
    assert headgate("concurrency", "weight", "a", "3").code == 2, "say why"


def test_export_review_import(headgate: Command, store: Store, tmp_path: Path) -> None:
    publish(store, gpu=4)
    headgate("concurrency", "set", "gpu", "--limit", "2", "--reason", "hot", "--for", "2h")
    headgate("concurrency", "pause", "tenant/acme", "--reason", 'they "asked"\nfor it')
    file = tmp_path / "limits.toml"
    assert headgate("concurrency", "export", str(file)).code == 0
    assert headgate("concurrency", "export").out == file.read_text()
    assert tomllib.loads(file.read_text())["gpu"]["limit"]["reason"] == "hot"
    same = headgate("concurrency", "import", str(file))
    assert (same.code, same.out, same.err) == (0, "", "all is as the file says\n")
    # Somebody edits the file, and takes one out.
    text = file.read_text().replace("value = 2", "value = 3").partition('["tenant/acme"]')[0]
    file.write_text(text + '[new]\nlimit = "unlimited"\nreason = "why not"\n')
    dry = headgate("concurrency", "import", str(file), "--dry-run")
    assert dry.out.splitlines()[0].startswith("~ gpu limit 2 until ")
    assert dry.out.splitlines()[1] == "+ new limit unlimited (why not)"
    assert "2 would change" in dry.err
    assert "not in the file, and kept (--exact takes it back): tenant/acme pause" in dry.err
    assert store.values(["gpu"])["gpu"].value == 2
    assert headgate("concurrency", "import", str(file), "--exact").code == 0
    assert [words.group for words in store.words()] == ["gpu", "new"]
    again = headgate("concurrency", "import", str(file), "--exact", "--json").json
    assert again == {"changes": [], "besides": [], "changed": False}
    assert headgate("concurrency", "import", "-", input="[x]\npause = true\n").code == 0


@pytest.mark.parametrize("text", ["[x", "[x]\nlimit = -1\nreason = 'r'", "[x]\nlimit = 1", "x = 1"])
def test_a_bad_file_changes_nothing(
    headgate: Command, store: Store, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(f"[good]\npause = true\n{text}" if text[0] == "[" else text)
    answer = headgate("concurrency", "import", str(file))
    assert answer.code == 2
    assert "limits.toml" in answer.err
    assert store.words() == []
    assert headgate("concurrency", "import", str(tmp_path / "none.toml")).code == 2
    file.write_bytes(b"\xff")
    assert headgate("concurrency", "import", str(file)).code == 2


def test_what_looks_wrong_is_shown(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    store.publish(Publication("other", code={"gpu": 5}))
    store.submit([job("mail", "gpu")])
    Hands(store, "mail")
    for words in (("doctor",), ("concurrency", "status")):
        answer = headgate(*words, "--older", "0s")
        told = answer.out + answer.err
        assert answer.code == 0
        assert "free-with-waiters: job " in told
        assert "disagreement: limit gpu: " in told
        odd = headgate(*words, "--older", "0s", "--json").json["odd"]
        assert {one["what"] for one in odd} == {"free-with-waiters", "disagreement"}
    assert headgate("doctor", "--older", "0s", "--strict").code == 1
    assert "free-with-waiters" not in headgate("doctor").out


def test_what_nobody_declares_is_shown_as_orphaned(
    headgate: Command, store: Store, tmp_path: Path
) -> None:
    publish(store, gpu=4)
    with sqlite3.connect(tmp_path / "jobs.db") as past:
        past.execute("UPDATE declarers SET gone = at - 1000")
        past.execute("UPDATE catalogue SET gone = at - 1000")
    listed = next(line for line in headgate("concurrency", "ls").out.splitlines() if "gpu" in line)
    assert listed.split() == ["gpu", "limit", "4", "code,", "orphaned"]
    status = headgate("concurrency", "status")
    assert status.out.splitlines()[1].endswith("orphaned")
    assert "orphaned-limit: limit gpu: no worker that is there declares it any more" in status.err
    assert "orphaned-task: task mail: no worker that is there has known it" in status.err
    (group,) = headgate("concurrency", "status", "--json").json["groups"]
    assert (group["orphaned"], group["limit"]) == (True, 4)


def test_why_names_who_paused_and_until_when(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    Hands(store, "mail")
    one = job("mail", "gpu")
    store.submit([one])
    store.change_limit(LimitChange("gpu", paused=True, by="ann", reason="repair", lasts=3600))
    text = headgate("jobs", "why", one.id).out
    assert "gpu is paused by ann: repair (that ends by itself in 59 min" in text
    told = headgate("jobs", "why", one.id, "--json").json
    assert (told["code"], told["groups"][0]["pause"]["by"]) == ("limit-paused", "ann")
    assert told["until"] == told["groups"][0]["pause"]["until"]
