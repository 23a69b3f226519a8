"""The benchmark of expired sessions works, at a tiny size: who keeps its containers; writing stops and goes on."""

from __future__ import annotations

import pytest

from bench.harness import Effort

TINY = Effort(rounds=1, slice_s=0.001, scale=0.005)


@pytest.mark.seed("57.10")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("grpc_runs")
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
