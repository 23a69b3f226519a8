"""Every event once and in order through cuts, scaling, restarts and moves: some seeds of the soak, bounded."""

from __future__ import annotations

import pytest

from tests.looped import looped
from tests.soak.exactly_once import Outcome, run_seed

EVENTS = 1_500


@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("seed", range(4))
async def test_no_event_is_lost_doubled_or_out_of_order_under_a_seeded_schedule(seed: int) -> None:
    outcome = await run_seed(seed, EVENTS)
    assert (outcome.lost, outcome.doubled, outcome.disordered) == (0, 0, 0)
    assert outcome.events == EVENTS
    assert outcome.did["lost connections"] > 0


@looped(
    ("read", "found"),
    [
        ({"a": [0, 1, 2], "b": [0]}, (0, 0, 0)),
        ({"a": [0, 2], "b": [0]}, (1, 0, 0)),
        ({"a": [0, 1, 1, 2], "b": [0]}, (0, 1, 0)),
        ({"a": [0, 2, 1], "b": [0]}, (0, 0, 1)),
        ({"a": [0, 1, 2]}, (1, 0, 0)),
        ({"a": [0, 1, 2], "b": [0], "c": [0]}, (0, 1, 0)),
        ({"a": [0, 1, 3], "b": [0]}, (1, 0, 0)),
    ],
)
def test_what_is_lost_doubled_or_out_of_order_is_counted(
    read: dict[str, list[int]], found: tuple[int, int, int]
) -> None:
    outcome = Outcome(0)
    outcome.compare({"a": 3, "b": 1}, read)
    assert (outcome.lost, outcome.doubled, outcome.disordered) == found
    assert outcome.good == (found == (0, 0, 0))
