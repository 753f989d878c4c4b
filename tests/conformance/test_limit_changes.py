"""Limits as data: words that end by themselves, weights, single keys, orphans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headgate import limitfile
from headgate.concurrency import Concurrency
from headgate.errors import ConfigError, DeclarationError
from headgate.stores.protocol import LimitChange, Publication, SlotRequest, TaskSpec
from headgate.stores.relational.orphans import FORGET_AFTER, GONE_AFTER

from .conftest import Hand, Rig, need


def desk(rig: Rig) -> Concurrency:
    return Concurrency(lambda: rig.store, lambda: "ann")


def value(rig: Rig, group: str) -> tuple[int | None, str]:
    record = rig.store.values([group])[group]
    return record.value, record.source


# --- words that end ------------------------------------------------------------------------------


def test_a_word_ends_at_the_moment_of_decision(rig: Rig) -> None:
    rig.declare(api=2)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 5, reason="a burst", lasts=60)
    assert value(rig, "api") == (5, "override")
    claimed = hand.claim()
    assert len(claimed) == 5
    rig.clock.advance(60)
    # Nobody swept and nobody claimed: it is over all the same.
    assert value(rig, "api") == (2, "code")
    for attempt in claimed[:3]:
        hand.end(attempt)
        assert hand.claim() == [], "what was granted before drains first"
    hand.end(claimed[3])
    assert len(hand.claim()) == 1
    assert rig.held("api") == 2


def test_the_end_of_a_word_wakes_who_waits(rig: Rig) -> None:
    rig.declare(api=5)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 1, reason="careful", lasts=60)
    rig.clock.advance(10)
    got = hand.exchange()
    assert len(got.claimed) == 1
    assert hand.exchange().wake_in == pytest.approx(50, abs=0.5)
    rig.clock.advance(50)
    assert len(hand.claim()) == 4


def test_what_was_chosen_before_the_end_is_not_granted_after_it(rig: Rig) -> None:
    """A worker that is busy chooses by what it saw at the end of its last round trip."""
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 4, reason="a burst", lasts=60)
    (first,) = hand.exchange(room=1, again=True).claimed
    rig.clock.advance(60)
    got = hand.exchange([], room=10, again=True, fresh=False)
    assert got.claimed == ()
    assert rig.held("api") == 1
    hand.end(first)


def test_an_end_is_recorded_once_when_it_is_noticed(rig: Rig) -> None:
    rig.declare(api=2)
    desk(rig).set("api", 5, reason="a burst", lasts=60)
    rig.clock.advance(61)
    assert [e.data["new"] for e in desk(rig).history("api")] == [5], "reading notices nothing"
    a, b = rig.hand("a"), rig.hand("b")
    for hand in (a, b, a):
        hand.claim()
    ended, said = desk(rig).history("api")
    assert (ended.data["old"], ended.data["new"], ended.data["ended"]) == (5, 2, "limit")
    assert ended.data["reason"] == "its time was over (said by ann: a burst)"
    assert (said.who, said.data["until"]) == ("ann", pytest.approx(ended.at - 1, abs=0.1))
    assert rig.store.words() == []


def test_the_sweeper_notices_an_end_where_nobody_works(rig: Rig) -> None:
    desk(rig).pause("api", reason="for a while", lasts=5)
    rig.clock.advance(20)
    rig.store.sweep()
    assert desk(rig).history("api")[0].data["ended"] == "pause"


def test_a_slot_by_hand_goes_by_the_same_end(rig: Rig) -> None:
    desk(rig).set("gpu", 2, reason="two cards", lasts=60)

    def take(holder: str) -> bool:
        return rig.store.take_slot(SlotRequest("gpu", holder, "here", 3600, 1, True)) is not None

    assert [take(holder) for holder in "abc"] == [True, True, False]
    rig.clock.advance(60)
    assert not take("d"), "one is carried, two are held"
    for slot in rig.store.group("gpu")[1]:
        rig.store.drop_slot("gpu", slot.slot, slot.token)
    assert [take(holder) for holder in "ef"] == [True, False]


def test_a_pause_and_a_limit_end_each_for_itself(rig: Rig) -> None:
    rig.declare(api=2)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 5, reason="more", lasts=100)
    desk(rig).pause("api", reason="not now", lasts=50)
    assert hand.claim() == []
    (group,) = rig.store.why(rig.submit(needs=need("api"))[0]).groups
    assert group.pause is not None
    assert (group.pause.by, group.pause.reason) == ("ann", "not now")
    rig.clock.advance(50)
    assert len(hand.claim()) == 5
    rig.clock.advance(50)
    assert value(rig, "api") == (2, "code")


def test_a_later_word_takes_the_end_back(rig: Rig) -> None:
    rig.declare(api=2)
    desk(rig).set("api", 5, reason="for now", lasts=60)
    desk(rig).set("api", 6, reason="for good")
    rig.clock.advance(1000)
    assert value(rig, "api") == (6, "override")
    assert rig.hand().exchange().wake_in is None


def test_who_says_it_and_nonsense(rig: Rig) -> None:
    with pytest.raises(DeclarationError, match="reason is empty"):
        desk(rig).set("api", 1, reason=" ")
    with pytest.raises(DeclarationError):
        desk(rig).set("api", 1, reason="x", lasts=0)
    with pytest.raises(ConfigError, match="weight"):
        desk(rig).weight("tenant/a", 0, reason="x")
    assert rig.store.events("limit_changed") == []


# --- one key, weights ---------------------------------------------------------------------------


def test_one_key_has_its_own_value_and_nobody_else_a_row(rig: Rig) -> None:
    rig.declare(tenant=2)
    keys = [f"t{n:03d}" for n in range(100)]
    for key in (*keys, "acme"):
        rig.tenant(key, 6)
    desk(rig).set("tenant/acme", 5, reason="they pay")
    hand = rig.hand()
    started = Counter(claimed.turn for claimed in hand.claim(room=500))
    assert started == {"acme": 5, **dict.fromkeys(keys, 2)}
    assert [words.group for words in rig.store.words()] == ["tenant/acme"]
    hand.end_all()
    while hand.claim(room=500):
        hand.end_all()
    assert set(rig.store.groups()) == {"tenant", "tenant/acme"}, "a key leaves nothing behind"


def test_an_operator_weighs_a_key_over_file_and_code(rig: Rig) -> None:
    rig.declare(tenant=100)
    for key in "abc":
        rig.tenant(key, 60)
    desk(rig).weight("tenant/a", 3, reason="they pay")

    def shares() -> list[int]:
        hand = rig.hand("w")
        counts = Counter[str]()
        for _ in range(10):
            for claimed in hand.exchange(room=5, weights={"a": 1}).claimed:
                counts[claimed.turn] += 1
                hand.end(claimed)
        return [counts[key] for key in "abc"]

    a, b, c = shares()
    assert a >= 2.5 * max(b, c)
    desk(rig).weight("tenant/a", None, reason="they left")
    a, b, c = shares()
    assert max(a, b, c) - min(a, b, c) <= 2
    weights = [(e.data["old_weight"], e.data["weight"]) for e in desk(rig).history("tenant/a")]
    assert weights == [(3, None), (None, 3)]


def test_a_weight_ends_and_may_be_said_of_a_fairness_key_alone(rig: Rig) -> None:
    for key in "ab":
        rig.submit(60, turn=key)
    desk(rig).weight("a", 4, reason="catching up", lasts=60)
    hand = rig.hand()

    def share(rounds: int) -> int:
        counts = Counter[str]()
        for _ in range(rounds):
            for claimed in hand.exchange(room=5).claimed:
                counts[claimed.turn] += 1
                hand.end(claimed)
        return counts["a"]

    assert share(4) == 16
    rig.clock.advance(60)
    assert 9 <= share(4) <= 11


# --- up and down --------------------------------------------------------------------------------


def test_from_a_value_to_none_and_down_while_held_and_up_again(rig: Rig) -> None:
    rig.declare(api=500)
    rig.submit(900, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim(room=900)) == 500
    rig.declare(api=None)
    assert len(hand.claim(room=100)) == 100
    rig.declare(api=10)
    assert rig.held("api") == 600, "lowering kills nobody"
    assert hand.claim() == []
    running = list(hand.running.values())
    for attempt in running[:590]:
        hand.end(attempt)
    assert hand.claim() == []
    hand.end(running[590])
    assert len(hand.claim()) == 1
    assert rig.held("api") == 10
    rig.declare(api=500)
    assert len(hand.claim(room=900)) == 299
    assert rig.held("api") == 309


# --- as a file ----------------------------------------------------------------------------------


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


# --- orphans ------------------------------------------------------------------------------------


def sweep(rig: Rig) -> None:
    rig.clock.advance(11)
    rig.store.sweep()


def orphaned(rig: Rig) -> set[str]:
    return {record.group for record in rig.store.limits() if record.orphaned}


def fleet(rig: Rig, name: str, limit: int, release: str = "") -> Hand:
    hand = rig.hand(name, tasks=["task"])
    spec = TaskSpec("task")
    rig.store.publish(Publication(name, release, tasks=(spec,), code={"api": limit}))
    return hand


def test_a_limit_that_nobody_declares_any_more(rig: Rig) -> None:
    hand = fleet(rig, "old", 2)
    rig.submit(3, needs=need("api"))
    (a, b) = hand.claim()
    sweep(rig)
    assert orphaned(rig) == set()
    other = rig.hand("other", tasks=["other"])
    hand.end(b)
    hand.leave()  # it ran one: that one is lost, and waits again
    sweep(rig)
    assert orphaned(rig) == set(), "a restart is no reason"
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert orphaned(rig) == {"api"}
    assert value(rig, "api") == (2, "code"), "it counts all the same"
    assert [t.what for t in rig.store.oddities() if "orphan" in t.what] == [
        "orphaned-limit", "orphaned-task"
    ]  # fmt: skip
    rig.clock.advance(FORGET_AFTER)
    sweep(rig)
    assert value(rig, "api") == (2, "code"), "jobs wait for it"
    assert rig.store.task("task") is not None
    assert a.task == "task"
    back = fleet(rig, "new", 3)
    sweep(rig)
    assert orphaned(rig) == set()
    assert value(rig, "api") == (3, "code")
    while back.claim():
        back.end_all()
    back.leave()
    sweep(rig)
    rig.clock.advance(FORGET_AFTER)
    sweep(rig)
    assert value(rig, "api") == (None, "none")
    assert rig.store.task("task") is None
    kinds = [event.kind for event in rig.store.events(limit=5)]
    assert {"limit_forgotten", "task_forgotten"} <= set(kinds)
    assert other.claim() == []


def test_runs_of_a_job_that_is_in_no_configuration_any_more_are_cancelled(rig: Rig) -> None:
    here = rig.hand("here", tasks=["old", "new", "of-code"])
    there = rig.hand("there", tasks=["old"])
    specs = (TaskSpec("old", source="file"), TaskSpec("new", source="file"), TaskSpec("of-code"))
    rig.store.publish(Publication("here", tasks=specs))
    (running,) = rig.submit(task="old")
    (claimed,) = there.claim()
    waiting = [*rig.submit(2, task="old"), *rig.submit(task="old", run_at=rig.store.now() + 9e5)]
    (other,) = rig.submit(task="of-code")
    # A reload: this worker knows less from now on, and there is another that knows it still.
    rig.store.publish(Publication("here", tasks=(specs[1],), worker=here.id))
    assert {w.name: set(w.tasks) for w in rig.store.workers()}["here"] == {"new"}
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert {rig.state(id) for id in waiting} == {"ready", "scheduled"}
    there.end(claimed)
    there.leave()
    sweep(rig)
    assert {rig.state(id) for id in waiting} == {"ready", "scheduled"}, "a restart is no reason"
    rig.clock.advance(GONE_AFTER + 11)
    assert rig.store.sweep().removed == (("old", 3),)
    for id in waiting:
        record = rig.store.job(id)
        assert record is not None
        assert (record.state, record.reason) == ("cancelled", "removed from the configuration")
    assert [rig.state(running), rig.state(other)] == ["succeeded", "ready"]
    (event,) = [e for e in rig.store.events(limit=20) if e.kind == "runs_removed"]
    assert event.subject == "old"
    sweep(rig)
    assert rig.store.sweep().removed == ()


def test_what_is_held_is_not_forgotten(rig: Rig) -> None:
    rig.declare(gpu=1)
    rig.hand("other")
    slot = rig.store.take_slot(SlotRequest("gpu", "me", "here", 10 * FORGET_AFTER))
    assert slot is not None
    sweep(rig)
    rig.clock.advance(FORGET_AFTER + GONE_AFTER)
    sweep(rig)
    assert value(rig, "gpu") == (1, "code")
    assert orphaned(rig) == {"gpu"}
    rig.store.drop_slot("gpu", slot.slot, slot.token)
    sweep(rig)
    assert value(rig, "gpu") == (None, "none")


def test_a_release_that_was_rolled_back_decides_no_more(rig: Rig) -> None:
    new = fleet(rig, "new", 10, release="2.0")
    old = fleet(rig, "old", 5, release="1.9")
    assert value(rig, "api") == (10, "code")
    new.leave()
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert value(rig, "api") == (5, "code")
    assert rig.store.values(["api"])["api"].disagree == ()
    assert old.claim() == []


def test_who_declared_nothing_leaves_nothing(rig: Rig) -> None:
    rig.store.publish(Publication("bare"))
    rig.hand("other")
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    with rig.store._read() as tx:  # type: ignore[attr-defined]
        assert tx.rows(tx.sql.orphans.declarers) == []


def test_a_worker_that_is_back_in_time_changes_nothing(rig: Rig) -> None:
    fleet(rig, "web", 10).leave()
    fleet(rig, "cron", 5)
    rig.store.publish(Publication("web", "1", code={"api": 10}))
    sweep(rig)
    rig.clock.advance(GONE_AFTER / 2)
    rig.hand("web", tasks=["task"])
    sweep(rig)
    rig.clock.advance(GONE_AFTER)
    sweep(rig)
    assert value(rig, "api") == (10, "code")


# --- what looks wrong ---------------------------------------------------------------------------


def odd(rig: Rig) -> list[str]:
    return sorted(trouble.what for trouble in rig.store.oddities())


def test_what_looks_wrong(rig: Rig) -> None:
    fleet(rig, "a", 2)
    assert odd(rig) == []
    fleet(rig, "b", 3)
    assert odd(rig) == ["disagreement"]
    fleet(rig, "a", 3)
    rig.submit(1, needs=need("api"))
    rig.submit(1, task="nobody")
    assert odd(rig) == []
    rig.clock.advance(61)
    # Free, with a worker that has room: no claim came (these are hands, and did not ask).
    assert odd(rig) == ["free-with-waiters", "unserved"]
    rig.pause("api")
    assert odd(rig) == ["unserved"]
    rig.pause("api", False)
    hand = rig.hand("c", tasks=["task"])
    (claimed,) = hand.claim()
    rig.store.overdue(claimed.token, "timeout of 5 s")
    assert odd(rig) == ["overdue-attempt", "unserved"]
    assert claimed.job in rig.store.oddities()[0].detail


def test_who_is_gone_disagrees_with_nobody(rig: Rig) -> None:
    old = fleet(rig, "old", 2)
    fleet(rig, "new", 3)
    assert odd(rig) == ["disagreement"]
    old.leave()
    sweep(rig)
    assert odd(rig) == []


def test_a_worker_that_stops_or_stalls_serves_nobody(rig: Rig) -> None:
    rig.submit(1)
    hand = rig.hand()
    rig.clock.advance(61)
    assert odd(rig) == ["free-with-waiters"]
    rig.store.mark(hand.id, "stopping")
    assert odd(rig) == ["unserved"]
    rig.store.mark(hand.id, "stalled")
    assert odd(rig) == ["stalled-worker", "unserved"]
