"""What the tests of the face share; round each of them a look for what is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import App
from headgate.config import Config
from headgate.testing import memory_app
from tests.stores import store_url


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    # What other tests of this process keep for the whole run is not of this one.
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while True:
        new = set(threading.enumerate()) - before
        left = [t.name for t in new if t.name.startswith("headgate-")]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert left == []


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
