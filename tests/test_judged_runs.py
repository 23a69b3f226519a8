"""Whole runs of the client against a cluster are judged: none breaks a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.judged_runs import alarms, alarms_in, recorded_run

pytestmark = pytest.mark.usefixtures("grpc_runs")


def test_traces_of_the_reference_break_no_rule() -> None:
    fixtures = Path(__file__).parent.parent / "fixtures"
    for trace in sorted((*fixtures.glob("reference/*.jsonl"), *fixtures.glob("traces/*.jsonl"))):
        assert alarms_in(trace) == [], trace


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 30)]


@pytest.mark.parametrize("seed", [*range(5, 10), *LONG])
async def test_a_right_run_breaks_no_rule_whatever_fails(seed: int) -> None:
    """The first five runs use byte streams, a table, a stream and a group."""
    assert alarms(await recorded_run(seed, faults=seed % 4)) == []
