"""`make compare`: its verdict on made-up ratios, and each scenario once in a small form."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from bench import compare
from bench.place import Place
from tests.postgres.server import Server


def test_nine_pairs_leave_one_out_at_each_end() -> None:
    ratios = [1.01, 0.99, 1.02, 0.98, 1.0, 1.03, 0.97, 5.0, 0.01]
    verdict = compare.judge(ratios)
    assert (verdict.ratio, verdict.low, verdict.high, verdict.pairs) == (1.0, 0.97, 1.03, 9)
    assert verdict.code == 0


def test_twenty_seven_pairs_leave_seven_out_at_each_end() -> None:
    verdict = compare.judge([n / 100 for n in range(87, 114)])
    assert (verdict.ratio, verdict.low, verdict.high) == (1.0, 0.94, 1.06)
    assert verdict.code == 2


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [
        *((0.90, 0.969, 1), (0.90, 0.97, 0), (0.96, 1.05, 0), (0.95, 1.06, 2)),
        *((0.5, 0.96, 1), (1.2, 1.5, 2), (0.0, float("inf"), 2)),
    ],
)
def test_a_side_is_slower_only_if_its_whole_interval_is(low: float, high: float, code: int) -> None:
    assert compare.Verdict(1.0, low, high, 9).code == code


def test_too_few_pairs_say_nothing() -> None:
    assert compare.judge([0.5] * 5).code == 2
    assert compare.judge([0.5] * 6).code == 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(7)
    for pairs in (9, 14, 27):
        hits = 0
        for _ in range(2000):
            verdict = compare.judge([dice.lognormvariate(0, 0.1) for _ in range(pairs)])
            hits += verdict.low <= 1 <= verdict.high
        assert hits >= 1900, pairs


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> compare.Side:
    monkeypatch.setattr(compare, "JOBS", dict.fromkeys(compare.JOBS, 400))
    return compare.Side(Path(sys.executable), "headgate")


def test_each_scenario_gives_its_figures(tmp_path: Path, side: compare.Side) -> None:
    figures: dict[str, float] = {}
    for scenario in compare.JOBS:
        figures |= side.measure(Place(tmp_path), scenario)
    assert set(figures) == {*compare.JOBS, "submit_many", "short-jobs, by CPU"}
    assert min(figures.values()) > 0


def test_a_drain_on_postgresql(tmp_path: Path, side: compare.Side, postgres: Server) -> None:
    assert side.measure(Place(tmp_path, postgres), "drain")["drain"] > 0
