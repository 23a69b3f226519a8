"""What the designs ask to be shown, 36, 79.9, 57.10, 601.8, and 43.15: the benchmarks work, at a tiny size.

The figures, tables and pictures of full runs are in docs/project/performance.md.
"""

from __future__ import annotations

import pytest

import tests.bench.conftest  # noqa: F401  makes `bench`, which is not installed, importable
from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.005)

pytestmark = pytest.mark.usefixtures("grpc_runs")
linux = pytest.mark.needs("Linux's /proc")


@linux
@pytest.mark.seed("36.show")
def test_pooling_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import pooling

    monkeypatch.setattr(pooling, "LOADS", pooling.LOADS[:1])
    report = pooling.run(TINY)
    sockets, speed, policies = report.tables
    assert list(sockets[1]) == [("1", "1", "1"), ("10", "10", "10")]
    assert len(speed[1]) == 1
    assert [row[0] for row in policies[1]] == ["fewest_flows", "least_busy"]
    assert [picture.name for picture in report.pictures] == ["pooling-sockets", "pooling-speed", "pooling-policies"]


@linux
@pytest.mark.seed("601.8")
def test_a_node_that_never_answers_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import setup_timeout

    monkeypatch.setattr(setup_timeout, "TIMEOUTS_MS", (100.0,))
    report = setup_timeout.run(TINY)
    timed, off = report.tables[0][1]
    assert float(timed[1]) > 0
    assert off[1].startswith("not served")


@linux
@pytest.mark.seed("79.9")
@pytest.mark.timeout(600)
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


@pytest.mark.seed("57.10")
@pytest.mark.timeout(600)
def test_both_policies_are_measured_with_the_containers_that_change_owner_and_the_write_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench import ownership

    monkeypatch.setattr(ownership, "QUICK_TIMEOUTS_MS", (300.0,))
    report = ownership.run(TINY)
    ((_, rows),) = report.tables
    changed = {what: of_the_store for what, _, of_the_store, *_ in rows}
    assert changed == {
        "reconnect, ended by the service": "0%",
        "reconnect, line cut": "100%",
        "reconnect, store gone": "100%",
        "shutdown, ended by the service": "100%",
        "shutdown, line cut": "100%",
        "shutdown, store gone": "100%",
    }
    (picture,) = report.pictures
    assert all(gap > 0 for gaps in picture.series.values() for gap in gaps)


@pytest.mark.seed("43.15")
@pytest.mark.timeout(600)
@linux
def test_large_events_and_the_same_bytes_as_small_ones_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import large_events

    assert large_events.SIZES_MIB == (24, 64, 256)
    monkeypatch.setattr(large_events, "SIZES_MIB", (24,))
    report = large_events.run(Effort(rounds=1, slice_s=0.001, scale=0.001))
    (figure,) = report.figures
    assert (figure.goal, figure.at_most) == (0.5, False)
    assert figure.value > 0
    (row,) = report.tables[0][1]
    assert row[0] == "9 MiB"  # never so small that it would not be large
    assert all(float(each.replace(",", "")) > 0 for each in row[1:])
