from collections.abc import Iterator

import pytest

from headgate.stores import open_store
from tests.conformance.conftest import HandClock, Rig
from tests.postgres.fixtures import bounced_url, empty_database, postgres, postgres_url
from tests.postgres.rival import Rival

__all__ = ["bounced_url", "empty_database", "postgres", "postgres_url"]


@pytest.fixture
def clock() -> HandClock | None:
    """A clock in hand; a module that needs the store's own gives None instead."""
    return HandClock()


@pytest.fixture
def rig(postgres_url: str, clock: HandClock | None) -> Iterator[Rig]:
    """A store by that clock; after every test its tables agree with each other."""
    store = open_store(postgres_url, clock=clock)
    rig = Rig(store, clock or HandClock())
    yield rig
    for hand in rig.hands:
        hand.end_all()
    assert store.doctor() == []
    store.close()


@pytest.fixture
def rival(rig: Rig, postgres_url: str) -> Iterator[Rival]:
    with Rival(postgres_url) as made:
        yield made


@pytest.fixture
def watch(rig: Rig, postgres_url: str) -> Iterator[Rival]:
    with Rival(postgres_url) as made:
        yield made
