"""What a controller asks of its stores is in the recording, as it would have been on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.controller import ScalingPolicy
from segstore.server.recording import WITH_ROLE
from segstore.server.replay import of_clients, read_script
from segstore.server.segments import LocalSegments, RecordedSegments
from segstore.traces import FileRecorder, TraceFile, drive, report
from segstore.wire.names import transaction_name
from segstore.wire.trace import Record

SEGMENT = "scope/stream/0.#epoch.0"
PLAIN = ScalingPolicy()


@contextlib.asynccontextmanager
async def controlled(recorder: FileRecorder | None, stores: int = 1) -> AsyncIterator[RecordedSegments]:
    """What a controller would ask, without gRPC."""
    mock = MockCluster(stores=stores)
    await mock.start(with_controller=False)
    try:
        segments = RecordedSegments(LocalSegments(mock.stores, "127.0.0.1"), lambda: recorder)
        yield segments
        segments.close()
        segments.close()
    finally:
        await mock.stop()


def recorded(path: Path) -> list[Record]:
    with TraceFile(path) as trace:
        return list(trace.records())


async def asked(path: Path) -> list[Record]:
    """The records of one call of each kind."""
    recorder = FileRecorder(path, recorder="test", wire_version=17)
    async with controlled(recorder) as segments:
        transaction = transaction_name(SEGMENT, UUID(int=7))
        gone = transaction_name(SEGMENT, UUID(int=8))
        for name in (SEGMENT, transaction):
            await segments.create_segment(name, PLAIN, 0)
        await segments.update_policy(SEGMENT, ScalingPolicy(target_rate=5))
        await segments.merge_segments(SEGMENT, [transaction, gone])
        for number in (1, 2):
            await segments.append_event(SEGMENT, number, b"12345678")
        await segments.truncate_segment(SEGMENT, 8)
        await segments.truncate_segment(SEGMENT, 4)  # changes nothing
        assert await segments.locate_offset(SEGMENT, 16) == 16
        assert await segments.seal_segment(SEGMENT) == 16
        await segments.delete_segment(SEGMENT)
        await segments.create_table("scope/table_kvtable/0.#epoch.0", 16, 0)
        assert await segments.count_entries("scope/table_kvtable/0.#epoch.0") == 0
        await segments.delete_table("scope/table_kvtable/0.#epoch.0")
        assert await segments.load(SEGMENT) is None
    recorder.close()
    return recorded(path)


async def test_another_store_answers_what_the_controller_asked_with_the_same_bytes(tmp_path: Path) -> None:
    records = await asked(tmp_path / "run.wtrace")
    assert [each.type_name for each in read_script(records)] == [
        "HELLO",
        "CREATE_SEGMENT",
        "CREATE_SEGMENT",
        "UPDATE_SEGMENT_POLICY",
        "MERGE_SEGMENTS_BATCH",
        "SETUP_APPEND",
        "APPEND_BLOCK_END",
        "SETUP_APPEND",
        "APPEND_BLOCK_END",
        "TRUNCATE_SEGMENT",
        "SEAL_SEGMENT",
        "DELETE_SEGMENT",
        "CREATE_TABLE_SEGMENT",
        "DELETE_TABLE_SEGMENT",
    ]
    async with MockSegmentStore() as mock:
        found = await drive(records, mock.host, mock.port, all_differences=True)
    assert [line for difference in found.differences for line in report(difference)] == []


async def test_each_store_has_a_connection_of_its_own_and_clients_have_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    recorder = FileRecorder(path, recorder="test", wire_version=17)
    async with controlled(recorder, stores=2) as segments:
        names = [f"scope/stream{number}/0.#epoch.0" for number in range(10)]
        assert len({segments.owner_of(name) for name in names}) == 2
        for name in names:
            await segments.create_segment(name, PLAIN, 0)
    recorder.close()
    records = recorded(path)
    assert {record.connection for record in records} == {WITH_ROLE + 1, WITH_ROLE + 2}
    assert list(of_clients(records)) == []


async def test_without_a_recorder_requests_are_executed_and_not_recorded() -> None:
    async with controlled(None) as segments:
        await segments.create_segment(SEGMENT, PLAIN, 0)
        await segments.merge_segments(SEGMENT, [])
        await segments.append_event(SEGMENT, 1, b"event")
        assert await segments.segment_length(SEGMENT) == 5
