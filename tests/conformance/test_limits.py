"""I1 exact, I2 whole, I3 derived: what may be held at once."""

from __future__ import annotations

import pytest

from headgate.jobs import Finish, JobFilter, NewJob, Retention
from headgate.limits import Need, Needs
from headgate.stores.protocol import Publication, SlotRequest

from .conftest import Rig, need, one_of


@pytest.mark.parametrize("limit", [1, 4, 51, 101])
def test_a_limit_is_reached_and_never_passed(rig: Rig, limit: int) -> None:
    rig.declare(api=limit)
    rig.submit(limit + 30, needs=need("api"))
    a, b = rig.hand("a"), rig.hand("b")
    first = a.claim(room=limit // 2 + 1)
    second = b.claim(room=200)
    assert len(first) + len(second) == limit == rig.held("api")
    assert a.claim() == []
    a.end(first[0])
    assert len(b.claim()) == 1
    assert rig.held("api") == limit


def test_unlimited_jobs_hold_nothing(rig: Rig) -> None:
    rig.submit(50)
    hand = rig.hand()
    assert len(hand.claim(room=50)) == 50
    assert rig.store.groups() == []


def test_each_key_is_a_group_of_its_own(rig: Rig) -> None:
    rig.declare(tenant=2)
    for key in "abc":
        rig.tenant(key, 5)
    claimed = rig.hand().claim()
    assert sorted(c.turn for c in claimed) == ["a", "a", "b", "b", "c", "c"]
    assert rig.held("tenant/a") == 2


def test_all_of_several_limits_or_none(rig: Rig) -> None:
    rig.declare(api=3, tenant=2)
    for key in "abc":
        rig.tenant(key, 5, Need("api"))
    hand = rig.hand()
    claimed = hand.claim()
    assert len(claimed) == 3
    for attempt in claimed:
        assert [group for group, _ in attempt.groups] == ["api", f"tenant/{attempt.turn}"]
    # The api is full: nothing of a tenant is held by jobs that wait.
    assert sum(rig.held(f"tenant/{key}") for key in "abc") == 3


def test_units_fit_or_wait(rig: Rig) -> None:
    rig.declare(gpu=7)
    rig.submit(5, needs=need("gpu", units=3))
    hand = rig.hand()
    assert len(hand.claim()) == 2
    assert rig.held("gpu") == 6
    rig.submit(1, task="other", needs=need("gpu", units=1))
    assert [c.task for c in hand.claim()] == ["other"]
    assert rig.held("gpu") == 7


def test_one_of_takes_the_member_with_most_free_and_tells_it(rig: Rig) -> None:
    rig.declare(host_a=2, host_b=1)
    rig.submit(5, needs=one_of("host-a", "host-b"))
    hand = rig.hand()
    claimed = hand.claim()
    assert len(claimed) == 3
    assert claimed[0].picked == ("host-a",)
    assert sorted(c.picked[0] for c in claimed) == ["host-a", "host-a", "host-b"]
    for attempt in claimed:
        assert attempt.groups[0][0] == attempt.picked[0]
    freed = next(c for c in claimed if c.picked == ("host-b",))
    hand.end(freed)
    assert [c.picked for c in hand.claim()] == [("host-b",)]


def test_one_of_beside_all_of(rig: Rig) -> None:
    rig.declare(api=2, host_a=2, host_b=1)
    members = (Need("host-a"), Need("host-b"))
    rig.submit(5, needs=Needs((Need("api"),), (members,)))
    claimed = rig.hand().claim()
    assert len(claimed) == 2
    assert rig.held("host-a") + rig.held("host-b") == 2


def test_slots_are_numbered_from_zero_and_reused(rig: Rig) -> None:
    rig.declare(api=3)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    claimed = hand.claim()
    assert [c.groups for c in claimed] == [(("api", 0),), (("api", 1),), (("api", 2),)]
    hand.end(claimed[1])
    assert hand.claim()[0].groups == (("api", 1),)


def test_zero_keeps_the_jobs_and_none_is_unlimited(rig: Rig) -> None:
    rig.declare(api=0)
    (id,) = rig.submit(needs=need("api"))
    hand = rig.hand()
    assert hand.claim() == []
    assert rig.store.why(id).code == "limit-zero"
    rig.set_limit("api", None)
    assert len(hand.claim()) == 1
    assert rig.held("api") == 1, "holders of an unlimited group are recorded too"


def test_lowering_kills_nobody_and_raising_opens(rig: Rig) -> None:
    rig.declare(api=5)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    claimed = hand.claim()
    rig.set_limit("api", 2)
    assert rig.held("api") == 5
    for attempt in claimed[:3]:
        hand.end(attempt)
        assert hand.claim() == [], "no grant until the units held allow it"
    hand.end(claimed[3])
    assert len(hand.claim()) == 1
    assert rig.held("api") == 2
    rig.set_limit("api", 6)
    assert len(hand.claim()) == 4


def test_paused_is_a_flag_of_its_own(rig: Rig) -> None:
    rig.declare(api=2)
    rig.set_limit("api", 3)
    (id, *_) = rig.submit(5, needs=need("api"))
    rig.pause("api")
    hand = rig.hand()
    assert hand.claim() == []
    assert rig.store.why(id).code == "limit-paused"
    rig.pause("api", False)
    assert len(hand.claim()) == 3, "the override is still there after the pause"


def test_one_key_can_be_set_apart(rig: Rig) -> None:
    rig.declare(tenant=1)
    for key in "ab":
        rig.tenant(key, 9)
    rig.set_limit("tenant/a", 5)
    hand = rig.hand()
    assert sorted(c.turn for c in hand.claim()) == ["a"] * 5 + ["b"]
    rig.pause("tenant/b")
    hand.end_all()
    assert sorted(c.turn for c in hand.claim()) == ["a"] * 4


def test_a_keyed_limit_at_zero_with_one_key_open(rig: Rig) -> None:
    rig.declare(tenant=0)
    rig.set_limit("tenant/vip", 2)
    rig.tenant("a", 3)
    rig.tenant("vip", 3)
    assert [c.turn for c in rig.hand().claim()] == ["vip", "vip"]


def test_precedence_override_file_code_carried(rig: Rig) -> None:
    store = rig.store

    def value() -> tuple[int | None, str]:
        record = store.values(["x"])["x"]
        return record.value, record.source

    assert value() == (None, "none")
    rig.submit(needs=need("x"), carried=(("x", 7),))
    assert value() == (7, "carried")
    rig.submit(needs=need("x"), carried=(("x", 9),))
    assert value() == (7, "carried"), "the first carried value wins"
    store.publish(Publication("w1", code={"x": 5}))
    assert value() == (5, "code")
    store.publish(Publication("w2", file={"x": 4}))
    assert value() == (4, "file")
    rig.set_limit("x", 3)
    assert value() == (3, "override")


def test_the_highest_release_wins_and_disagreement_is_shown(rig: Rig) -> None:
    store = rig.store
    store.publish(Publication("new", release="1.10", code={"x": 10}))
    store.publish(Publication("old", release="1.9", code={"x": 5}))
    record = store.values(["x"])["x"]
    assert record.value == 10
    assert record.disagree == (("old", 5),)
    store.publish(Publication("bare", code={"x": 1}))
    assert store.values(["x"])["x"].value == 10, "no release is lower than any"


def test_without_releases_the_last_start_wins(rig: Rig) -> None:
    rig.store.publish(Publication("a", code={"x": 10}))
    rig.clock.advance(1)
    rig.store.publish(Publication("b", code={"x": 5}))
    assert rig.store.values(["x"])["x"].value == 5


def test_a_limit_without_a_value_lets_nothing_start(rig: Rig) -> None:
    (id,) = rig.submit(needs=need("nowhere"))
    assert rig.hand().claim() == []
    assert rig.store.why(id).code == "limit-missing"


def test_every_change_is_recorded(rig: Rig) -> None:
    rig.declare(api=5)
    rig.set_limit("api", 2, reason="the provider asked")
    (event, *_) = rig.store.events("limit_changed")
    assert (event.subject, event.who) == ("api", "operator")
    assert (event.data["old"], event.data["new"]) == (5, 2)
    assert event.data["reason"] == "the provider asked"


def test_jobs_of_different_tasks_share_a_limit(rig: Rig) -> None:
    rig.declare(api=3)
    rig.submit(5, needs=need("api"))
    rig.submit(5, task="other", needs=need("api"))
    assert len(rig.hand().claim()) == 3
    assert rig.held("api") == 3


@pytest.mark.parametrize(
    "key", ["*", "", " ", "ACME", "acme", "a/b", "ünïcode", "日本", "%", "a b", "'; --", '"x"']
)
def test_weird_keys_are_counted_apart(rig: Rig, key: str) -> None:
    from headgate.limits import stored_key

    rig.declare(tenant=1)
    rig.tenant(stored_key(key), 2)
    rig.tenant(stored_key(key + "~"), 2)
    claimed = rig.hand().claim()
    assert len(claimed) == 2
    assert rig.held(f"tenant/{stored_key(key)}") == 1


def test_tasks_that_need_a_processor_are_spread_over_workers(rig: Rig) -> None:
    rig.declare(api=8)
    rig.submit(20, needs=need("api"))
    a, b, c, d = (rig.hand(name) for name in "abcd")
    spread = frozenset(["task"])
    first = a.exchange(spread=spread)
    assert (len(first.claimed), first.more) == (2, True), "a quarter, and leave to ask again"
    assert len(b.exchange(spread=spread).claimed) == 2
    assert len(a.claim(spread=spread)) == 4, "nobody else asked: all of it is used"
    assert [len(x.exchange(spread=spread).claimed) for x in (c, d)] == [0, 0]
    # What a worker has just freed it may take again, all of it at once.
    finishes = [Finish(token, "succeeded") for token in a.running]
    assert len(a.exchange(finishes, spread=spread).claimed) == len(finishes) == 6


def test_what_a_worker_leaves_is_there_for_others(rig: Rig) -> None:
    rig.declare(api=8)
    rig.submit(30, needs=need("api"))
    a, b = rig.hand("a"), rig.hand("b")
    assert len(a.claim()) == 8
    finishes = [Finish(token, "succeeded") for token in a.running]
    assert len(a.exchange(finishes, left={"api": 3}).claimed) == 5
    assert a.exchange(left={"api": 3}).claimed == ()
    assert len(b.claim()) == 3
    assert rig.held("api") == 8


def test_a_plain_group_at_zero_stays_shut_though_a_key_of_it_is_open(rig: Rig) -> None:
    rig.declare(tenant=0)
    rig.set_limit("tenant/vip", 2)
    rig.submit(3, needs=need("tenant"))
    rig.submit(3, task="other", needs=one_of("tenant"))
    assert rig.hand().claim() == []
    assert rig.store.take_slot(SlotRequest("tenant", "me", "here", lease=10)) is None


def named(group: str) -> Needs:
    return Needs((Need.named(group),))


def test_thousands_of_groups_named_by_their_jobs_hide_nobody(rig: Rig) -> None:
    """Each submission may name a group of its own: that makes lanes, never bands."""
    groups = [f"g{i}" for i in range(1500)]
    for part in (groups[:750], groups[750:]):
        rig.store.submit([NewJob("task", needs=named(g), carried=((g, 1),)) for g in part])
    hand = rig.hand()
    assert len(hand.exchange(room=50).claimed) == 50
    # The same when nearly all of them are full: the free one is found in bounded steps.
    everything = hand.claim(room=1500)
    assert len(everything) == 1450
    for part in (groups[:750], groups[750:]):
        rig.store.submit([NewJob("task", needs=named(g)) for g in part])
    (free,) = rig.submit(needs=named("free"), carried=(("free", 1),))
    assert [c.job for c in hand.claim()] == [free]
    for start in range(0, len(everything), 500):
        ends = [Finish(attempt.token, "succeeded") for attempt in everything[start : start + 500]]
        hand.exchange(ends, room=0)


def test_a_group_named_by_its_job_is_the_same_group(rig: Rig) -> None:
    rig.declare(api=2, tenant=1)
    rig.submit(3, needs=need("api"))
    rig.submit(3, task="other", needs=named("api"))
    rig.tenant("acme", 2)
    (id, _) = rig.submit(2, task="other", needs=named("tenant/acme"))
    hand = rig.hand()
    assert sorted(c.groups[0][0] for c in hand.claim()) == ["api", "api", "tenant/acme"]
    assert (rig.held("api"), rig.held("tenant/acme")) == (2, 1)
    assert id in {job.id for job in rig.store.find(JobFilter(group="tenant/acme"))}
    rig.pause("tenant")
    hand.end_all()
    assert {c.groups[0][0] for c in hand.claim()} == {"api"}


def test_what_jobs_carried_is_forgotten_when_nobody_holds_it(rig: Rig) -> None:
    def value(group: str) -> tuple[int | None, str]:
        record = rig.store.values([group])[group]
        return record.value, record.source

    hand = rig.hand()
    for group in ("held", "idle"):
        rig.submit(needs=named(group), carried=((group, 1),))
    held, idle = sorted(hand.claim(), key=lambda one: one.groups)
    hand.end(idle)
    rig.store.prune(Retention())
    assert value("idle") == (1, "carried"), "not yet"
    rig.clock.advance(4000)
    rig.store.prune(Retention())
    assert value("held") == (1, "carried")
    assert value("idle") == (None, "none")
    # The next job brings its own.
    rig.submit(needs=named("idle"), carried=(("idle", 2),))
    (again,) = hand.claim()
    assert value("idle") == (2, "carried")
    hand.end(held)
    hand.end(again)
