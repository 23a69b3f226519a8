"""Nothing acknowledged is lost, doubled or moved while sessions expire and containers change hands (57.7, 57.8)."""

import os

import pytest

from tests.server.coordination.histories import NoFence, play

HISTORIES = int(os.environ.get("SEGSTORE_HISTORIES", "40"))
"""How many are played; `make soak` plays thousands."""


@pytest.mark.seed("57.7")
@pytest.mark.seed("57.8")
@pytest.mark.timeout(60 + HISTORIES)
def test_no_history_loses_doubles_or_moves_what_was_acknowledged() -> None:
    broken = {seed: rules for seed in range(HISTORIES) if (rules := play(seed))}
    assert broken == {}


@pytest.mark.seed("57.7")
def test_the_checker_notices_a_log_that_does_not_fence() -> None:
    found = [seed for seed in range(8, 32) if play(seed, NoFence)]
    assert len(found) >= 3
