"""A store in a file, and the command as people call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli import root
from headgate.stores import open_store
from headgate.stores.protocol import Store


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`headgate --url … ARGS`, in this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(
        self, *args: str, input: str | None = None, env: dict[str, str] | None = None
    ) -> Answer:
        done = CliRunner().invoke(
            root, ["--url", self.url, *args], input=input, env=env, prog_name="headgate"
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Answer(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def headgate(url: str, store: Store) -> Command:
    return Command(url)
