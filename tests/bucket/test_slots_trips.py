"""Slots by hand cost at most two round trips, whatever the limit: a look, and a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import SlotRecord, SlotRequest
from tests.bucket.memory import MemoryObjects

T = TypeVar("T")
LIMITS = [1, 10_000]


class Pair:
    """Two machines, and what they ask of the bucket."""

    def __init__(self, folder: Path) -> None:
        self.objects = MemoryObjects()
        self.one, self.two = (
            BucketStore(f"s3://tests/x?cache={folder / name}", objects=self.objects)
            for name in ("one", "two")
        )

    def trips(self, what: Callable[[], T]) -> tuple[T, dict[str, int]]:
        before = self.objects.counts.copy()
        done = what()
        return done, dict(self.objects.counts - before)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.one.close()
    pair.two.close()


def take(store: BucketStore, limit: int, units: int = 1) -> SlotRecord | None:
    request = SlotRequest(
        f"g{limit}", "task", "host", lease=60.0, limit=limit, carries_limit=True, units=units
    )
    return store.take_slot(request)


@pytest.mark.parametrize("limit", LIMITS)
def test_two_round_trips_where_there_is_room(pair: Pair, limit: int) -> None:
    slot, trips = pair.trips(lambda: take(pair.one, limit))
    assert slot is not None
    assert trips == {"read": 1, "write": 1}
    # The other machine's copy is behind, which costs nothing more.
    released, trips = pair.trips(lambda: pair.two.drop_slot(slot.group, slot.slot, slot.token))
    assert released
    assert trips == {"read": 1, "write": 1}
    again, trips = pair.trips(lambda: take(pair.two, limit))
    assert again is not None
    assert trips == {"read": 1, "write": 1}
    ends, trips = pair.trips(lambda: pair.one.extend_slot(again.group, again.slot, again.token, 9))
    assert ends is not None
    assert trips == {"read": 1, "write": 1}


@pytest.mark.parametrize("limit", LIMITS)
def test_one_where_it_is_full(pair: Pair, limit: int) -> None:
    assert take(pair.one, limit, units=limit) is not None
    for store in (pair.two, pair.one):
        slot, trips = pair.trips(lambda store=store: take(store, limit))
        assert slot is None
        assert trips == {"read": 1}
    (_, held), trips = pair.trips(lambda: pair.two.group(f"g{limit}"))
    assert [one.units for one in held] == [limit]
    assert trips == {"read": 1}


@pytest.mark.parametrize("limit", LIMITS)
def test_who_lost_a_race_looks_and_writes_again(
    pair: Pair, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(pair.one, limit + 1)  # so that both know the store
    pair.two.group("other")
    replace, rivals = pair.objects.replace, iter([lambda: take(pair.one, limit)])
    seen: list[SlotRecord | None] = []

    def with_a_rival(key: str, body: bytes, known: str) -> str:
        for rival in rivals:
            seen.append(rival())
        return replace(key, body, known)

    monkeypatch.setattr(pair.objects, "replace", with_a_rival)
    slot, trips = pair.trips(lambda: take(pair.two, limit))
    assert seen[0] is not None
    assert (slot is None) is (limit == 1)
    # The rival's two; ours in vain, and then again: a look to learn who won, and one more where
    # there was room.
    assert trips["write"] == 2 + (slot is not None)
    assert trips["read"] <= 4
