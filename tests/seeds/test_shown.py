"""What the designs ask to be shown, 36, 79.9, 57.10, 601.8, and 43.15: the benchmarks work, at a tiny size.

The figures of full runs are in docs/project/performance.md.
"""

import pytest

from bench import client, designs
from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.005)

pytestmark = [pytest.mark.usefixtures("grpc_runs"), pytest.mark.needs("Linux's /proc"), pytest.mark.timeout(600)]


@pytest.mark.seed("36.show")
@pytest.mark.seed("36.10")
def test_pooling_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WINDOWS", client.WINDOWS[:1])
    monkeypatch.setattr(client, "SEGMENTS", (10,))
    sockets, speed, policies = client.pooling(TINY).tables
    assert list(sockets[1]) == [["10", "10", "10"]]
    assert len(speed[1]) == 1
    assert [row[0] for row in policies[1]] == ["fewest_flows", "least_busy"]


@pytest.mark.seed("601.8")
def test_a_node_that_never_answers_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(designs, "TIMEOUTS_MS", (100.0,))
    timed, off = designs.setup_timeout(TINY).tables[0][1]
    assert float(timed[1]) > 0
    assert off[1].startswith("not served")


@pytest.mark.seed("79.9")
def test_eager_lazy_and_partial_writers_are_measured_side_by_side() -> None:
    eager, lazy, partial = designs.lazy_producers(TINY).tables[0][1]
    assert int(eager[2].replace(",", "")) == 10 * designs.SEGMENTS
    assert 10 <= int(lazy[2]) <= 10 * designs.EVENTS
    assert int(partial[2]) == 30
    assert int(partial[1]) < int(lazy[1]) < int(eager[1])


@pytest.mark.seed("57.10")
def test_both_policies_are_measured_with_the_containers_that_change_owner_and_the_write_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(designs, "QUICK_SESSIONS_MS", (300.0,))
    ((_, rows),) = designs.ownership(TINY).tables
    assert {event: share for event, _, share, _ in rows} == {
        "reconnect, ended by the service": "0%",
        "reconnect, line cut": "100%",
        "reconnect, store gone": "100%",
        "shutdown, ended by the service": "100%",
        "shutdown, line cut": "100%",
        "shutdown, store gone": "100%",
    }
    assert all(float(gap_s) > 0 for *_, gap_s in rows)


@pytest.mark.seed("43.15")
def test_large_events_and_the_same_bytes_as_small_ones_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(designs, "SIZES_MIB", (24,))
    report = designs.large_events(Effort(rounds=1, slice_s=0.001, scale=0.001))
    (figure,) = report.figures
    assert (figure.goal, figure.at_most) == (0.5, False)
    assert figure.value > 0
    (row,) = report.tables[0][1]
    assert row[0] == "9 MiB"  # a smaller event would not be large
    assert all(float(cell.replace(",", "")) > 0 for cell in row[1:])
