"""Requests of a controller to a store in its process: answered as over the wire, and recorded as on the wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import NobodyOwns, ScalingPolicy, SegmentAdmin, SegmentStoreFailed
from segstore.server.controller.segment_admin import CONTROLLER_WRITER, Load
from segstore.server.recording import WITH_ROLE
from segstore.server.replay import of_clients
from segstore.server.segments import LocalSegments, RemoteSegments
from segstore.traces import FileRecorder, TraceFile
from segstore.wire import WIRE_VERSION
from segstore.wire.names import transaction_name
from segstore.wire.trace import Metadata, Record
from tests.server.segments.test_remote import OneOwner

SEGMENT = "scope/stream/0.#epoch.0"
TRANSACTION = transaction_name(SEGMENT, UUID(int=7))
TABLE = "scope/table_kvtable/0.#epoch.0"
PLAIN = ScalingPolicy()


@pytest.fixture(params=["local", "remote"])
async def segments(request: pytest.FixtureRequest) -> AsyncIterator[SegmentAdmin]:
    """Each way to ask one store."""
    mock = MockCluster(stores=1)
    await mock.start(with_controller=False)
    local = LocalSegments(mock.stores, "127.0.0.1")
    remote = RemoteSegments(
        OneOwner(local.owner_of(SEGMENT)), mock.settings.store.containers, token=lambda _: "", wire_version=WIRE_VERSION
    )
    yield {"local": local, "remote": remote}[request.param]
    await remote.aclose()
    await mock.stop()


async def one_store(**settings: Any) -> MockCluster:
    mock = MockCluster(**settings)
    await mock.start(with_controller=False)
    return mock


async def test_every_request_can_be_made_twice(segments: SegmentAdmin) -> None:
    for _ in range(2):
        await segments.create_segment(SEGMENT, PLAIN, 0)
        await segments.create_segment(TRANSACTION, PLAIN, 0)
        await segments.update_policy(SEGMENT, ScalingPolicy(target_rate=5))
        await segments.create_table(TABLE, 16, 0)
    for number in (1, 1, 2):
        await segments.append_event(TRANSACTION, number, b"%08d" % number)
    for _ in range(2):
        assert await segments.seal_segment(TRANSACTION) == 16
    for _ in range(2):
        await segments.merge_segments(SEGMENT, [TRANSACTION])
        assert await segments.segment_length(SEGMENT) == 16
        await segments.truncate_segment(SEGMENT, 8)
    await segments.append_event(SEGMENT, 1, b"12345678")
    assert await segments.load(SEGMENT) == Load(3, 24)
    for _ in range(2):
        assert await segments.seal_segment(SEGMENT) == 24
        await segments.update_policy(SEGMENT, PLAIN)
    for _ in range(2):
        await segments.delete_segment(SEGMENT)
        await segments.delete_table(TABLE)
        assert await segments.load(SEGMENT) is None


async def test_what_stores_hold_is_asked_of_their_owner(segments: SegmentAdmin) -> None:
    await segments.create_segment(SEGMENT, PLAIN, 0)
    assert await segments.attribute(SEGMENT, UUID(int=9)) is None
    await segments.append_events(SEGMENT, UUID(int=9), [b"one", b"two"])
    assert await segments.attribute(SEGMENT, UUID(int=9)) == 2
    assert await segments.locate_offset(SEGMENT, 1) == 6
    await segments.create_table(TABLE, 0, 0)
    assert await segments.read_entries(TABLE, 10) == ([], b"")
    await segments.update_table(TABLE, {b"key %d" % number: b"value" for number in range(30)})
    assert await segments.count_entries(TABLE) == 30
    keys, token = set(), b""
    while True:
        entries, token = await segments.read_entries(TABLE, 7, token)
        keys |= {bytes(entry.key.data) for entry in entries}
        if not token:
            break
    assert len(keys) == 30
    for asked in (
        segments.attribute("s/t/9", UUID(int=9)),
        segments.count_entries("s/t/9"),
        segments.read_entries("s/t/9", 1),
    ):
        with pytest.raises(SegmentStoreFailed):
            await asked


async def test_a_failure_names_what_was_asked_and_has_the_reply_as_its_cause(segments: SegmentAdmin) -> None:
    for asked, did in (
        (segments.update_policy(SEGMENT, PLAIN), "update"),
        (segments.seal_segment(SEGMENT), "seal"),
        (segments.segment_length(SEGMENT), "measure"),
        (segments.append_event(SEGMENT, 1, b"event"), "set up appends to"),
        (segments.truncate_segment(SEGMENT, 5), "truncate"),
        (segments.merge_segments(SEGMENT, [TRANSACTION]), "merge into"),
    ):
        with pytest.raises(SegmentStoreFailed, match=f"failed to {did} {SEGMENT}") as failed:
            await asked
        assert "NoSuchSegment" in str(failed.value.__cause__)


async def test_nothing_is_merged_into_a_sealed_segment_nor_appended(segments: SegmentAdmin) -> None:
    await segments.create_segment(SEGMENT, PLAIN, 0)
    await segments.seal_segment(SEGMENT)
    with pytest.raises(SegmentStoreFailed, match="merge into"):
        await segments.merge_segments(SEGMENT, [])
    for _ in range(2):
        with pytest.raises(SegmentStoreFailed, match="append to"):
            await segments.append_event(SEGMENT, 1, b"event")


async def test_a_store_of_an_old_version_with_tokens_and_limits_serves_its_own_controller() -> None:
    limits = {"request_segments": 1, "connection_writer_bytes": 1}
    mock = await one_store(wire_version=7, auth_key="k" * 64, strict_auth=True, limits=limits)
    try:
        segments = LocalSegments(mock.stores, "127.0.0.1")
        for name in (SEGMENT, TRANSACTION, TRANSACTION[:-1] + "8"):
            await segments.create_segment(name, PLAIN, 0)
            await segments.append_event(name, 1, b"event")
        await segments.merge_segments(SEGMENT, [TRANSACTION, TRANSACTION[:-1] + "8"])
        assert await segments.segment_length(SEGMENT) == 15
        assert mock.stores[0].service.counters.requests == 0
    finally:
        await mock.stop()


async def test_a_store_whose_memory_is_full_fails_an_append_and_takes_it_later() -> None:
    mock = await one_store()
    try:
        segments = LocalSegments(mock.stores, "127.0.0.1")
        await segments.create_segment(SEGMENT, PLAIN, 0)
        memory = mock.stores[0].store.pool.memory
        memory.limit, limit = 1, memory.limit
        with pytest.raises(SegmentStoreFailed) as failed:
            await segments.append_event(SEGMENT, 1, b"event")
        assert "memory" in str(failed.value.__cause__)
        memory.limit = limit
        used = memory.used
        await segments.append_event(SEGMENT, 1, b"event")
        assert mock.stores[0].store.container_for(SEGMENT).get_attribute(SEGMENT, CONTROLLER_WRITER) == 1
        assert memory.used > used
    finally:
        await mock.stop()


async def test_a_container_without_an_owner_can_be_asked_for_later_if_there_are_several_stores() -> None:
    for stores, error in ((1, SegmentStoreFailed), (2, NobodyOwns)):
        mock = await one_store(stores=stores)
        try:
            segments = LocalSegments(mock.stores, "127.0.0.1")
            await segments.create_segment(SEGMENT, PLAIN, 0)
            store = segments.server_of(SEGMENT).store
            owned = dict(store.containers)
            store.containers.clear()
            with pytest.raises(error) as failed:
                await segments.segment_length(SEGMENT)
            assert type(failed.value) is error
            with pytest.raises(error):
                segments.owner_of(SEGMENT)
            store.containers.update(owned)
        finally:
            await mock.stop()


@asynccontextmanager
async def controlled(recorder: FileRecorder, stores: int = 1) -> AsyncIterator[LocalSegments]:
    """A controller's requests, recorded."""
    mock = await one_store(stores=stores)
    try:
        segments = LocalSegments(mock.stores, "127.0.0.1", lambda: recorder)
        yield segments
        segments.close()
        segments.close()
    finally:
        await mock.stop()


def recorded(path: Path) -> list[Record]:
    with TraceFile(path) as trace:
        return list(trace.records())


async def test_each_store_has_a_connection_of_its_own_and_clients_have_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "run.wtrace"
    recorder = FileRecorder(path, Metadata(17, "test"))
    async with controlled(recorder, stores=2) as segments:
        names = [f"scope/stream{number}/0.#epoch.0" for number in range(10)]
        assert len({segments.owner_of(name) for name in names}) == 2
        for name in names:
            await segments.create_segment(name, PLAIN, 0)
    recorder.close()
    records = recorded(path)
    assert {record.connection for record in records} == {WITH_ROLE + 1, WITH_ROLE + 2}
    assert list(of_clients(records)) == []
