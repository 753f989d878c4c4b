"""Order: queues by weight, strict priority, turn by turn, round the lanes, by sequence."""

from __future__ import annotations

import random
from collections import Counter

from headgate.limits import Need, Needs

from .conftest import Rig, need, one_of, share


def turns(claimed: list) -> list[str]:
    return [c.turn for c in claimed]


def test_keys_take_turns_whatever_their_backlog(rig: Rig) -> None:
    rig.submit(500, turn="hot")
    for key in "abc":
        rig.submit(2, turn=key)
    claimed = rig.hand().claim(room=8)
    assert Counter(turns(claimed)) == {"hot": 2, "a": 2, "b": 2, "c": 2}


def test_a_turn_goes_on_where_the_last_claim_stopped(rig: Rig) -> None:
    for key in "abcde":
        rig.submit(20, turn=key)
    hand = rig.hand()
    started: list[str] = []
    for _ in range(25):
        (claimed,) = hand.claim(room=1)
        started.append(claimed.turn)
        hand.end(claimed)
    assert set(Counter(started).values()) == {5}
    assert all(len(set(started[i : i + 5])) == 5 for i in range(0, 25, 5))


def test_more_starts_than_keys_stay_even(rig: Rig) -> None:
    for key in "abc":
        rig.submit(60, turn=key)
    hand = rig.hand()
    counts: Counter[str] = Counter()
    for _ in range(15):
        claimed = hand.claim(room=4)
        counts.update(turns(claimed))
        for attempt in claimed:
            hand.end(attempt)
    assert set(counts.values()) == {20}


def test_a_key_has_one_turn_however_many_tasks_it_uses(rig: Rig) -> None:
    rig.submit(20, turn="many")
    rig.submit(20, turn="many", task="other")
    rig.submit(20, turn="many", task="wide")
    rig.submit(20, turn="one")
    assert Counter(turns(rig.hand().claim(room=12))) == {"many": 6, "one": 6}


def test_lanes_of_a_key_go_round(rig: Rig) -> None:
    rig.submit(10, turn="t")
    rig.submit(10, turn="t", task="other")
    claimed = rig.hand().claim(room=6)
    assert Counter(c.task for c in claimed) == {"task": 3, "other": 3}


def test_weights_are_jobs_per_turn(rig: Rig) -> None:
    for key in ("big", "small"):
        rig.submit(50, turn=key)
    claimed = rig.hand().claim(room=16, weights={"big": 3})
    assert Counter(turns(claimed)) == {"big": 12, "small": 4}


def test_keys_with_fewer_running_go_first(rig: Rig) -> None:
    for key in "abcd":
        rig.submit(10, turn=key)
    hand = rig.hand()
    first = hand.claim(room=2)
    second = hand.claim(room=2)
    assert len(set(turns(first + second))) == 4
    # Two of them end; the keys that have none running are next, not the next in the circle.
    ended = {first[0].turn, second[1].turn}
    hand.end(first[0])
    hand.end(second[1])
    assert set(turns(hand.claim(room=2))) == ended


def test_within_a_lane_by_sequence(rig: Rig) -> None:
    ids = rig.submit(10)
    assert [c.job for c in rig.hand().claim(room=10)] == ids


def test_strict_priority_lower_first(rig: Rig) -> None:
    rig.submit(3, priority=5)
    rig.submit(3, priority=-5)
    rig.submit(3)
    claimed = rig.hand().claim(room=9)
    assert [c.priority for c in claimed] == [-5] * 3 + [0] * 3 + [5] * 3


