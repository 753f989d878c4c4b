"""What those who watch are shown is true, and bounded however much there is."""

from __future__ import annotations

import pytest

from headgate.errors import HeadgateError, StoreError
from headgate.jobs import JobFilter
from headgate.limits import Need, Needs
from headgate.stores.protocol import (
    LanePlace,
    LaneRecord,
    LaneWalk,
    LimitUse,
    Publication,
    SlotRequest,
    TaskSpec,
)
from headgate.stores.relational import searching, watching
from tests.conformance.conftest import Rig, need, share


def publish(rig: Rig, **limits: int | None) -> None:
    uses = (LimitUse("tenant", key="tenant_id"),)
    rig.store.publish(Publication("test", tasks=(TaskSpec("task", limits=uses),), code=limits))


def walk(rig: Rig, page: int = 100, **wanted: str) -> list[LaneRecord]:
    found: list[LaneRecord] = []
    after: LanePlace | None = None
    while True:
        got = rig.store.lanes(LaneWalk(**wanted, after=after, lanes=page))
        found += got.lanes
        after = got.after
        if after is None:
            return found


def test_a_limit_tells_what_is_held_and_waits_over_all_its_keys(rig: Rig) -> None:
    publish(rig, tenant=2, gpu=1)
    hand = rig.hand()
    for key in ("a", "b", "c"):
        rig.tenant(key, 5)
    rig.submit(2, needs=need("gpu"))
    rig.clock.advance(7)
    assert len(hand.claim()) == 7
    loads = {load.limit.group: load for load in rig.store.loads()}
    tenant, gpu = loads["tenant"], loads["gpu"]
    assert (tenant.held, tenant.holders, tenant.keys, tenant.waiting) == (6, 6, 3, 9)
    assert tenant.limit.keyed
    assert (gpu.held, gpu.keys, gpu.waiting, gpu.limit.keyed) == (1, 0, 1, False)
    assert gpu.oldest == pytest.approx(rig.clock.now() - 7)


def test_a_group_that_an_operator_spoke_of_is_among_them(rig: Rig) -> None:
    publish(rig, tenant=2)
    rig.set_limit("tenant/a", 9)
    rig.pause("other")
    groups = {load.limit.group: load.limit for load in rig.store.loads()}
    assert groups["tenant/a"].value == 9
    assert groups["other"].paused


def test_counts_stop_at_their_bound_and_say_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BOUND", 4)
    publish(rig, tenant=2, gpu=1)
    rig.submit(9, needs=need("gpu"))
    (gpu,) = [load for load in rig.store.loads() if load.limit.group == "gpu"]
    assert (gpu.waiting, gpu.waiting_bounded) == (4, True)
    (lane,) = rig.store.lanes(LaneWalk("gpu", counted=3)).lanes
    assert (lane.waiting, lane.bounded) == (3, True)


@pytest.mark.parametrize("page", [1, 2, 100])
def test_a_walk_along_the_lanes_meets_each_once(rig: Rig, page: int) -> None:
    publish(rig, tenant=2)
    first = {key: rig.tenant(key, 2 + n)[0] for n, key in enumerate(("", "a", "b", "z'\"", "é"))}
    rig.tenant("a", 1, priority=3)
    rig.tenant("a", 1, queue="other")
    rig.submit(2)
    found = walk(rig, page, limit="tenant")
    assert [(lane.place.priority, lane.place.turn, lane.waiting) for lane in found] == [
        (0, "", 2), (0, "a", 3), (0, "b", 4), (0, "z'\"", 5), (0, "é", 6), (3, "a", 1), (0, "a", 1),
    ]  # fmt: skip
    assert {lane.place.turn: lane.job for lane in found[:5]} == first
    assert found[1].needs == Needs((Need("tenant", "a"),))
    assert len(walk(rig, page)) == 8, "and without a limit, all lanes there are"


def test_the_lanes_of_one_key_are_found_directly(rig: Rig) -> None:
    publish(rig, tenant=2)
    for key in ("a", "b", "c"):
        rig.tenant(key, 2)
        rig.tenant(key, 1, Need("gpu"))
    found = rig.store.lanes(LaneWalk("tenant", "b"))
    assert [lane.place.turn for lane in found.lanes] == ["b", "b"]
    assert found.after is None


@pytest.mark.parametrize("page", [1, 2, 100])
def test_held_groups_are_paged_by_name(rig: Rig, page: int) -> None:
    publish(rig, tenant=2)
    hand = rig.hand()
    for key in ("a", "b%", "c"):
        rig.tenant(key, 2)
    hand.claim()
    assert rig.store.take_slot(SlotRequest("tenant-like", "me", "test", 60.0, 5, True, units=3))
    found, after = {}, None
    while True:
        got = rig.store.held_groups("tenant/", after, page)
        found |= {load.group: (load.held, load.holders) for load in got.groups}
        after = got.after
        if after is None:
            break
    assert found == {"tenant/a": (2, 2), "tenant/b%": (2, 2), "tenant/c": (2, 2)}
    (by_hand,) = rig.store.held_groups("tenant-").groups
    assert (by_hand.group, by_hand.held, by_hand.holders) == ("tenant-like", 3, 1)
    rig.clock.advance(61)
    if rig.store.capabilities.leases:
        rig.store.expire_slots("tenant-like")
    assert rig.store.held_groups("tenant-").groups == ()


