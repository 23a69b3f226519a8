"""Every event once and in order through cuts, scaling, restarts and moves: some seeds of the soak, bounded."""

import pytest

from tests.soak.exactly_once import run_seed

EVENTS = 1_500


@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("seed", range(4))
async def test_no_event_is_lost_doubled_or_out_of_order_under_a_seeded_schedule(seed: int) -> None:
    outcome = await run_seed(seed, EVENTS)
    assert (outcome.wrong, outcome.alarms) == ([], [])
    assert outcome.events == EVENTS
    assert outcome.did["lost connections"] > 0
