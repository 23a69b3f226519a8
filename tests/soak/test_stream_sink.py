"""Tasks and drivers of the stream sink are killed, one at each point that matters; the long run is in `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from segstore.testing import ServerThread
from tests.soak.judged_runs import alarms_in
from tests.soak.stream_sink import POINTS, Nursery, Outcome, run_seed

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.mark.long
def test_every_point_is_survived_with_each_row_once(tmp_path: Path) -> None:
    with ServerThread() as servers, Nursery() as nursery:
        server = servers.serve(stores=2, containers=4, record=tmp_path / "run.wtrace")
        done = run_seed(server, nursery, 0, tmp_path)
    assert (done.wrong, done.left, alarms_in(tmp_path / "run.wtrace")) == ([], [], [])
    assert set(POINTS) <= done.did.keys()
    assert done.rows > 100


def test_the_comparison_notices_what_is_lost_twice_or_out_of_order() -> None:
    batches = [[[("a", "k"), ("b", "k")], [("c", "j"), ("d", "k")]]]
    for found, wrong in (
        ("abcd", []),
        ("cabd", []),
        ("abc", ["k"]),
        ("abcdd", ["k"]),
        ("bacd", ["k"]),
        ("abcde", [None]),
    ):
        outcome = Outcome(0)
        outcome.compare(batches, list(found))
        assert outcome.wrong == wrong
