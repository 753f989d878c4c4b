"""Answers of the server that nobody hears."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

from headgate.errors import StoreInDoubt
from headgate.stores.postgres.database import Database


@contextmanager
def lost_answer(
    method: Literal["call_two", "value"] = "call_two", *, applied: bool = True
) -> Iterator[None]:
    """The wire is cut in the round trip inside: after the server has done it, or before."""
    real = getattr(Database, method)

    def lost(self: Database, *args: Any) -> Any:
        if applied:
            real(self, *args)
        raise StoreInDoubt("the wire was cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, method, lost)
        with pytest.raises(StoreInDoubt):
            yield
