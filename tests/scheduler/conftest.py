from __future__ import annotations

import pytest

from tests.scheduler.stage import Stage
from tests.worker.site import Site, site

__all__ = ["site"]


@pytest.fixture
def stage(site: Site) -> Stage:
    return Stage(site)