def test_ends_are_counted_by_span_and_listed(rig: Rig) -> None:
    publish(rig, tenant=2)
    hand = rig.hand()
    rig.tenant("a", 2)
    rig.submit(1)
    start = rig.store.now()
    rig.clock.advance(10)
    one, two, three = sorted(hand.claim(), key=lambda claimed: claimed.turn, reverse=True)
    hand.end(one)
    rig.clock.advance(60)
    hand.end(two, "failed")
    hand.end(three)
    now = rig.store.now()
    spans = rig.store.ended([start, start + 30, now + 1])
    assert [(s.succeeded, s.failed, s.bounded) for s in spans] == [(1, 0, False), (1, 1, False)]
    assert rig.store.ended([start, now + 1], bound=1)[0].bounded
    ends = {end.job: end for end in rig.store.ends()}
    assert ends[one.job].groups == (("tenant/a", 1),)
    assert ends[one.job].turn == "a"
    assert ends[one.job].started_at == pytest.approx(ends[one.job].due_at + 10, abs=1)
    assert ends[two.job].state == "failed"
    assert ends[three.job].groups == ()


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "succeeded", "failed", None])
def test_a_search_goes_through_all_there_is_in_bounded_pages(
    rig: Rig, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "LOOK", 3)
    hand = rig.hand()
    done = rig.submit(8, args='{"a": "this one"}')
    for n, claimed in enumerate(hand.claim(4)):
        rig.clock.advance(1)
        hand.end(claimed, "failed" if n % 2 else "succeeded")
    running = {claimed.job for claimed in hand.claim(2)}
    later = rig.submit(4, delay=500.0)
    expected = {
        "scheduled": set(later), "running": running, None: {*done, *later},
        "ready": {id for id in done if rig.state(id) == "ready"},
        "succeeded": {id for id in done if rig.state(id) == "succeeded"},
        "failed": {id for id in done if rig.state(id) == "failed"},
    }[state]  # fmt: skip
    states = frozenset() if state is None else frozenset((state,))
    found: list[str] = []
    after, pages = None, 0
    while True:
        page = rig.store.browse(JobFilter(states=states), 2, after)  # type: ignore[arg-type]
        found += [job.id for job in page.jobs]
        assert all(state in (None, job.state) for job in page.jobs)
        after, pages = page.after, pages + 1
        if after is None:
            break
        assert pages < 20
    assert len(found) == len(expected)
    assert set(found) == expected


def test_a_search_finds_words_in_arguments_and_errors(rig: Rig) -> None:
    hand = rig.hand()
    first, second = rig.submit(1, args='{"to": "o\'neil%"}'), rig.submit(1, args="{}")
    for claimed in hand.claim():
        hand.end(claimed, "failed")

    def said(text: str) -> set[str]:
        return {job.id for job in rig.store.browse(JobFilter(text=text)).jobs}

    assert said("o'neil%") == set(first)
    assert said("ValueError") == {*first, *second}
    assert said(second[0]) == set(second)
    assert said("%") == set(first)
    assert said("nobody said this") == set()
    assert rig.store.count(JobFilter(text="o'neil%")) == 1


@pytest.mark.parametrize("place", ["", "x", "1", "1_", "nan_1", "1e400_1", "1_9999999999999999999"])
def test_a_place_that_is_none_is_refused(rig: Rig, place: str) -> None:
    with pytest.raises(StoreError, match="place"):
        rig.store.browse(JobFilter(states=frozenset(("failed",))), after=place)


def test_events_are_paged_backwards(rig: Rig) -> None:
    for n in range(5):
        rig.store.pause_queue(f"q{n % 2}", True, by="me", reason=str(n))
    first = rig.store.past_events(limit=2)
    assert [event.data["reason"] for event in first] == ["4", "3"]
    rest = rig.store.past_events(before=first[-1].seq)
    assert [event.data["reason"] for event in rest] == ["2", "1", "0"]
    assert len(rig.store.past_events("queue_paused", "q1")) == 2
    assert rig.store.past_events("no_such_kind") == []


def test_a_waiting_job_can_be_moved(rig: Rig) -> None:
    hand = rig.hand()
    first, second, third = rig.submit(3)
    rig.clock.advance(5)
    assert rig.store.relocate(third, priority=-5, by="me").priority == -5
    moved = rig.store.relocate(second, queue="other", by="me")
    assert (moved.queue, moved.state) == ("other", "ready")
    assert [c.job for c in hand.claim(1, queues=(share("default"),))] == [third]
    assert {claimed.job for claimed in hand.claim()} == {first, second}
    (event, _) = rig.store.past_events("job_moved")
    assert (event.subject, event.who, event.data["new"]["queue"]) == (second, "me", "other")
    assert rig.store.doctor() == []


def test_a_scheduled_job_is_moved_before_it_is_due(rig: Rig) -> None:
    hand = rig.hand()
    (job,) = rig.submit(1, delay=50.0)
    assert rig.store.relocate(job, queue="other", priority=2).state == "scheduled"
    rig.clock.advance(51)
    (claimed,) = hand.claim()
    assert (claimed.job, claimed.queue, claimed.priority) == (job, "other", 2)


def test_what_does_not_wait_is_not_moved(rig: Rig) -> None:
    hand = rig.hand()
    (job,) = rig.submit(1)
    (by_name,) = rig.submit(1, routed=False)
    (claimed,) = hand.claim()
    for id in (job, by_name):
        with pytest.raises(StoreError, match="cannot be moved"):
            rig.store.relocate(id, queue="other")
    hand.end(claimed)
    with pytest.raises(StoreError, match="cannot be moved"):
        rig.store.relocate(job, queue="other")
    with pytest.raises(HeadgateError, match="priority"):
        rig.store.relocate(by_name, priority=10**9)
    with pytest.raises(HeadgateError, match="queue"):
        rig.store.relocate(by_name, queue="\n")
    with pytest.raises(HeadgateError, match="no job"):
        rig.store.relocate("x", queue="other")
