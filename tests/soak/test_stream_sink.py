"""Tasks and drivers of the stream sink are killed, one at each point that matters; the long run is in `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from segstore.testing import ServerThread
from tests.soak.stream_sink import POINTS, Nursery, Outcome, run_seed

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.mark.long
def test_every_point_is_survived_with_each_row_once(tmp_path: Path) -> None:
    with ServerThread() as servers, Nursery() as nursery:
        done = run_seed(servers.serve(stores=2, containers=4), nursery, 0, tmp_path)
    assert (done.lost, done.doubled, done.disordered, done.left) == (0, 0, 0, 0)
    assert set(POINTS) <= done.did.keys()
    assert done.rows > 100


def test_the_comparison_notices_what_is_lost_twice_or_out_of_order() -> None:
    batches = [[[("a", "k"), ("b", "k")], [("c", "j"), ("d", "k")]]]
    for found, wrong in (
        (["a", "b", "c", "d"], (0, 0, 0)),
        (["c", "a", "b", "d"], (0, 0, 0)),
        (["a", "b", "c"], (1, 0, 0)),
        (["a", "b", "c", "d", "d"], (0, 1, 0)),
        (["b", "a", "c", "d"], (0, 0, 1)),
        (["a", "b", "c", "d", "e"], (0, 1, 0)),
    ):
        outcome = Outcome(0)
        outcome.compare(batches, found)
        assert (outcome.lost, outcome.doubled, outcome.disordered) == wrong
        assert outcome.good is (wrong == (0, 0, 0))
