"""The stores and the clock in hand are those of the conformance suite."""

from __future__ import annotations

from tests.conformance.conftest import pytest_generate_tests, rig

__all__ = ["pytest_generate_tests", "rig"]
