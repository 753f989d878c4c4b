"""A scene on each store, and a client without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.web import create_app
from tests.stores import store_url
from tests.web import scene as scenes
from tests.web.scene import Scene
from tests.web.visit import Visit, visiting


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    made = scenes.make(store_url(request.param, tmp_path, quick=True))
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Scene]:
    """The same on SQLite only, for what does not depend on the store."""
    made = scenes.make(store_url("sqlite", tmp_path))
    yield made
    made.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The same for all tests of a file that change nothing in it."""
    made = scenes.make(store_url("sqlite", tmp_path_factory.mktemp("still")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def visit_still(still: Scene) -> Iterator[Visit]:
    with visiting(create_app(still.app)) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_cookies_of_other_tests(request: pytest.FixtureRequest) -> None:
    if "visit_still" in request.fixturenames:
        request.getfixturevalue("visit_still").cookies.clear()


@pytest.fixture
def visit(scene: Scene) -> Iterator[Visit]:
    with visiting(create_app(scene.app)) as made:
        yield made


@pytest.fixture
def visit_small(small: Scene) -> Iterator[Visit]:
    with visiting(create_app(small.app)) as made:
        yield made
