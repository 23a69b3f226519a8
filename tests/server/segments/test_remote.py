"""What the controller of a cluster asks of a store, over a connection."""

import asyncio
import time

import pytest

from segstore.server import MockSegmentStore
from segstore.server.auth import Permission
from segstore.server.controller import ScalingPolicy
from segstore.server.controller.api import Authority
from segstore.server.controller.segment_admin import CONTROLLER_WRITER
from segstore.server.segments import RemoteSegments
from segstore.server.segments.remote import StoreConnection
from segstore.server.shared_folder import Owners
from segstore.wire import WIRE_VERSION, GetStreamSegmentInfo, ReadSegment, StreamSegmentInfo, encode
from segstore.wire.endpoint import Endpoint

SEGMENT = "scope/_MARKstream/0.#epoch.0"


class OneOwner(Owners):
    """All containers are at one store."""

    def __init__(self, where: Endpoint) -> None:
        super().__init__(1)
        self._where = where

    def of(self, container_id: int) -> Endpoint:
        return self._where


async def test_an_event_of_the_controller_is_appended_once_however_often_it_is_requested(
    store: MockSegmentStore,
) -> None:
    owners = OneOwner(Endpoint(store.host, store.port))
    for numbers in ((1, 1, 2), (2, 3)):  # the second time as a controller that starts again
        segments = RemoteSegments(owners, 4, token=str, wire_version=WIRE_VERSION)
        try:
            await segments.create_segment(SEGMENT, ScalingPolicy(), 0)
            for number in numbers:
                await segments.append_event(SEGMENT, number, b"event %d " % number)
        finally:
            await segments.aclose()
    found = store.store.read(SEGMENT, 0, 100)
    assert b"".join(found.data) == b"event 1 event 2 event 3 "
    assert store.store.container_for(SEGMENT).get_attribute(SEGMENT, CONTROLLER_WRITER) == 3


async def test_each_request_brings_a_token_for_its_stream_alone() -> None:
    key, asked = "k" * 64, set()

    def token(stream: str) -> str:
        asked.add(stream)
        return Authority(None, key, now_s=time.time).token(stream, Permission.READ_UPDATE)

    table, transaction = "scope/table_kvtable/0.#epoch.0", f"{SEGMENT}#transaction.{'0' * 32}"
    async with MockSegmentStore(auth_key=key, strict_auth=True, containers=1) as mock:
        segments = RemoteSegments(OneOwner(Endpoint(mock.host, mock.port)), 1, token=token, wire_version=WIRE_VERSION)
        try:
            for segment in (SEGMENT, transaction):
                await segments.create_segment(segment, ScalingPolicy(), 0)
            await segments.append_event(SEGMENT, 1, b"event")
            await segments.merge_segments(SEGMENT, [transaction])
            await segments.update_policy(SEGMENT, ScalingPolicy())
            await segments.truncate_segment(SEGMENT, 2)
            assert await segments.segment_length(SEGMENT) == 5
            assert await segments.seal_segment(SEGMENT) == 5
            await segments.delete_segment(SEGMENT)
            await segments.create_table(table, 0, 0)
            await segments.delete_table(table)
        finally:
            await segments.aclose()
    assert asked == {"scope/_MARKstream", "scope/table_kvtable"}


async def test_a_request_that_is_given_up_is_forgotten_and_others_are_answered(store: MockSegmentStore) -> None:
    store.store.create_segment(SEGMENT, scale_type=0, target_rate=0, rollover_size=0, now_ms=0)
    connection = await StoreConnection.open(Endpoint(store.host, store.port), WIRE_VERSION, None)
    try:
        read = asyncio.create_task(connection.ask(ReadSegment(SEGMENT, 0, 10, "", 0)))  # waits at the tail
        found = await connection.ask(GetStreamSegmentInfo(0, SEGMENT, ""))
        assert isinstance(found, StreamSegmentInfo)
        assert len(connection._protocol.requests) == 1
        read.cancel()
        await asyncio.gather(read, return_exceptions=True)
        assert len(connection._protocol.requests) == 0
    finally:
        await connection.aclose()
    with pytest.raises(ConnectionError):
        await connection.ask(GetStreamSegmentInfo(0, SEGMENT, ""))


async def test_requests_fail_when_the_store_sends_a_request() -> None:
    async def ask_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(encode(GetStreamSegmentInfo(1, SEGMENT, "")))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(ask_back, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        connection = await StoreConnection.open(Endpoint(host, port), WIRE_VERSION, None)
        with pytest.raises(ConnectionError, match="the store sent a request"):
            await connection.ask(GetStreamSegmentInfo(0, SEGMENT, ""))
        assert connection.is_over
        await connection.aclose()
