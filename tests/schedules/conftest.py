"""The stores and the clock in hand are those of the conformance suite."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Rig, pytest_generate_tests, rig
from tests.schedules.desk import Desk

__all__ = ["pytest_generate_tests", "rig"]


@pytest.fixture
def desk(rig: Rig) -> Desk:
    return Desk(rig)
