"""Short jobs reserved ahead: they follow through slots that are held, and never beside them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.jobs import Claimed, Finish
from headgate.limits import Need, Needs
from headgate.stores.protocol import Chain, Claim, Exchange, Exchanged, Passed

from .conftest import Hand, Rig, need, one_of

SHORT = {"task": 0.01, "other": 0.01}


def ask(hand: Hand, room: int, ahead_room: int, **options: Any) -> Exchanged:
    """A claim of a worker that runs what the hand runs, and reserved what it reserved."""
    passed: Sequence[Passed] = options.pop("passed", ())
    finishes: Sequence[Finish] = options.pop("finishes", ())
    ahead = options.pop("ahead", SHORT)
    ended = {finish.token for finish in finishes}
    running = [c for c in hand.running.values() if not c.reserved and c.token not in ended]
    waiting = [c for c in hand.running.values() if c.reserved and c.token not in ended]
    places = Counter(c.chain for c in running)
    behind = Counter(c.chain for c in waiting)
    chains = {chain: Chain(places[chain], behind[chain] * 0.01) for chain in {*places, *behind}}
    claim = Claim(
        room, hand.tasks, hand.state, ahead=ahead, ahead_room=ahead_room, chains=chains, **options
    )
    got = hand.rig.store.exchange(Exchange(hand.id, finishes, passed=passed, claim=claim))
    for finish in finishes:
        hand.running.pop(finish.token, None)
    hand.running.update({claimed.token: claimed for claimed in got.claimed})
    return got


def parts(claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
    return [c for c in claimed if not c.reserved], [c for c in claimed if c.reserved]


def done(*claimed: Claimed) -> list[Finish]:
    return [Finish(c.token, "succeeded", result="null") for c in claimed]


def test_they_wait_behind_what_holds_the_same(rig: Rig) -> None:
    rig.declare(api=2)
    ids = rig.submit(10, needs=need("api"))
    hand = rig.hand()
    first, behind = parts(ask(hand, room=50, ahead_room=5).claimed)
    assert [c.job for c in first] == ids[:2]
    assert [c.job for c in behind] == ids[2:7]
    assert {c.chain for c in first} == {c.chain for c in behind}
    assert len({c.token for c in (*first, *behind)}) == 7
    assert rig.held("api") == 2
    assert [rig.state(id) for id in ids] == ["running"] * 2 + ["ready"] * 8
    assert [c.job for c in rig.hand("second").claim()] == []


def test_the_slots_are_handed_on(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    (a,), (b, c, d) = parts(ask(hand, room=10, ahead_room=3).claimed)
    # a ended, b ran and ended in its slot, c runs in it now.
    told = [Passed(b.token, None, 0.01), Passed(c.token, a.token, 0.0)]
    got = ask(hand, room=0, ahead_room=0, passed=told, finishes=done(a, b))
    assert not got.stale
    assert rig.held("api") == 1
    (slot,) = rig.store.group("api")[1]
    assert (slot.token, slot.holder) == (c.token, c.job)
    assert [rig.state(x.job) for x in (a, b, c, d)] == [
        "succeeded",
        "succeeded",
        "running",
        "ready",
    ]
    # c gives it back to everybody; d goes back unstarted.
    hand.running.pop(c.token)
    hand.running.pop(d.token)
    hand.rig.store.exchange(Exchange(hand.id, [*done(c), Finish(d.token, "returned")]))
    assert rig.held("api") == 0
    (again,) = rig.hand("second").claim(room=1)
    assert (again.job, again.attempt) == (d.job, 1)


def test_the_slots_are_handed_on_twice_in_one_message(rig: Rig) -> None:
    """As an attempt says it that asks for something before a round trip has told of those before
    it. The end of the one in the middle frees nothing."""
    rig.declare(api=1)
    rig.submit(4, needs=need("api"))
    hand = rig.hand()
    (a,), (b, c) = parts(ask(hand, room=5, ahead_room=2).claimed)
    links = [Passed(b.token, a.token, 0.01), Passed(c.token, b.token, 0.0)]
    assert not rig.store.exchange(Exchange(hand.id, passed=links)).stale
    (slot,) = rig.store.group("api")[1]
    assert (slot.token, slot.holder) == (c.token, c.job)
    ends = [Finish(one.token, "succeeded") for one in (a, b)]
    assert not rig.store.exchange(Exchange(hand.id, ends)).stale
    assert rig.held("api") == 1
    assert rig.hand("second").claim(room=1) == []
    assert not rig.store.exchange(Exchange(hand.id, [Finish(c.token, "succeeded")])).stale
    assert rig.held("api") == 0


@pytest.mark.parametrize("again", ["a", "b", "both"])
def test_the_slots_are_handed_on_whatever_became_of_who_had_them(rig: Rig, again: str) -> None:
    """Ends that are told in another way than the plain ones, in the middle of a chain."""
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    (a,), (b, c, d) = parts(ask(hand, room=10, ahead_room=3).claimed)
    outcome = {x.token: "succeeded" for x in (a, b)}
    for x in {"a": [a], "b": [b], "both": [a, b]}[again]:
        outcome[x.token] = "retry"
    told = [Passed(b.token, None, 0.01), Passed(c.token, a.token, 0.0)]
    ends = [Finish(x.token, outcome[x.token], delay=60.0) for x in (a, b)]  # type: ignore[arg-type]
    got = ask(
        hand, room=5, ahead_room=0, passed=told, finishes=[*ends, Finish(d.token, "returned")]
    )
    assert not got.stale
    assert [one.job for one in got.claimed] == [], "c has the only slot"
    (slot,) = rig.store.group("api")[1]
    assert (slot.token, slot.holder) == (c.token, c.job)
    states = {"succeeded": "succeeded", "retry": "scheduled"}
    assert [rig.state(x.job) for x in (a, b, c, d)] == [
        *(states[outcome[x.token]] for x in (a, b)),
        "running",
        "ready",
    ]
    records = [rig.store.job(x.job) for x in (a, b, d)]
    assert [r and r.attempt for r in records] == [1, 1, 0], "d never started"


def test_a_start_told_twice_is_no_harm(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (a,), (b,) = parts(ask(hand, room=10, ahead_room=3).claimed)
    told = [Passed(b.token, a.token, 0.0)]
    assert not ask(hand, 0, 0, passed=told, finishes=done(a)).stale
    assert not hand.rig.store.exchange(Exchange(hand.id, passed=told)).stale
    assert rig.held("api") == 1


def test_only_tasks_known_to_be_short(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    got = ask(rig.hand(), room=10, ahead_room=5, ahead={"other": 0.01})
    assert [c.reserved for c in got.claimed] == [False]


def test_no_more_work_than_a_tenth_of_a_second_behind_each_slot(rig: Rig) -> None:
    rig.declare(api=2)
    rig.submit(50, needs=need("api"))
    got = ask(rig.hand(), room=10, ahead_room=100, ahead={"task": 0.04})
    assert Counter(c.reserved for c in got.claimed) == {False: 2, True: 5}


def test_in_turn_order(rig: Rig) -> None:
    rig.declare(api=1)
    for tenant in "abcd":
        rig.submit(5, needs=need("api"), turn=tenant)
    first, behind = parts(ask(rig.hand(), room=10, ahead_room=7).claimed)
    order = [c.turn for c in (*first, *behind)]
    assert sorted(order[:4]) == sorted(order[4:]) == list("abcd")


def test_not_while_a_lane_that_needs_something_else_waits_for_the_group(rig: Rig) -> None:
    rig.declare(api=1, tenant=5)
    rig.tenant("acme", 5, Need("api"))
    hand = rig.hand()
    (a,), behind = parts(ask(hand, room=10, ahead_room=1).claimed)
    assert len(behind) == 1, "nobody else waits"
    rig.tenant("globex", 1, Need("api"))
    # acme's chain ends with what it has: the slot of `api` is globex's next.
    got = ask(hand, 10, 5, passed=[Passed(behind[0].token, a.token, 0.0)], finishes=done(a))
    hand.running[behind[0].token] = behind[0]
    assert got.claimed == ()
    got = ask(hand, 10, 5, finishes=done(behind[0]))
    assert parts(got.claimed)[0][0].turn == "globex"


def test_not_past_somebody_who_waits_for_a_place(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(3, needs=need("api"))
    rig.submit(3, task="other")
    hand = rig.hand()
    (first,) = ask(hand, room=1, ahead_room=5).claimed
    (second,) = ask(hand, room=1, ahead_room=5, finishes=done(first)).claimed
    (third,) = ask(hand, room=1, ahead_room=5, finishes=done(second)).claimed
    assert first.task == third.task != second.task
    assert not any(c.reserved for c in (first, second, third))


def test_kinds_that_have_places_go_on_side_by_side(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    rig.submit(5, task="other")
    first, behind = parts(ask(rig.hand(), room=2, ahead_room=6).claimed)
    assert {c.task for c in first} == {"task", "other"}
    assert Counter(c.task for c in behind) == {"task": 3, "other": 3}


def test_of_many_places_one_is_left_to_who_waits_for_it(rig: Rig) -> None:
    rig.declare(api=5)
    rig.submit(400)
    hand = rig.hand()
    first, behind = parts(ask(hand, room=40, ahead_room=50).claimed)
    assert (len(first), len(behind), hand.state.gives_way) == (40, 50, None)
    rig.submit(3, task="other", needs=need("api"))
    got = ask(hand, room=0, ahead_room=50)
    assert [c.reserved for c in got.claimed] == [True] * 50, "the others go on"
    assert hand.state.gives_way == first[0].chain
    (other,), behind = parts(ask(hand, room=1, ahead_room=9, finishes=done(first[0])).claimed)
    assert other.task == "other"
    assert {c.task for c in behind} == {"task", "other"}
    assert hand.state.gives_way is None


@pytest.mark.parametrize("places", [1, 2])
def test_nobody_starves_where_places_are_scarce(rig: Rig, places: int) -> None:
    rig.declare(api=1, tenant=5)
    kinds = 5
    for _ in range(20):
        rig.submit(1)
        rig.submit(1, task="other", needs=need("api"))
        rig.submit(1, queue="mail")
        rig.tenant("acme")
        rig.tenant("globex", 1, Need("api"))
    order = [
        (c.queue, c.task, c.turn) for c in worked(rig.hand(), places, ahead=16, jobs=20 * kinds)
    ]
    assert len(order) == 20 * kinds
    counts = Counter(order[: 10 * kinds])
    assert len(counts) == kinds
    # By turns: two queues, and in one of them three keys, of which one has two lanes.
    assert min(counts.values()) >= 3, counts


def worked(hand: Hand, places: int, ahead: int, jobs: int) -> list[Claimed]:
    """What starts, in order, in a worker with so many places whose jobs all take the same time:
    each is followed in its place by one that was reserved for its chain, if there is one."""
    running: list[Claimed] = []
    pools: dict[str, deque[Claimed]] = defaultdict(deque)
    order: list[Claimed] = []
    for _ in range(3 * jobs):
        passed: list[Passed] = []
        ended, running = running, []
        for one in ended:
            if pools[one.chain]:
                running.append(pools[one.chain].popleft())
                passed.append(Passed(running[-1].token, one.token, 0.0))
                hand.running[running[-1].token] = replace(running[-1], reserved=False)
        # Nobody is left behind whom they could start: they are given back, unspent.
        idle = [
            c for chain in pools if chain not in {r.chain for r in running} for c in pools[chain]
        ]
        for one in idle:
            pools[one.chain].remove(one)
        back = [Finish(c.token, "returned") for c in idle]
        waiting = sum(map(len, pools.values()))
        got = ask(
            *(hand, places - len(running), ahead - waiting),
            passed=passed,
            finishes=[*done(*ended), *back],
        )
        order += running
        for one in got.claimed:
            if one.reserved:
                pools[one.chain].append(one)
            else:
                running.append(one)
                order.append(one)
        assert len(running) <= places
        if not running and not got.more:
            break
    return order


def test_a_lowered_limit_ends_the_chain(rig: Rig) -> None:
    rig.declare(api=3)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    ask(hand, room=10, ahead_room=0)
    rig.set_limit("api", 2)
    got = ask(hand, room=10, ahead_room=5)
    assert got.recall
    assert got.claimed == ()
    assert not ask(hand, room=10, ahead_room=5).recall


def test_a_pause_recalls(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    ask(hand, room=10, ahead_room=2)
    rig.store.pause_queue("default", True)
    got = ask(hand, room=10, ahead_room=2)
    assert got.recall
    assert got.claimed == ()


def test_behind_one_member_of_a_one_of(rig: Rig) -> None:
    rig.declare(host_a=1, host_b=1)
    rig.submit(10, needs=one_of("host-a", "host-b"))
    first, behind = parts(ask(rig.hand(), room=10, ahead_room=4).claimed)
    assert {c.picked for c in first} == {("host-a",), ("host-b",)}
    chains = {c.picked: c.chain for c in first}
    assert len(behind) == 4
    assert all(chains[c.picked] == c.chain for c in behind)


def test_unlimited_jobs_too(rig: Rig) -> None:
    rig.submit(10)
    got = ask(rig.hand(), room=3, ahead_room=4)
    assert Counter(c.reserved for c in got.claimed) == {False: 3, True: 4}
    assert len({c.chain for c in got.claimed}) == 1


def test_what_had_not_started_returns_unspent_when_the_worker_dies(rig: Rig) -> None:
    rig.declare(api=1)
    ids = rig.submit(4, needs=need("api"), max_lost=0)
    hand = rig.hand()
    (a,), (b, c, d) = parts(ask(hand, room=10, ahead_room=3).claimed)
    rig.store.declare_dead(hand.id, "killed", started=frozenset({b.token}))
    hand.running.clear()
    assert rig.held("api") == 0
    # The one that ran and the one that had started are lost, which these jobs do not survive.
    assert [rig.state(id) for id in ids] == ["failed", "failed", "ready", "ready"]
    again = rig.hand("second").claim(room=1)
    assert [(x.job, x.attempt, x.lost) for x in again] == [(c.job, 1, 0)]
    assert {a.job, b.job, c.job, d.job} == set(ids)


def test_when_nobody_knows_what_had_started_all_are_lost(rig: Rig) -> None:
    rig.declare(api=1)
    ids = rig.submit(3, needs=need("api"), max_lost=0)
    hand = rig.hand()
    ask(hand, room=10, ahead_room=2)
    rig.store.declare_dead(hand.id, "killed")
    hand.running.clear()
    assert [rig.state(id) for id in ids] == ["failed"] * 3


def test_a_dead_worker_hands_nothing_on(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(3, needs=need("api"))
    hand = rig.hand()
    (a,), (b,) = parts(ask(hand, room=10, ahead_room=1).claimed)
    rig.store.declare_dead(hand.id, "killed", started=frozenset())
    (taken,) = rig.hand("second").claim()
    got = rig.store.exchange(Exchange(hand.id, done(a), passed=[Passed(b.token, a.token, 0.0)]))
    hand.running.clear()
    assert got.dead
    (slot,) = rig.store.group("api")[1]
    assert slot.token == taken.token


def test_cancelled_before_it_started(rig: Rig) -> None:
    rig.declare(api=1)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    (_,), (b,) = parts(ask(hand, room=10, ahead_room=1).claimed)
    rig.store.cancel(b.job, "operator", "not any more")
    got = ask(hand, room=10, ahead_room=0)
    assert [token for token, _ in got.cancels] in ([b.token], [])
    if got.cancels:
        hand.running.pop(b.token)
        rig.store.exchange(Exchange(hand.id, [Finish(b.token, "cancelled", "not any more")]))
    assert rig.state(b.job) == "cancelled"
    record = rig.store.job(b.job)
    assert record is not None
    assert record.attempt == 0


def go_on(hand: Hand, ahead_room: int = 20) -> int:
    """One job ends, and one that was reserved goes on in its slot; how many more were reserved."""
    running, waiting = parts(list(hand.running.values()))
    ended, begun = running[0], waiting[0]
    hand.running[begun.token] = replace(begun, reserved=False)
    passed = [Passed(begun.token, ended.token, 0.0)]
    got = ask(hand, room=10, ahead_room=ahead_room, passed=passed, finishes=done(ended))
    assert not got.stale
    return len(parts(got.claimed)[1])


def test_a_lane_that_moves_is_not_in_want(rig: Rig) -> None:
    """All of them were submitted at one moment and stand at the same place in line. That somebody
    else finds the group full does not end the chain that serves them."""
    rig.declare(api=2)
    rig.submit(60, needs=need("api"))
    first, second = rig.hand(), rig.hand("second")
    ask(first, room=10, ahead_room=2)
    for _ in range(8):
        assert second.claim() == []
        rig.clock.advance(0.15)
        assert go_on(first, ahead_room=1) == 1


def test_a_starving_worker_gets_its_turn(rig: Rig) -> None:
    """A lane that nobody serves while another worker's chain keeps the group: the chain ends."""
    rig.declare(api=1)
    rig.submit(20, needs=need("api"))
    rig.submit(1, task="wide", needs=Needs((Need("api"),)))
    first, second = rig.hand(tasks=("task",)), rig.hand("second", tasks=("wide",))
    (a,), _ = parts(ask(first, room=10, ahead_room=1).claimed)
    for _ in range(4):
        assert second.claim() == []
        rig.clock.advance(0.15)
    got = ask(first, room=10, ahead_room=5, finishes=done(a))
    # It may take the slot again by its own turn, but nothing follows behind what it holds
    # while the other is in want.
    fresh, behind = parts(got.claimed)
    assert len(fresh) <= 1
    held = ask(first, room=10, ahead_room=50)
    assert parts(held.claimed)[1] == []
    assert len(behind) <= 10
