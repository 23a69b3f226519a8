"""The benchmark of writers that write little works, at a tiny size: what is counted is what they start."""

from __future__ import annotations

import pytest

from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.005)

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("grpc_runs"),
    pytest.mark.needs("Linux's /proc"),
]


@pytest.mark.seed("79.9")
def test_eager_lazy_and_partial_writers_are_measured_side_by_side() -> None:
    from bench import lazy_producers

    report = lazy_producers.run(TINY)
    eager, lazy, partial = report.tables[0][1]
    assert int(eager[2].replace(",", "")) == 10 * lazy_producers.SEGMENTS
    assert 10 <= int(lazy[2]) <= 10 * lazy_producers.EVENTS
    assert int(partial[2]) == 30
    assert int(partial[1]) < int(lazy[1]) < int(eager[1])
    assert len(report.figures) == 6
    (picture,) = report.pictures
    assert [values[0] for values in picture.series.values()] == [100, 100, 100]
