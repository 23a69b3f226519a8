"""A store that is killed under load keeps what it acknowledged; the long run is in `make soak`."""

import shutil
from pathlib import Path

import pytest

from tests.soak.killed import Killing


@pytest.mark.timeout(600)
async def test_nothing_acknowledged_is_lost_when_the_store_is_killed(grpc_runs: None, tmp_path: Path) -> None:
    killing = Killing(tmp_path / "data", seed=5, actors=4, longest_s=0.5)
    rounds = 0
    # On a machine that is busy elsewhere, a round may end before anything is acknowledged.
    while rounds < 4 or (rounds < 20 and not sum(each.appends for each in killing.actors)):
        await killing.round()
        rounds += 1
    assert killing.kills >= 3
    assert sum(each.appends for each in killing.actors) > 0


@pytest.mark.timeout(600)
async def test_the_check_finds_what_an_older_directory_lacks(grpc_runs: None, tmp_path: Path) -> None:
    killing = Killing(tmp_path / "data", seed=6, actors=2, longest_s=0.3)
    await killing.round()
    shutil.copytree(tmp_path / "data", tmp_path / "older")
    appends = sum(each.appends for each in killing.actors)
    while sum(each.appends for each in killing.actors) == appends:
        await killing.round()
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "older", tmp_path / "data")
    with pytest.raises(AssertionError):
        await killing.round()
