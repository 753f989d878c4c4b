"""Limits as a file: written out, read again, whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate import limitfile
from headgate.concurrency import Concurrency
from headgate.errors import ConfigError, DeclarationError
from headgate.stores.protocol import LimitChange

from .conftest import Rig


def desk(rig: Rig) -> Concurrency:
    return Concurrency(lambda: rig.store, lambda: "ann")


def value(rig: Rig, group: str) -> tuple[int | None, str]:
    record = rig.store.values([group])[group]
    return record.value, record.source


def test_a_file_says_it_all_again(rig: Rig) -> None:
    words = desk(rig)
    words.set("api", 3, reason='they said "slow"\nand meant it', lasts=3600)
    words.set("tenant/Ä b", None, reason="no limit")
    words.weight("tenant/Ä b", 3, reason="they pay")
    words.pause("gpu", reason="repair")
    said, file = rig.store.words(), words.export_toml()
    assert words.import_toml(file, exact=True) == ([], [])
    for group in ("api", "tenant/Ä b"):
        words.reset(group)
    words.resume("gpu")
    words.weight("tenant/Ä b", None, reason="x")
    rig.clock.advance(5)
    changed, besides = words.import_toml(file, by="on-call")
    assert (len(changed), besides) == (4, [])
    again = rig.store.words()
    assert [w.group for w in again] == [w.group for w in said]
    assert again[0].limit is not None
    assert (again[0].limit.by, again[0].limit.reason) == ("ann", 'they said "slow"\nand meant it')
    assert words.export_toml() == file
    assert words.import_toml(file) == ([], [])
    assert {event.who for event in words.history(limit=4)} == {"on-call"}


def test_an_import_is_whole_or_nothing_and_leaves_what_it_does_not_name(rig: Rig) -> None:
    words = desk(rig)
    words.set("kept", 1, reason="by hand")
    with pytest.raises(ConfigError, match=r"\[bad\]: limit 'bad'"):
        words.import_toml('[good]\nlimit = 1\nreason = "r"\n[bad]\nlimit = -1\nreason = "r"\n')
    assert [w.group for w in rig.store.words()] == ["kept"]
    good = LimitChange("good", 1, set_value=True)
    with pytest.raises(DeclarationError):
        rig.store.change_limits([good, replace(good, group="bad\n")])
    assert [w.group for w in rig.store.words()] == ["kept"]
    file = '[good]\nlimit = 1\nreason = "r"\n'
    changed, besides = words.import_toml(file, dry_run=True)
    assert ([str(d) for d in changed], [str(d) for d in besides]) == (
        ["+ good limit 1 (r)"], ["- kept limit 1 (by hand)"]
    )  # fmt: skip
    assert [w.group for w in rig.store.words()] == ["kept"]
    words.import_toml(file)
    assert [w.group for w in rig.store.words()] == ["good", "kept"]
    words.import_toml(file, exact=True)
    assert [w.group for w in rig.store.words()] == ["good"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "must be a table"),
        ("[x]\nlimit = 1", "a reason is missing"),
        ('[x]\nreason = "r"', "says nothing"),
        ('[x]\nlimit = "many"\nreason = "r"', "whole number"),
        ("[x]\nlimits = 1", "limits: not known"),
        ('[x]\nlimit = {reason = "r"}', "a value is missing"),
        ('[x]\npause = {reason = "r", until = 2026-01-01T00:00:00}', "with its zone"),
        ("[x]\nweight = 0", "weight must be"),
        ("[x", "is no TOML"),
        ('["a/b"]\npause = true\n["a/b "]\npause = 3', "pause must be true"),
    ],
)
def test_a_bad_file_says_where(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        limitfile.load(text, "limits.toml", by="ann", now=0.0)
