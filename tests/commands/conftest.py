"""A place to run real workers that run real commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.jobs import JobRecord
from tests.commands import sample
from tests.stores import on_both, store_url
from tests.waiting import wait_until
from tests.worker.site import Site, Tree, opened

BOTH = frozenset(("test_output_is_followed_from_another_process",))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both(metafunc, "place", BOTH)


class Place(Site):
    """A store, and workers with the commands of `sample`."""

    @property
    def app(self) -> Any:
        return sample.app

    def start(self, *arguments: str, target: str = "tests.commands.sample:app", **env: str) -> Tree:
        return super().start(*arguments, target=target, **env)

    def ready(self, count: int = 1) -> None:
        wait_until(lambda: self.lines("ready") >= ["ready"] * count, why="workers ready")

    def lines(self, name: str) -> list[str]:
        path = self.folder / f"trail.{name}"
        return path.read_text().splitlines() if path.exists() else []

    def output(self, id: str) -> bytes:
        from headgate.commands.output import whole

        return whole(self.app.store, id)

    def wait_for_output(self, id: str, text: bytes) -> bytes:
        return wait_until(
            lambda: said if text in (said := self.output(id)) else b"", why=f"output {text!r}"
        )

    def run(self, task: Any, *arguments: str, **options: Any) -> JobRecord:
        """Submit, wait for the end."""
        return self.until_done(task.submit(arguments=list(arguments), **options).id)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A fresh one: no process, lock file or slot of it may be left after the test."""
    url = store_url(getattr(request, "param", "sqlite"), tmp_path)
    with opened(Place(tmp_path, url), monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One worker for all tests of a module that only need some command to run."""
    with (
        pytest.MonkeyPatch.context() as patch,
        opened(Place(tmp_path_factory.mktemp("shop")), patch) as made,
    ):
        made.start("--concurrency", "20")
        made.ready()
        yield made
        for tree in made.trees:
            assert tree.stop() == 0
