"""Replies find their flow and a pool keeps its maximum, with closings and cuts at random: the soak, bounded."""

import pytest

from tests.looped import looped
from tests.soak.dispatch import run_seed

REPLIES = 8_000


@pytest.mark.seed("36.12")
@looped("seed", range(4))
async def test_no_reply_reaches_a_wrong_flow_and_no_pool_is_above_its_maximum(seed: int) -> None:
    found = await run_seed(seed, REPLIES)
    assert (found.wrong, found.lost_again) == (0, 0)
    assert 1 <= found.most <= found.maximum
    assert found.replies >= REPLIES
    assert found.closed > 0
