"""The benchmarks that run `segstore serve` and clients beside it work, at tiny sizes."""

from __future__ import annotations

import pytest

from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.005)

pytestmark = pytest.mark.timeout(120)
linux = pytest.mark.needs("Linux's /proc")


@linux
@pytest.mark.needs("pravega, the official client")
def test_the_official_client_is_measured() -> None:
    from bench import official_client

    report = official_client.run(TINY)
    assert [row[0] for row in report.tables[0][1]] == [
        f"{doing} events of {size} bytes" for size in ("100", "10,000") for doing in ("writing", "reading")
    ]
    assert len(report.figures) == 5
    assert all(figure.value > 0 for figure in report.figures)


@linux
def test_capacity_is_measured() -> None:
    from bench import capacity

    memory, latency = capacity.run(TINY).tables
    assert [int(row[1].replace(",", "")) for row in memory[1]] == [500, 1000, 100]
    assert len(latency[1]) == len(capacity.LOADS)
    assert all(0 < float(row[3]) <= float(row[4]) <= float(row[5]) for row in latency[1])


@linux
@pytest.mark.needs("pravega, the official client")
@pytest.mark.usefixtures("grpc_runs")
def test_this_client_is_measured_beside_the_official_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import client

    monkeypatch.setattr(client, "LOADS", ((100, 1, 1_000, 0.5), (10_000, 20, 1_000, None)))
    report = client.run(TINY)
    rates, latency, memory = report.tables
    assert [row[0] for row in rates[1]] == [
        "writing 100 bytes, 1 writer",
        "reading 100 bytes",
        "writing 10,000 bytes, 20 writers",
    ]
    assert [row[0] for row in latency[1]] == ["p50", "p99", "CPU time of the client"]
    assert memory[1][0][0] == "100"
    assert all(figure.value > 0 for figure in report.figures)
