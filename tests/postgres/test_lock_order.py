"""The one order in which locks are waited for (`headgate.stores.postgres.leases`): each operation
that takes several is looked at while it takes them. Two that wait in different orders meet once in
a million times; here the first does not pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from headgate.claim import RESERVE_AFTER
from headgate.jobs import Finish, JobFilter, NewJob, Retention
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.postgres import doctoring, exchanging, leases, transaction
from headgate.stores.postgres import store as postgres_store
from headgate.stores.postgres.parameters import prepare as prepared
from headgate.stores.postgres.url import parse
from headgate.stores.protocol import (
    Exchange,
    LimitChange,
    NewWorker,
    Passed,
    Publication,
    SlotRequest,
    TaskSpec,
)
from headgate.stores.relational import orphans, scheduling
from tests.conformance.conftest import Hand, HandClock, Rig, need
from tests.postgres.caller import Caller, cap
from tests.postgres.lockspy import FOLDER, Ask, Lock, function, spied
from tests.postgres.lost import lost_answer
from tests.postgres.rival import PATIENCE, Rival, Waiter, until_blocked
from tests.postgres.server import Server
from tests.schedules.desk import Desk, spec

ORDER = ("compact", "doctor", "worker", "limits", "group", "cap", "place")
"""As documented. A group comes before another by the number of its lock."""
ALONE = ("migrate", "orphans", "schedules")
"""Who waits for one of these has no other and takes no other."""
GROUPS, CAPS, PLACES = ("api", "gpu", "both"), ("tenant/a", "tenant/b"), range(1, 6)

Do = Callable[[], object]
OPERATIONS: list[tuple[Callable[[Rig], Do], list[str]]] = []


def operation(*transactions: str) -> Callable[[Callable[[Rig], Do]], Callable[[Rig], Do]]:
    """What is to be seen of it: of each transaction that takes any lock, which and how."""

    def note(prepare: Callable[[Rig], Do]) -> Callable[[Rig], Do]:
        OPERATIONS.append((prepare, list(transactions)))
        return prepare

    return note


# --- work -----------------------------------------------------------------------------------------


def two_groups(rig: Rig) -> Hand:
    rig.declare(gpu=1, api=1)
    rig.submit(needs=Needs((Need("gpu"), Need("api"))))
    return rig.hand()


def expire_another(rig: Rig) -> None:
    """A worker whose lease has ended, and that nobody has taken away yet."""
    rig.store.register(NewWorker("gone", "gone", tasks=("task",), lease=1))
    rig.clock.advance(2)


@operation("take worker, try to share limits, try group, try group")
def claims(rig: Rig) -> Do:
    hand = two_groups(rig)
    return lambda: hand.exchange(room=1)


@operation("take worker")
def takes_the_only_job(rig: Rig) -> Do:
    rig.submit()
    hand = rig.hand()
    hand.claim()
    hand.end_all()
    rig.submit()
    return lambda: hand.exchange(room=1)


@operation("take worker, try to share limits, try group")
def takes_the_only_limited_job(rig: Rig) -> Do:
    rig.declare(gpu=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    hand.end_all()
    rig.submit(needs=need("gpu"))
    return lambda: hand.exchange(room=1)


@operation("try worker", "take worker, try to share limits, try group")
def claims_beside_one_that_is_gone(rig: Rig) -> Do:
    rig.declare(gpu=2)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    expire_another(rig)
    return lambda: hand.exchange(room=1)


@operation("take worker", "take worker, try to share limits, try group")
def gives_back_and_claims(rig: Rig) -> Do:
    rig.declare(gpu=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    return lambda: hand.exchange([Finish(claimed.token, "interrupted")], room=1)


@operation("take worker, share cap, try place", "take worker")
def ends_with_one_to_follow(rig: Rig) -> Do:
    rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    follow = NewJob("task", caps=(cap(5, CAPS[0]),))
    return lambda: hand.end(claimed, followups=(follow,))


@operation("take worker, take cap, take cap, try place, try place", "take worker")
def ends_with_several_to_follow(rig: Rig) -> Do:
    rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    follow = tuple(NewJob("task", caps=(cap(5, name),)) for name in reversed(CAPS))
    return lambda: hand.end(claimed, followups=follow)


def with_several(token: int, name: str) -> Finish:
    jobs = [NewJob("task", caps=(cap(9, name),)) for _ in range(2)]
    return Finish(token, "succeeded", followups=tuple(jobs))


@operation(
    "take worker, take cap, try place, try place",
    "take worker, take cap, try place, try place",
)
def ends_two_with_several_to_follow(rig: Rig) -> Do:
    rig.submit(2)
    hand = rig.hand()
    first, second = hand.claim()
    ends = [with_several(first.token, CAPS[1]), with_several(second.token, CAPS[0])]
    return lambda: hand.exchange(ends, room=0)


@operation("take worker", "take worker")
def asks_what_became_of_a_lost_answer(rig: Rig) -> Do:
    rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    with lost_answer():
        hand.end(claimed)
    return lambda: hand.end(claimed)


@operation("take worker", "take worker", "take worker")
def asks_whose_the_slots_are_by_now(rig: Rig) -> Do:
    rig.submit(3)
    hand = rig.hand()
    first, second, third = hand.claim()
    with lost_answer():
        rig.store.exchange(Exchange(hand.id, passed=[Passed(second.token, first.token, 0.0)]))
    passed = [Passed(third.token, first.token, 0.0)]
    return lambda: rig.store.exchange(Exchange(hand.id, passed=passed))


@operation("take worker", "take group, take group")
def reserves_for_a_wide_one(rig: Rig) -> Do:
    rig.declare(gpu=1, api=1)
    rig.submit(5, needs=need("gpu"))
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=Needs((Need("gpu"), Need("api"))))

    def go_on() -> None:
        hand.end(next(iter(hand.running.values())))
        hand.claim()

    for seconds in (1.0, RESERVE_AFTER):
        go_on()
        rig.clock.advance(seconds)
    return go_on


@operation("take limits")
def finds_a_word_that_has_ended(rig: Rig) -> Do:
    rig.declare(gpu=1)
    rig.store.change_limit(LimitChange("gpu", 0, set_value=True, lasts=1))
    hand = rig.hand()
    hand.claim()
    rig.clock.advance(2)
    return lambda: hand.exchange(room=1)


@operation("take worker")
def declares_dead(rig: Rig) -> Do:
    hand = two_groups(rig)
    hand.claim()
    hand.running.clear()
    return lambda: rig.store.declare_dead(hand.id, "killed")


@operation("take worker")
def unregisters(rig: Rig) -> Do:
    hand = two_groups(rig)
    return lambda: rig.store.unregister(hand.id)


@operation("share limits, take group, take group, try worker")
def takes_groups_again(rig: Rig) -> Do:
    hand = two_groups(rig)
    (claimed,) = hand.claim()
    rig.store.release_groups(claimed.token)
    expire_another(rig)
    return lambda: rig.store.retake_groups(claimed.token)


# --- by hand --------------------------------------------------------------------------------------


def by_hand(rig: Rig) -> Do:
    return lambda: rig.store.take_slot(SlotRequest("gpu", "me", "here", lease=30.0))


@operation("share limits, take group, try worker")
def takes_a_slot_step_by_step(rig: Rig) -> Do:
    rig.declare(gpu=1)
    expire_another(rig)
    return by_hand(rig)


@operation("share limits, take group")
def takes_a_slot(rig: Rig) -> Do:
    rig.declare(gpu=2)
    by_hand(rig)()
    return by_hand(rig)


@operation("take group")
def extends_a_slot(rig: Rig) -> Do:
    rig.declare(gpu=1)
    slot = rig.store.take_slot(SlotRequest("gpu", "me", "here", lease=30.0))
    assert slot is not None
    return lambda: rig.store.extend_slot("gpu", slot.slot, slot.token, 5)


# --- submit ---------------------------------------------------------------------------------------


def submits(rig: Rig, *caps: str, total: int = 5) -> Do:
    jobs = [NewJob("task", caps=(cap(total, name),)) for name in caps]
    return lambda: rig.store.submit(jobs)


@operation("share cap, try place")
def submits_one(rig: Rig) -> Do:
    return submits(rig, CAPS[0])


@operation("share cap, share cap, try place, try place")
def submits_one_under_two_caps(rig: Rig) -> Do:
    job = NewJob("task", caps=tuple(cap(5, name) for name in reversed(CAPS)))
    return lambda: rig.store.submit([job])


@operation("take cap, take cap, try place, try place")
def submits_several(rig: Rig) -> Do:
    return submits(rig, *reversed(CAPS))


@operation("share cap, take cap")
def submits_where_somebody_stands_above(rig: Rig) -> Do:
    """It shares the lock at first, and lets go of it before it takes it alone."""
    submits(rig, CAPS[0], CAPS[0])()
    return submits(rig, CAPS[0], total=1)


@operation("share cap, try place, take place, try place")
def waits_for_the_last_place(rig: Rig) -> Do:
    caller = Caller(rig)
    assert caller.one(cap(1, CAPS[0])).refused is None

    def wait() -> None:
        with Rival(rig.store.url) as watch, caller:
            waiter = Waiter(submits(rig, CAPS[0], total=1))
            until_blocked(watch)
            caller.rollback()
            waiter.result()

    return wait


@operation("try cap")
def prunes(rig: Rig) -> Do:
    submits(rig, CAPS[0])()
    hand = rig.hand()
    hand.claim()
    hand.end_all()
    rig.clock.advance(10)
    return lambda: rig.store.prune(Retention(succeeded=1.0))


@operation("take cap, take cap, try place, try place")
def ticks(rig: Rig) -> Do:
    desk = Desk(rig)
    specs = [
        spec(name, job=NewJob("task", caps=(cap(5, group),)))
        for name, group in zip(("first", "second"), reversed(CAPS), strict=True)
    ]
    desk.declare(*specs)
    desk.tick()
    rig.clock.advance(60)
    return desk.tick


# --- operate --------------------------------------------------------------------------------------


@operation("take limits")
def publishes(rig: Rig) -> Do:
    return lambda: rig.store.publish(Publication("web", code={"gpu": 1}))


@operation("take limits")
def changes_limits(rig: Rig) -> Do:
    rig.declare(gpu=1, api=1)
    changes = [LimitChange(name, 2, set_value=True) for name in ("gpu", "api")]
    return lambda: rig.store.change_limits(changes)


@operation("take schedules")
def declares_schedules(rig: Rig) -> Do:
    return lambda: Desk(rig).declare(spec())


@operation("try worker", "try group, try group", "take orphans", "take schedules", "take limits")
def sweeps(rig: Rig) -> Do:
    hand = two_groups(rig)
    hand.claim()
    hand.end_all()
    Desk(rig).declare(spec())
    rig.store.publish(Publication("gone", code={"both": 1}, tasks=(TaskSpec("gone"),)))
    rig.store.change_limit(LimitChange("gpu", 3, set_value=True, lasts=60))
    rig.store.sweep()
    rig.clock.advance(postgres_store.IDLE_SLOTS + 1)
    rig.store.register(NewWorker("gone", "gone", tasks=("task",), lease=1))
    rig.clock.advance(2)
    return rig.store.sweep


@operation("take compact")
def examines(rig: Rig) -> Do:
    return rig.store.doctor


@operation("take doctor, try worker", "take compact, take doctor, take group, take group")
def repairs(rig: Rig) -> Do:
    hand = two_groups(rig)
    assert hand.claim()
    with rig.store._write() as tx:  # type: ignore[attr-defined]
        tx.run("DELETE FROM headgate.slots")
    expire_another(rig)
    return lambda: rig.store.doctor(repair=True)


# --- the order ------------------------------------------------------------------------------------


class Locks:
    """What the locks of a test stand for."""

    def __init__(self, rig: Rig) -> None:
        names = {
            "\x01compact": ("compact", ""),
            doctoring.ALONE: ("doctor", ""),
            orphans.ALONE: ("orphans", ""),
            scheduling.ALONE: ("schedules", ""),
            leases.LIMITS: ("limits", ""),
        }
        for worker in ("gone", *(hand.id for hand in rig.hands)):
            names[leases.lock_name(worker)] = ("worker", worker)
        for group in GROUPS:
            names[group] = ("group", group)
        for name in CAPS:
            names[f"\x01cap {name}"] = ("cap", name)
            for place in PLACES:
                names[f"\x01place {place} total {name}"] = ("place", name)
        with Rival(rig.store.url) as asked:
            rows = asked.run(
                "SELECT headgate.salt(), headgate.lock_key(n), n FROM unnest(%s::text[]) AS n",
                list(names),
            )
        self._known = {
            (salt % 2**32, key % 2**32): (names[name][0], key if name in GROUPS else names[name][1])
            for salt, key, name in rows
        }

    def kind(self, lock: Lock) -> str:
        return self._known[lock][0]

    def describe(self, ask: Ask) -> str:
        how = {True: {True: "take", False: "share"}, False: {True: "try", False: "try to share"}}
        return f"{how[ask.waits][ask.alone]} {self.kind(ask.lock)}"

    def refusals(self, ask: Ask) -> list[str]:
        """Why it may not wait for this lock now. What it has got by trying counts too: somebody
        else may wait for that."""
        if not ask.waits:
            return []
        kind, which = self._known[ask.lock]
        found = [
            f"{self.describe(ask)} {which}, and has {other[0]} {other[1]}"
            for held in ask.held
            if not self._may(ask, held, other := self._known[held])
        ]
        # Who has this lock may wait for the row. What is under caps follows from an end, or from a
        # tick, of which it is stored as a part: its wait is short.
        if ask.wrote and kind not in ("cap", "place"):
            found.append(f"{self.describe(ask)} {which}, and has written")
        return found

    def _may(self, ask: Ask, held: Lock, other: tuple[str, str | int]) -> bool:
        kind, which = self._known[ask.lock]
        if held == ask.lock:
            # Two who share a lock and want it alone wait for each other.
            return ask.held[held] or not ask.alone
        if kind in ALONE or other[0] in ALONE:
            return False
        if kind == other[0] == "place":
            return other[1] <= which  # type: ignore[operator]
        return (ORDER.index(other[0]), other[1]) < (ORDER.index(kind), which)


@dataclass
class Seen:
    asks: list[Ask]
    locks: Locks
    schema: str

    @property
    def transactions(self) -> list[str]:
        """Those that ask for any lock, each as one text."""
        found: dict[str, list[str]] = {}
        for ask in self.asks:
            found.setdefault(ask.transaction, []).append(self.locks.describe(ask))
        return [", ".join(texts) for texts in found.values()]


def look_at(server: Server, prepare: Callable[[Rig], Do]) -> Seen:
    clock = HandClock()
    with spied(server) as (url, asks), closing(open_store(url, clock=clock)) as store:
        rig = Rig(store, clock)
        do = prepare(rig)
        asks.clear()
        do()
        return Seen(list(asks), Locks(rig), parse(url).schema)


@pytest.mark.parametrize(
    ("prepare", "expected"), OPERATIONS, ids=[prepare.__name__ for prepare, _ in OPERATIONS]
)
def test_locks_are_waited_for_in_one_order(
    postgres: Server, prepare: Callable[[Rig], Do], expected: list[str]
) -> None:
    seen = look_at(postgres, prepare)
    assert [why for ask in seen.asks for why in seen.locks.refusals(ask)] == []
    assert seen.transactions == expected


NOT_HERE = {
    ("may_compact", "pg_try_advisory_xact_lock"): "under a search path of its own, and alone",
}
NOT_ON_POSTGRESQL = {"extend_slot": "there is a function for it"}


def test_no_lock_is_taken_that_was_not_looked_at(postgres: Server) -> None:
    """Of the functions, of the statements and of the code: whoever adds one adds it above."""
    asked: set[tuple[str, str]] = set()
    lines: set[str] = set()
    for prepare, _ in OPERATIONS:
        seen = look_at(postgres, prepare)
        statements = {
            prepared(text, seen.schema).text.decode(): name for name, text in statements_by_name()
        }
        for ask in seen.asks:
            asked.add(
                (statements.get(ask.asks, ask.asks), function(waits=ask.waits, alone=ask.alone))
            )
            lines |= ask.lines
    assert asked == in_sql() - NOT_HERE.keys()
    assert in_code() - lines == set()


SQL = FOLDER / "stores/postgres/sql"
_LOCKS = re.compile(r"pg_(?:try_)?advisory_xact_lock(?:_shared)?")


def statements_by_name() -> Iterator[tuple[str, str]]:
    for path in SQL.glob("*.sql"):
        if not path.stem.endswith("functions"):
            for name, text in vars(getattr(transaction.SQL, path.stem)).items():
                if isinstance(text, str):
                    yield f"{path.stem}.{name}", text


def in_sql() -> set[tuple[str, str]]:
    found = {(name, call) for name, text in statements_by_name() for call in _LOCKS.findall(text)}
    for path in SQL.glob("*functions.sql"):
        _, *parts = re.split(r"CREATE OR REPLACE FUNCTION headgate\.(\w+)", path.read_text())
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            code = re.sub(r"--.*", "", text)
            found |= {(name, call) for call in _LOCKS.findall(code)}
    return found


def in_code() -> set[str]:
    found: set[str] = set()
    for folder in ("stores/postgres", "stores/relational"):
        for path in (FOLDER / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name not in NOT_ON_POSTGRESQL:
                    for call in ast.walk(node):
                        if isinstance(call, ast.Call) and called(call.func) in TAKING:
                            found.add(f"{path.relative_to(FOLDER)}:{call.lineno}")
    return found


TAKING = ("lock", "lock_limits", "lock_groups")


def called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


# --- what came of another order -----------------------------------------------------------------


def test_two_who_end_several_do_not_wait_for_each_other(
    rig: Rig, rival: Rival, watch: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows from one end is under a cap, what follows from the next under another, and
    somebody else ends two in the other order."""
    monkeypatch.setattr(exchanging, "DEPENDENT_WITHIN", PATIENCE)  # not given up before that shows
    rig.submit(4)
    hands = [rig.hand("a"), rig.hand("b")]
    ends: list[list[Finish]] = []
    for hand, names in zip(hands, (CAPS, CAPS[::-1]), strict=True):
        first, second = hand.claim(room=2)
        ends.append([with_several(first.token, names[0]), with_several(second.token, names[1])])
        rival.run("SELECT 1 FROM headgate.running WHERE token = %s FOR UPDATE", second.token)
    waiters = [
        Waiter(lambda hand=hand, told=told: hand.exchange(told, room=0))  # type: ignore[misc]
        for hand, told in zip(hands, ends, strict=True)
    ]
    until_blocked(watch, 2)
    rival.rollback()
    assert [waiter.result().stale for waiter in waiters] == [frozenset(), frozenset()]
    assert rig.store.count(JobFilter(states=frozenset(["ready"]))) == 8
