"""A store that is killed under load keeps what it acknowledged; the long run is in `make soak`."""

from pathlib import Path

import pytest

from tests.soak.killed import Killing


@pytest.mark.timeout(600)
async def test_nothing_acknowledged_is_lost_when_the_store_is_killed(grpc_runs: None, tmp_path: Path) -> None:
    killing = Killing(tmp_path / "data", seed=5, actors=4, longest_s=0.5)
    rounds = 0
    # On a machine that is busy elsewhere, a round may end before anything is acknowledged.
    while rounds < 3 or (rounds < 20 and not sum(actor.appends for actor in killing.actors)):
        await killing.round()
        rounds += 1
    assert killing.kills >= 2
    assert sum(each.appends for each in killing.actors) > 0
