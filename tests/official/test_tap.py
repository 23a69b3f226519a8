"""The official client through a tap: it never hears of another address, and what breaks on the way is not felt."""

from pathlib import Path

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.replay import TraceServer, of_clients
from segstore.tap import Tap
from segstore.traces import TraceFile
from segstore.wire.trace import CONTROLLER, RecordKind
from tests.official.client import ClientCrashed, run
from tests.official.support import MARKS, uri

pytestmark = MARKS


async def test_events_come_back_through_a_tap_that_records_them(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    async with MockCluster(2) as cluster, Tap(uri(cluster), record=path, watched=False) as tap:
        what = {"scope": "a", "stream": "s", "segments": 4, "keys": 20, "per_key": 50}
        found = await run(f"tcp://{tap.controller_uri}", "events.write_and_read", **what)
        assert found == {"events": 1_000, "wrong": [], "problem": ""}
        assert set(tap.addresses) == {store.address for store in cluster.stores}
        carried = sum(store.service.counters.connections for store in cluster.stores)
    with TraceFile(path) as trace:
        kinds = [record.kind for record in trace.records()]
    assert kinds.count(RecordKind.OPEN) == kinds.count(RecordKind.CLOSE) == carried
    assert RecordKind.BYTES not in kinds


async def test_a_recording_alone_answers_the_client_that_writes_and_reads(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    what = {"scope": "a", "stream": "s", "segments": 1, "keys": 3, "per_key": 20}
    async with MockCluster(2) as cluster, Tap(uri(cluster), record=path) as tap:
        recorded = await run(f"tcp://{tap.controller_uri}", "events.write_and_read", **what)
    with TraceFile(path) as trace:
        records = list(trace.records())
    async with TraceServer(of_clients(records), mode="match") as server:
        controller = await server.start_controller(records)
        assert await run(f"tcp://{controller}", "events.write_and_read", **what) == recorded
        # A reader asks by the clock for what its group has changed; calls do not depend on it.
        assert [problem for problem in server.problems if problem.connection == CONTROLLER] == []
        calls = server.calls
        assert {"createScope", "createStream", "getURI", "getCurrentSegments"} <= {
            step.request.rpc for step in calls.steps if step.used
        }


async def test_the_deadline_of_a_recording_ends_a_client_that_deviates(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    async with MockCluster(1) as cluster, Tap(uri(cluster), record=path) as tap:
        await run(f"tcp://{tap.controller_uri}", "events.sizes", sizes=[10])
    with TraceFile(path) as trace:
        records = list(trace.records())
    async with TraceServer(of_clients(records), mode="match", timeout_s=3) as server:
        controller = await server.start_controller(records)
        with pytest.raises(ClientCrashed, match="RecvError"):
            await run(f"tcp://{controller}", "events.sizes", sizes=[11])
        assert server.failure == "the trace was still answering clients after 3 s"


async def test_acknowledgements_that_never_come_do_not_double_events() -> None:
    async with MockCluster(2) as cluster, Tap(uri(cluster)) as tap:
        tap.faults.add("type = APPEND_BLOCK_END", nth=(2, 5, 9), do="close after", name="lost ack")
        what = {"scope": "a", "stream": "s", "segments": 2, "keys": 10, "per_key": 100}
        found = await run(f"tcp://{tap.controller_uri}", "events.write_and_read", **what)
        assert found == {"events": 1_000, "wrong": [], "problem": ""}
        assert "lost ack" in {decision.rule for decision in tap.faults.decisions}
