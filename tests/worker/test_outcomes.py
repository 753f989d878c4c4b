"""The decision how an attempt ends: pure, and tested as such."""

from __future__ import annotations

import pytest

from headgate.errors import Cancel, Retry, Snooze
from headgate.jobs import Failure, NewJob
from headgate.worker.outcome import (
    Allowance,
    Ending,
    Stop,
    ending_of,
    failure_of,
    finish,
)

NONE_LEFT = Allowance(errors=2, retries=2)
ONE_LEFT = Allowance(errors=1, retries=2, delay=lambda: 9.0)
FAILURE = Failure("ValueError", "no")
RAISED = Ending("raised", failure=FAILURE, delay=4.0)
CHILD = NewJob("child")


@pytest.mark.parametrize(
    ("ending", "stop", "allowance", "outcome", "reason"),
    [
        (Ending("returned", result="1"), None, NONE_LEFT, "succeeded", ""),
        (RAISED, None, ONE_LEFT, "retry", "error"),
        (RAISED, None, NONE_LEFT, "failed", "error"),
        (Ending("crashed", failure=FAILURE), None, ONE_LEFT, "retry", "crashed"),
        (Ending("crashed", failure=FAILURE), None, NONE_LEFT, "failed", "crashed"),
        (Ending("refused", failure=FAILURE, reason="result"), None, ONE_LEFT, "failed", "result"),
        (Ending("retry", delay=1.0), None, ONE_LEFT, "retry", "retry"),
        (Ending("retry", delay=1.0), None, NONE_LEFT, "failed", "retry"),
        (Ending("snooze", delay=1.0), None, NONE_LEFT, "snoozed", ""),
        (Ending("cancel", reason="paid"), None, NONE_LEFT, "cancelled", "paid"),
        # told to stop
        (Ending("stopped"), Stop("timeout", "late"), NONE_LEFT, "failed", "timeout"),
        (Ending("stopped"), Stop("timeout", "late"), ONE_LEFT, "retry", "timeout"),
        (Ending("returned"), Stop("timeout", "late"), NONE_LEFT, "failed", "timeout"),
        (RAISED, Stop("cancel", "why"), ONE_LEFT, "cancelled", "why"),
        (Ending("cancel", reason="x"), Stop("cancel", "why"), ONE_LEFT, "cancelled", "why"),
        (Ending("returned"), Stop("cancel", "why"), ONE_LEFT, "succeeded", ""),
        (RAISED, Stop("shutdown", "stopping"), NONE_LEFT, "interrupted", "shutdown"),
        (Ending("stopped"), Stop("lease", "lost"), NONE_LEFT, "interrupted", "lease"),
        (Ending("returned"), Stop("shutdown", "stopping"), NONE_LEFT, "succeeded", ""),
        # never begun
        (Ending("unstarted"), Stop("shutdown", "s"), NONE_LEFT, "returned", "shutdown"),
        (Ending("unstarted"), Stop("cancel", "why"), NONE_LEFT, "cancelled", "why"),
    ],
)
def test_outcome(ending: Ending, stop: Stop, allowance: Allowance, outcome, reason) -> None:
    told = finish(7, ending, stop, lambda: allowance, (CHILD,))
    assert told is not None
    assert (told.token, told.outcome, told.reason) == (7, outcome, reason)
    assert told.followups == ((CHILD,) if outcome == "succeeded" else ())


def test_a_lost_attempt_says_nothing() -> None:
    assert finish(7, Ending("returned"), Stop("stale", ""), lambda: ONE_LEFT) is None


def test_delays() -> None:
    def delay(ending: Ending, stop: Stop | None = None) -> float:
        told = finish(7, ending, stop, lambda: ONE_LEFT)
        assert told is not None
        return told.delay

    assert delay(RAISED) == 4.0
    assert delay(Ending("crashed")) == 9.0
    assert delay(ending_of(Retry(delay=5), 4.0)) == 5.0
    assert delay(ending_of(Retry(), 4.0)) == 4.0
    assert delay(ending_of(Snooze(60), None)) == 60.0
    assert delay(ending_of(Snooze(float("nan")), None)) == 1.0
    assert delay(ending_of(Snooze(-5), None)) == 0.0
    assert ending_of(Cancel("x"), None).reason == "x"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("\udcff\0" * 10), KeyError("x" * 100_000), SystemExit()]
)
def test_any_exception_becomes_texts_that_can_be_stored(error: BaseException) -> None:
    failure = failure_of(error)
    for text in (failure.type, failure.message, failure.traceback):
        text.encode()
        assert "\0" not in text
        assert len(text) < 40_000
