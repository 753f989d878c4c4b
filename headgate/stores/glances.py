"""Looks that may be a little old: at what is shown to people, a store need not make sure each time.

A page asks a dozen questions. Where each costs a request, one look does for all of them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

AGE: ContextVar[float] = ContextVar("headgate_glance_age", default=0.0)
TEXTS: ContextVar[bool] = ContextVar("headgate_glance_texts", default=True)


@contextmanager
def glancing(age: float, *, texts: bool = True) -> Generator[None]:
    """What is read here may be so many seconds old. Without `texts`, lists of jobs are without
    the arguments and results that are so large that each is kept apart."""
    was_age, had_texts = AGE.set(age), TEXTS.set(texts)
    try:
        yield
    finally:
        AGE.reset(was_age)
        TEXTS.reset(had_texts)
