"""Taps for tests: those that forward bytes only, and those that decode them."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[False, True], ids=["plain", "watched"])
def watched(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
