"""A site with the app of these tests, and what its workers tell."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate import App
from tests.stores import store_url
from tests.waiting import wait_until
from tests.worker.site import Site, Tree, opened

Scraped = dict[str, dict[tuple[str, ...], float]]


def parse(text: str) -> Scraped:
    """By name and the values of the labels, in the order of the labels' names."""
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


class Metered(Site):
    @property
    def app(self) -> App:
        from tests.telemetry import sample

        return sample.app

    def work(self, *arguments: str, **env: str) -> Tree:
        return self.start(*arguments, target="tests.telemetry.sample:app", **env)

    def page(self, tree: Tree) -> str:
        where = wait_until(lambda: re.search(r"metrics are at (http://\S+?)\"?\s", tree.output()))[
            1
        ]
        with urllib.request.urlopen(where.rstrip('"}'), timeout=10) as answer:
            return answer.read().decode()

    def scrape(self, tree: Tree) -> Scraped:
        return parse(self.page(tree))

    def until(self, tree: Tree, name: str, labels: tuple[str, ...], value: float) -> Scraped:
        def found() -> Scraped | None:
            scraped = self.scrape(tree)
            return scraped if scraped.get(name, {}).get(labels, 0) >= value else None

        return wait_until(found, why=f"{name}{labels} {value}")


@pytest.fixture(params=["sqlite", "postgres"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Metered]:
    with opened(Metered(tmp_path, store_url(request.param, tmp_path)), monkeypatch) as place:
        yield place


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Metered]:
    """The same on SQLite only, for what does not depend on the store."""
    with opened(Metered(tmp_path, store_url("sqlite", tmp_path)), monkeypatch) as place:
        yield place
