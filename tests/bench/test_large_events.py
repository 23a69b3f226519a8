"""The benchmark of large events works, at a tiny size: that each size has a figure, and that both contenders ran."""

from __future__ import annotations

import pytest

from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.001)


@pytest.mark.seed("43.15")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.timeout(600)
@pytest.mark.needs("Linux's /proc")
def test_large_events_and_the_same_bytes_as_small_ones_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import large_events

    assert large_events.SIZES_MIB == (24, 64, 256)
    monkeypatch.setattr(large_events, "SIZES_MIB", (24,))
    report = large_events.run(TINY)
    (figure,) = report.figures
    assert (figure.goal, figure.at_most) == (0.5, False)
    assert figure.value > 0
    (row,) = report.tables[0][1]
    assert row[0] == "9 MiB"  # never so small that it would not be large
    assert all(float(each.replace(",", "")) > 0 for each in row[1:])
