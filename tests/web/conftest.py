"""A scene on each store, a client without a browser, and one with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from headgate.web import Access, create_app
from headgate.web.access import User
from tests.stores import store_url
from tests.web import scene as scenes
from tests.web.scene import Scene

OPERATOR = "operate-token-0123456789"
VIEWER = "view-token-0123456789abc"
LOCAL = "http://127.0.0.1:8765"


def access() -> Access:
    return Access(
        {OPERATOR: "operate", VIEWER: "view"},
        {"ada": User("correct horse", "operate"), "vic": User("only looking", "view")},
    )


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


class Visit(TestClient):
    """A browser without scripts: keeps cookies, fills in forms."""

    def form(self, path: str, action: str, **fields: str) -> Any:
        """Open a page, take the token of its forms, and send one of them."""
        page = self.get(path)
        assert page.status_code == 200, page.text
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
        assert found, f"{path} has no form"
        return self.post(action, data={"csrf": found[1], **fields}, follow_redirects=False)


@contextmanager
def visiting(site: Starlette, base: str = LOCAL, client: str = "127.0.0.1") -> Iterator[Visit]:
    with Visit(site, base_url=base, client=(client, 50000)) as visit:
        yield visit


@pytest.fixture
def visit(scene: Scene) -> Iterator[Visit]:
    with visiting(create_app(scene.app)) as made:
        yield made


@pytest.fixture
def visit_small(small: Scene) -> Iterator[Visit]:
    with visiting(create_app(small.app)) as made:
        yield made
