"""Promise: a rate is declared like a limit, refused where it cannot work, and decided exactly."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    App,
    ConfigError,
    DeclarationError,
    IsARate,
    Limit,
    OneOf,
    Rate,
    TooWide,
)
from headgate.config import Config
from headgate.rates import Pace, Starts, read_rate
from headgate.testing import TestClock, drain, memory_app

# --- declaring ----------------------------------------------------------------------------------


def test_a_rate_among_the_limits_of_a_task(app: App) -> None:
    api = app.rate("api", 2, per=timedelta(minutes=1))

    @app.task(limits=[api, app.limit("door", 5)])
    def call(n: int) -> int:
        return n

    handles = [call.submit(n) for n in range(5)]
    assert drain(app).succeeded == 2
    assert drain(app, advance=True).succeeded == 3
    assert [handle.result() for handle in handles] == list(range(5))
    assert isinstance(app.clock, TestClock)
    assert handles[4].record().finished_at is not None


def test_units_keys_and_one_of(app: App) -> None:
    east = app.rate("east", 10, per=60, key="customer")
    app.rate("west", 1, per=60)
    assert east.units(3).width == 3
    assert east.units(3).pace == east.pace

    @app.task(limits=[OneOf(east.units(5), "west")])
    def call(customer: str) -> None: ...

    for _ in range(2):
        for customer in ("a", "b"):
            call.submit(customer)
    call.submit("a")
    assert drain(app).succeeded == 5


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"per": 0}, "per must be from"),
        ({"per": -1}, "per must be from"),
        ({"per": 40 * 86400}, "per must be from"),
        ({"per": float("nan")}, "per must be from"),
        ({"per": "60"}, "seconds or a timedelta"),
        ({"per": True}, "seconds or a timedelta"),
        ({"per": 1, "burst": 0}, "burst must be"),
        ({"per": 1, "burst": 1.5}, "burst must be"),
        ({"per": 1, "burst": True}, "burst must be"),
        ({"per": 1, "max": -1}, "value must be from 0"),
        ({"per": 1, "key": 3}, "key must be"),
    ],
)
def test_what_is_refused(app: App, fields: dict[str, Any], says: str) -> None:
    most = fields.pop("max", 1)
    with pytest.raises(DeclarationError, match=says):
        app.rate("api", most, **fields)


def test_a_name_is_a_limit_or_a_rate(app: App) -> None:
    app.rate("api", 5, per=60)
    app.rate("api", 5, per=60)
    for other in (Limit("api", 5), Rate("api", 5, per=61), Rate("api", 5, per=60, burst=2)):
        with pytest.raises(DeclarationError, match="declared twice"):
            app.declare(other)
    app.limit("door", 1)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.rate("door", 1, per=60)


def test_equal_and_shown() -> None:
    rate = Rate("api", 5, per=60, burst=2)
    assert rate == Rate("api", 5, per=timedelta(minutes=1), burst=2)
    assert rate != Rate("api", 5, per=60)
    assert rate != Limit("api", 5)
    assert Limit("api", 5) != rate
    assert len({rate, Rate("api", 5, per=60, burst=2)}) == 1
    assert repr(rate.units(2)) == "Rate('api', 5, per=60, burst=2, units=2)"


def test_too_wide(app: App) -> None:
    api = app.rate("api", 10, per=60, burst=3)

    @app.task(limits=[api.units(4)])
    def call() -> None: ...

    with pytest.raises(TooWide, match="of which 3 may start at once"):
        call.submit()


def test_a_rate_has_no_slots(app: App) -> None:
    app.rate("api", 2, per=60)
    with pytest.raises(IsARate):
        app.slots.try_acquire("api", 2, "me", "here", 30)
    with pytest.raises(IsARate), app.slot("api", timeout=0):
        pass

    @app.task(limits=["api"])
    def call() -> None: ...

    call.submit()
    drain(app)
    status = app.slots.get_status("api")
    assert (status.limit, status.active, status.slots) == (2, 1, [])


# --- the configuration file ----------------------------------------------------------------------

FILE = """
[concurrency.rates]
api = "2/60s"
mail = "5/m"
slow = { limit = 100, per = "1h", burst = 10 }
open = "unlimited/s"
"""


def test_the_file(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(FILE)
    config = Config.load(environ={}, directory=tmp_path)
    assert config.rates == {
        "api": Rate("api", 2, per=60),
        "mail": Rate("mail", 5, per=60),
        "slow": Rate("slow", 100, per=3600, burst=10),
        "open": Rate("open", None, per=1),
    }


def test_the_file_wins_over_code_and_needs_none(url: str, tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(FILE)
    with App(url, config=tmp_path / "headgate.toml") as app:
        app.rate("mail", 1000, per=1)

        @app.task(limits=["api", "mail"])
        def call() -> None: ...

        for _ in range(9):
            call.submit()
        assert drain(app).succeeded == 2
        assert app.store.group("mail")[0].pace == Pace(60)
        assert app.store.group("mail")[0].value == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('api = "2"', "is written like"),
        ('api = "2/0s"', "per must be from"),
        ('api = "x/1s"', "is written like"),
        ("api = 5", "100/60s"),
        ("api = { limit = 5 }", "needs limit and per"),
        ("api = { limit = 5, per = 1, brust = 2 }", "unknown 'brust'"),
        ("api = { limit = 5, per = 1, burst = 0 }", "burst must be"),
        ('"a/b" = "2/1s"', "'/'"),
        ('api = "2/1s"\n[concurrency.limits]\napi = 3', "a limit or a rate, not both"),
    ],
)
def test_what_the_file_must_not_say(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "headgate.toml").write_text(f"[concurrency.rates]\n{text}\n")
    with pytest.raises(ConfigError, match=says):
        Config.load(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[concurrency.limits]\napi = 3", Rate("api", 3, per=1)),
        ('[concurrency.rates]\napi = "3/s"', Limit("api", 3)),
    ],
)
def test_a_limit_in_the_file_and_a_rate_in_code(
    url: str, tmp_path: Path, text: str, code: Limit
) -> None:
    (tmp_path / "headgate.toml").write_text(text)
    with App(url, config=tmp_path / "headgate.toml") as app:
        app.declare(code)
        with pytest.raises(DeclarationError, match="give one of them another name"):
            app.publication("worker")


def test_a_file_that_says_it_in_words() -> None:
    assert read_rate("api", " 10 / 0.5 s ") == Rate("api", 10, per=0.5)
    assert read_rate("api", {"limit": "unlimited", "per": 5}) == Rate("api", None, per=5)


# --- the decision ---------------------------------------------------------------------------------

moments = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 4)), max_size=60
)  # (ticks since the last one, units asked for)


@given(moments, st.integers(1, 12), st.integers(1, 30), st.none() | st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_no_window_holds_too_many_and_nothing_waits_in_vain(
    asked: list[tuple[int, int]], value: int, per: int, burst: int | None
) -> None:
    """Against the definition: units granted in any window. Whole numbers, so that a boundary is
    one."""
    pace = Pace(per * value, burst)  # so that the window of a burst is a whole number, too
    at_once = pace.at_once(value)
    granted: list[tuple[int, int]] = []
    now = 0
    for ticks, units in asked:
        now += ticks
        rows = [(at + pace.per, n) for at, n in granted if at + pace.per > now]
        starts = Starts(pace, value, now, rows)

        def fits(at: float, units: int = units) -> bool:
            long = sum(n for then, n in granted if then > at - pace.per)
            short = sum(n for then, n in granted if then > at - pace.window(value))
            return long + units <= value and short + units <= at_once

        assert (starts.free() >= units) == fits(now)
        opens = starts.opens(units)
        if units > at_once:
            assert opens is None
        else:
            assert opens is not None
            assert fits(opens)
            assert opens == now or not fits(opens - 0.5), "not a moment later than it must be"
        if fits(now):
            starts.add(units)
            assert starts.new == units
            granted.append((now, units))
    for at, _ in granted:
        assert sum(n for then, n in granted if at <= then < at + pace.per) <= value
        assert sum(n for then, n in granted if at <= then < at + pace.window(value)) <= at_once


def test_without_a_value_nothing_is_asked_of_it() -> None:
    with memory_app() as app:
        api = app.rate("api", None, per=60)

        @app.task(limits=[api])
        def call() -> None: ...

        for _ in range(20):
            call.submit()
        assert drain(app).succeeded == 20
        assert app.store.group("api")[0].held == 0
