"""Durations while the system's clock is set."""

import asyncio
import time

import pytest

from segstore.client import TransactionStatus, connect
from segstore.server.clock import LoopClock, SteadyTime
from segstore.server.cluster import MockCluster
from segstore.server.controller import ControllerConfig

pytestmark = pytest.mark.usefixtures("grpc_runs")

HOUR_S = 3600


def set_clock(monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    """Not for `time.time`, by which gRPC computes deadlines that it compares with the system's clock itself."""
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + by_s * 1_000_000_000)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("clock", [LoopClock, SteadyTime])
def test_steady_time_begins_with_the_systems_and_goes_on_when_that_is_set(
    clock: type[SteadyTime], by_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_s = time.time()
    steady = clock()
    set_clock(monkeypatch, by_s)
    assert before_s - 60 < steady.now_s() < before_s + 600
    assert before_s - 60 < steady.now_ms() / 1000 < before_s + 600


async def test_a_commit_ends_and_a_lease_lasts_while_the_systems_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ControllerConfig(commit_delay_ms=50)
    async with (
        MockCluster(watched=False, controller=config) as mock,
        connect(f"tcp://{mock.controller_uri}") as pravega,
    ):
        controller = pravega.controller
        await controller.create_scope("a")
        await controller.create_stream("a", "s", segments=1)
        committed, _ = await controller.create_transaction("a", "s", 60_000)
        open_, _ = await controller.create_transaction("a", "s", 60_000)
        await controller.commit_transaction("a", "s", committed)
        set_clock(monkeypatch, -HOUR_S)
        async with asyncio.timeout(60):
            while await controller.transaction_status("a", "s", committed) is not TransactionStatus.COMMITTED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        set_clock(monkeypatch, 3 * HOUR_S)
        await controller.create_transaction("a", "s", 60_000)
        assert await controller.transaction_status("a", "s", open_) is TransactionStatus.OPEN
        assert await controller.ping_transaction("a", "s", open_, 60_000) == "OK"
