"""Round trips as they are counted on the wire, by the server's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from headgate.jobs import Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.postgres import trip
from headgate.stores.protocol import (
    Claim,
    Exchange,
    NewWorker,
    Publication,
    SlotRequest,
    Store,
)
from headgate.turns import ClaimState
from tests.postgres.proxy import Proxy
from tests.postgres.server import OwnServer, binaries

ROOM = 10
NEEDS = {
    "nothing": Needs(),
    "a limit": Needs((Need("api"),)),
    "a key": Needs((Need("tenant", "acme"),)),
    "two": Needs((Need("api"), Need("tenant", "acme"))),
    "one of two": Needs((), ((Need("api"), Need("host")),)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    server = OwnServer(binaries())
    server.start()
    yield server
    server.close()


@pytest.fixture
def proxy(server: OwnServer) -> Iterator[Proxy]:
    proxy = Proxy(server.tcp)
    yield proxy
    proxy.close()


@pytest.fixture
def store(server: OwnServer, proxy: Proxy) -> Iterator[Store]:
    """Of one thread, so that all go through one connection."""
    server.run("DROP SCHEMA IF EXISTS headgate CASCADE")
    with closing(open_store(server.tcp_url("postgres", proxy.port))) as store:
        code = {"warm": 1, "gpu": 2, "api": ROOM, "host": ROOM, "tenant": ROOM}
        store.publish(Publication("test", code=code))
        yield store


def test_a_slot_by_hand(store: Store, proxy: Proxy) -> None:
    def request(group: str) -> SlotRequest:
        return SlotRequest(group, "me", "here", lease=30.0)

    # The words are read by the first that is taken; from then on one round trip is enough.
    slot = store.take_slot(request("warm"))
    assert slot is not None
    assert store.drop_slot("warm", slot.slot, slot.token)
    before = proxy.round_trips
    slot = store.take_slot(request("gpu"))
    assert slot is not None
    assert proxy.round_trips == before + 1
    assert store.extend_slot("gpu", slot.slot, slot.token, 5)
    assert proxy.round_trips == before + 2
    assert store.drop_slot("gpu", slot.slot, slot.token)
    assert proxy.round_trips == before + 3


@pytest.mark.parametrize("needs", NEEDS.values(), ids=NEEDS.keys())
def test_a_busy_worker(
    store: Store, proxy: Proxy, needs: Needs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended is told, as many are claimed in its place, and the line is seen for the next. The
    jobs are short: whose limit is full will have room again soon, and is looked at all the same."""
    monkeypatch.setattr(trip, "VIEW_AGE", 60.0)  # however slow this machine is
    store.register(NewWorker("w", "w", "k", "host", 1, (), ("task",), ROOM, lease=1000.0))
    store.submit([NewJob("task", needs=needs) for _ in range(10 * ROOM)])
    state = ClaimState()
    finishes: list[Finish] = []

    def exchange(room: int = ROOM) -> int:
        """How many round trips it took."""
        before = proxy.round_trips
        short = {"task": 0.001}
        claim = Claim(room, frozenset(short), state, ahead=short, fresh=False, again=True)
        got = store.exchange(Exchange("w", finishes, claim=claim))
        assert not got.stale
        assert len(got.claimed) == room
        finishes[:] = [Finish(one.token, "succeeded", result="null") for one in got.claimed]
        return proxy.round_trips - before

    exchange()  # looks first, and reads what was said of limits
    assert [exchange() for _ in range(5)] == [1] * 5
    assert exchange(room=0) == 1
