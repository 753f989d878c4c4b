"""Promise: flag > environment > headgate.toml > default, and a mistake is named by its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate import App, ConfigError, DeclarationError
from headgate.config import DEFAULT_URL, Config, QueueConfig
from headgate.jobs import Retention
from headgate.testing import drain

FULL = """
url = "sqlite:///from-file.db"
[concurrency]
default_lease_duration_secs = 12
[concurrency.limits]
api = 10
"payments api" = 0
open = "unlimited"
[queues.slow]
concurrency = 2
weight = 3
paused = true
[queues.fast]
[fairness.weights]
acme = 5
"a\\nb" = 2
[retention]
succeeded = "12h"
failed = "forever"
cancelled = 90
events = "30m"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "headgate.toml"
    file.write_text(text)
    return file


def test_everything_the_file_can_say(tmp_path: Path) -> None:
    file = write(tmp_path, FULL)
    config = Config.load(environ={}, directory=tmp_path)
    assert config == Config(
        url="sqlite:///from-file.db",
        default_lease=12.0,
        limits={"api": 10, "payments api": 0, "open": None},
        queues={"slow": QueueConfig(2, 3, True), "fast": QueueConfig()},
        weights={"acme": 5, "a%0Ab": 2},
        retention=Retention(43200.0, None, 90.0, 1800.0),
        path=file,
    )


def test_precedence(tmp_path: Path) -> None:
    file = write(tmp_path, FULL)
    env = {
        "HEADGATE_URL": "sqlite:///from-env.db",
        "HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": "9.5",
        "HEADGATE_RETENTION_FAILED": "2d",
    }
    none = tmp_path / "none"
    assert Config.load(environ={}, directory=none).url == DEFAULT_URL
    assert Config.load(environ={"HEADGATE_URL": ""}, directory=none).url == DEFAULT_URL
    assert Config.load(environ=env, directory=none).url == "sqlite:///from-env.db"
    merged = Config.load(environ=env, directory=tmp_path)
    assert (merged.url, merged.default_lease) == ("sqlite:///from-env.db", 9.5)
    assert merged.retention.failed == 2 * 86400
    assert Config.load(environ=env, directory=tmp_path, url="flag").url == "flag"
    elsewhere = {"HEADGATE_CONFIG": str(file)}
    assert Config.load(environ=elsewhere, directory=none).url == "sqlite:///from-file.db"
    with pytest.raises(ConfigError, match="no such configuration file"):
        Config.load(environ={"HEADGATE_CONFIG": str(none)}, directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("urll = 'x'", "unknown key 'urll'"),
        ("url = 3", "url: must be a non-empty text"),
        ("url = ''", "url"),
        ("url = [", "not valid TOML"),
        ("concurrency = 3", "concurrency must be a table"),
        ("[concurrency]\nlease = 3", "unknown key 'concurrency.lease'"),
        ("[concurrency]\ndefault_lease_duration_secs = 'x'", "default_lease_duration_secs"),
        ("[concurrency]\ndefault_lease_duration_secs = 0", "from 1 to 86400"),
        ("[concurrency.limits]\napi = -1", "concurrency.limits.api"),
        ("[concurrency.limits]\napi = 1.5", "concurrency.limits.api"),
        ("[concurrency.limits]\napi = true", "concurrency.limits.api"),
        ("[concurrency.limits]\n'a/b' = 1", "'/'"),
        ("[queues]\nslow = 3", "queues.slow must be a table"),
        ("[queues.slow]\nconcurency = 3", "unknown key 'queues.slow.concurency'"),
        ("[queues.slow]\nweight = 0", "queues.slow.weight"),
        ("[queues.slow]\npaused = 'no'", "queues.slow.paused"),
        ("[queues.slow]\nconcurrency = -1", "queues.slow.concurrency"),
        ("[queues.'']\nweight = 1", "queue"),
        ("[fairness]\nweight = 1", "unknown key 'fairness.weight'"),
        ("[fairness.weights]\nacme = 0", "fairness.weights.acme"),
        ("[retention]\nsucceeded = '7 days'", "retention.succeeded"),
        ("[retention]\nfailed = -1", "retention.failed"),
        ("[retention]\ndone = 1", "unknown key 'retention.done'"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        Config.load(environ={}, directory=tmp_path)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)


def test_mistakes_in_the_environment(tmp_path: Path) -> None:
    for name, text in (
        ("HEADGATE_RETENTION_FAILED", "soon"),
        ("HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS", "x"),
    ):
        with pytest.raises(ConfigError, match=name):
            Config.load(environ={name: text}, directory=tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.load(tmp_path, environ={})
    (tmp_path / "headgate.toml").write_bytes(b"url = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Config.load(environ={}, directory=tmp_path)


def test_where_an_app_finds_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)
    assert App().url == "sqlite:///headgate.db"
    write(tmp_path, "url = 'sqlite:///file.db'")
    assert App().url == "sqlite:///file.db"
    monkeypatch.setenv("HEADGATE_URL", "sqlite:///env.db")
    assert App().url == "sqlite:///env.db"
    assert App("sqlite:///given.db").url == "sqlite:///given.db"
    with App() as app:
        app.submit("x", {})
    assert (tmp_path / "env.db").exists()
    with pytest.raises(ConfigError, match="no store for url"):
        _ = App("redis://localhost").store


def test_limits_of_the_file_are_limits(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, "[concurrency.limits]\napi = 2\nown = 0"), environ={})
    with App("sqlite:///:memory:", config=config) as app:
        app.limit("own", 5)
        app.task("x", limits=["api"])(lambda: 1)
        app.task("y", limits=["own"])(lambda: 1)
        app.submit("x")
        held = app.submit("y")
        assert drain(app).succeeded == 1
        assert held.status() == "ready", "the file wins over code"
        with pytest.raises(DeclarationError):
            app.task("z", limits=["missing"])(lambda: 1).submit()
