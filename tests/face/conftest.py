"""What the tests of the face share; round each of them a look for what is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import App
from headgate.config import Config
from headgate.testing import memory_app
from tests.stores import store_url
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    # What other tests of this process keep for the whole run is not of this one.
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        new = set(threading.enumerate()) - before
        return [t.name for t in new if t.name.startswith("headgate-")]

    wait_until(lambda: not left(), why=lambda: f"threads are left: {left()}")


@pytest.fixture
def app() -> Iterator[App]:
    """An app in memory, with a clock under control."""
    with memory_app() as made:
        yield made
        for group in made.slots.groups():
            assert made.slots.get_status(group).slots == [], f"a slot of {group} is left behind"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def file_app(url: str) -> Iterator[App]:
    """An app on a file, with the real clock."""
    with App(url, config=Config(url=url)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on a file, and one on PostgreSQL."""
    url = store_url(request.param, tmp_path, quick=True)
    with App(url, config=Config(url=url)) as made:
        yield made