def test_a_blocked_priority_lets_the_next_go(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(5, priority=-5, needs=need("api"))
    rig.submit(2)
    assert [c.priority for c in rig.hand().claim()] == [-5, 0, 0]


def test_ageing_looks_at_the_old_first_now_and_then(rig: Rig) -> None:
    rig.submit(1, priority=50)
    rig.clock.advance(100)
    rig.submit(50, priority=-1)
    hand = rig.hand()
    started = []
    for _ in range(8):
        (claimed,) = hand.claim(room=1, ageing=60.0)
        started.append(claimed.priority)
        hand.end(claimed)
    assert started.count(50) == 1


def test_queues_by_weight_and_room(rig: Rig) -> None:
    rig.submit(50, queue="a")
    rig.submit(50, queue="b")
    rig.submit(50, queue="c")
    hand = rig.hand()
    claimed = hand.claim(room=12, queues=(share("a", weight=3), share("b")))
    assert Counter(c.queue for c in claimed) == {"a": 9, "b": 3}
    claimed = hand.claim(room=12, queues=(share("a", room=2), share("c")))
    assert Counter(c.queue for c in claimed) == {"a": 2, "c": 10}


def test_what_one_queue_leaves_another_takes(rig: Rig) -> None:
    rig.submit(2, queue="a")
    rig.submit(50, queue="b")
    claimed = rig.hand().claim(room=20)
    assert Counter(c.queue for c in claimed) == {"a": 2, "b": 18}


def test_a_paused_queue_waits(rig: Rig) -> None:
    (id,) = rig.submit(queue="a")
    rig.store.pause_queue("a", True, "operator", "maintenance")
    hand = rig.hand()
    assert hand.claim() == []
    assert rig.store.why(id).code == "queue-paused"
    rig.store.pause_queue("a", False, "operator")
    assert len(hand.claim()) == 1


def test_only_known_tasks_are_claimed(rig: Rig) -> None:
    (unknown,) = rig.submit(task="nobody's")
    rig.submit()
    hand = rig.hand()
    assert [c.task for c in hand.claim()] == ["task"]
    assert rig.store.why(unknown).code == "unknown-task"


def test_a_blocked_hot_key_hides_nobody(rig: Rig) -> None:
    rig.declare(tenant=1)
    rig.tenant("hot", 300)
    for i in range(20):
        rig.tenant(f"t{i}")
    claimed = rig.hand().claim()
    assert len(claimed) == 21


def test_many_blocked_keys_hide_nobody(rig: Rig) -> None:
    """More full keys than a claim looks at: the free one is found by the next claims."""
    rig.declare(tenant=1, region=1)
    blocked = Need("region", "eu")
    for i in range(300):
        rig.tenant(f"a{i:03d}", 1, blocked)
    rig.tenant("free", 1, Need("region", "us"))
    hand = rig.hand()
    (first,) = rig.hand("holder").claim(room=1, hops=10_000)
    got = []
    for _ in range(60):
        answer = hand.exchange(room=5, hops=40)
        got += answer.claimed
        if not answer.more:
            break
    groups = {group for c in [first, *got] for group, _ in c.groups}
    assert {"region/eu", "region/us"} <= groups


def test_many_blocked_lanes_of_one_key_hide_nobody(rig: Rig) -> None:
    rig.declare(user=1, region=1)
    for i in range(300):
        rig.submit(1, needs=Needs((Need("region", "eu"), Need("user", f"u{i:03d}"))), turn="acme")
    rig.submit(1, needs=Needs((Need("region", "us"), Need("user", "z"))), turn="acme")
    rig.hand("holder").claim(room=1, hops=10_000)
    hand = rig.hand()
    rig.set_limit("region/eu", 0)
    asked = 0
    while not hand.exchange(room=1, hops=40).claimed:
        asked += 1
        assert asked < 30, "the free lane is hidden"


def test_asking_ends_when_all_lanes_of_a_key_are_blocked(rig: Rig) -> None:
    rig.declare(region=0, user=1)
    rig.set_limit("region/us", 1)
    for i in range(200):
        rig.submit(1, needs=Needs((Need("region", "eu"), Need("user", f"u{i:03d}"))), turn="acme")
    hand = rig.hand()
    asked = 0
    while hand.exchange(room=5, hops=40).more:
        asked += 1
        assert asked < 100, "a worker would spin"


def test_asking_ends_when_nothing_can_start(rig: Rig) -> None:
    rig.declare(region=1)
    for i in range(200):
        rig.submit(1, needs=Needs((Need("region", "eu"),)), turn=f"t{i:03d}")
    hand = rig.hand()
    hand.claim(room=1)
    asked = 0
    while hand.exchange(room=5, hops=40).more:
        asked += 1
        assert asked < 50, "a worker would spin"


def test_a_retry_keeps_its_place_and_a_snooze_takes_a_new_one(rig: Rig) -> None:
    first, second, third = rig.submit(3)
    hand = rig.hand()
    a = hand.claim(room=1)[0]
    assert a.job == first
    hand.end(a, "retry", delay=5.0)
    b = hand.claim(room=1)[0]
    assert b.job == second
    hand.end(b, "snoozed", delay=5.0)
    rig.clock.advance(6)
    (fourth,) = rig.submit()
    assert [c.job for c in hand.claim()] == [first, third, second, fourth]


def test_delayed_jobs_take_their_place_when_due(rig: Rig) -> None:
    (late,) = rig.submit(delay=60)
    (early,) = rig.submit(delay=30)
    (now,) = rig.submit()
    hand = rig.hand()
    answer = hand.exchange()
    assert [c.job for c in answer.claimed] == [now]
    assert answer.wake_in == 30
    rig.clock.advance(45)
    (after,) = rig.submit()
    assert [c.job for c in hand.claim(room=1)] == [early]
    assert [c.job for c in hand.claim(room=1)] == [after]
    rig.clock.advance(45)
    assert [c.job for c in hand.claim()] == [late]


def test_two_workers_share_a_hot_group_evenly_over_keys(rig: Rig) -> None:
    rig.declare(api=4)
    for i in range(10):
        rig.submit(60, needs=need("api"), turn=f"t{i}")
    hands = [rig.hand("a"), rig.hand("b")]
    counts: Counter[str] = Counter()
    for step in range(200):
        hand = hands[step % 2]
        claimed = hand.claim(room=2)
        counts.update(turns(claimed))
        for attempt in claimed:
            hand.end(attempt)
    total = sum(counts.values())
    assert total >= 200
    for key in counts:
        assert abs(counts[key] / total - 0.1) <= 0.03, counts


def test_every_job_is_taken_once_whatever_the_windows(rig: Rig) -> None:
    """Large circles, owed turns, claims that go round more than once."""
    dice = random.Random(3)
    for _ in range(12):
        ids = [
            id
            for i in range(60)
            for id in rig.submit(dice.choice([0, 1, 1, 2, 5]), turn=f"t{i:02d}")
        ]
        hand = rig.hand()
        taken: list[str] = []
        while len(taken) < len(ids):
            claimed = hand.claim(room=dice.randint(1, 40))
            assert claimed
            taken += [c.job for c in claimed]
            for attempt in dice.sample(list(hand.running.values()), len(hand.running) // 2):
                hand.end(attempt)
        assert sorted(taken) == sorted(ids)
        hand.end_all()


def test_ageing_takes_no_job_twice(rig: Rig) -> None:
    ids = rig.submit(30, priority=1) + rig.submit(30, priority=2)
    rig.clock.advance(100)
    hand = rig.hand()
    claimed = [c for _ in range(10) for c in hand.claim(room=10, ageing=60.0)]
    assert sorted(c.job for c in claimed) == sorted(ids)


def test_weights_hold_when_one_place_becomes_free_at_a_time(rig: Rig) -> None:
    for key in "ab":
        rig.submit(60, turn=key)
    hand = rig.hand()
    turns: list[str] = []
    for _ in range(40):
        (claimed,) = hand.claim(room=1, weights={"a": 3})
        turns.append(claimed.turn)
        hand.end(claimed)
    assert (turns.count("a"), turns.count("b")) == (30, 10)


def test_a_turn_under_way_ends_with_its_jobs(rig: Rig) -> None:
    """What is left of a weight is not kept for a key that has nothing more to run."""
    rig.submit(1, turn="a")
    rig.submit(10, turn="b")
    hand = rig.hand()
    started: list[str] = []
    for _ in range(11):
        (claimed,) = hand.claim(room=1, weights={"a": 5})
        started.append(claimed.turn)
        hand.end(claimed)
    assert started.count("b") == 10


def test_queue_weights_hold_when_one_place_becomes_free_at_a_time(rig: Rig) -> None:
    for queue in "abc":
        rig.submit(60, queue=queue)
    hand = rig.hand()
    queues: list[str] = []
    for _ in range(60):
        shares = (share("a", weight=3), share("b"), share("c", weight=2))
        (claimed,) = hand.claim(room=1, queues=shares)
        queues.append(claimed.queue)
        hand.end(claimed)
    assert [queues.count(q) for q in "abc"] == [30, 10, 20]


def test_tasks_that_share_a_full_group_take_turns(rig: Rig) -> None:
    """Each has a limit of its own beside the group: one that runs is passed over, and all are
    when the group is full; neither may begin the circle anew."""
    names = ["t1", "t2", "t3", "t4", "t5"]
    rig.declare(shared=2, **dict.fromkeys(names, 1))
    for name in names:
        rig.submit(10, task=name, needs=Needs((Need(name), Need("shared"))))
    hand = rig.hand(tasks=names)
    running = hand.claim()
    started = [claimed.task for claimed in running]
    while len(started) < 20:
        hand.end(running.pop(0))
        new = hand.claim()
        running += new
        started += [claimed.task for claimed in new]
        assert len(running) == 2
    assert set(Counter(started).values()) == {4}


def test_a_worker_that_serves_some_groups_picks_only_those(rig: Rig) -> None:
    rig.declare(host_a=2, host_b=1, host_c=1)
    rig.submit(6, needs=one_of("host-a", "host-b"))
    rig.submit(2, needs=one_of("host-c"), task="other")
    rig.submit(1, task="wide")
    here = rig.hand().claim(served=frozenset(("host-b",)))
    assert sorted((c.task, c.picked) for c in here) == [("task", ("host-b",)), ("wide", ())]
    elsewhere = rig.hand().claim(served=frozenset(("host-a", "host-c")))
    assert Counter(c.picked for c in elsewhere) == {("host-a",): 2, ("host-c",): 1}
    assert rig.hand().claim() == []
