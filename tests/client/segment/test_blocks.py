"""PDP-36, ids 36.17 to 36.21: the frames of appends, against a real store over sockets.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.segment import SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Buffer,
    Command,
    DataAppended,
    FrameDecoder,
    GetStreamSegmentInfo,
    KeepAlive,
    PartialEvent,
    SetupAppend,
    StreamSegmentInfo,
    encode,
)
from segstore.wire.blocks import AppendBlockEncoder
from tests.client.segments import SEGMENT, content, make, stores_all, writing
from tests.client.support import ScriptedPeer, endpoint, settings
from tests.conformance.blocks import FixedBlockSize
from tests.looped import looped
from tests.server.support import Peer


@pytest.mark.seed("36.17")
async def test_set_up_comes_first_and_numbers_never_go_backwards() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        stores_all(peer, command)
        if isinstance(command, AppendBlockEnd) and command.last_event_number % 5 == 0:
            peer.close()

    async with writing(answer) as (store, _, writer):
        for _ in range(23):
            await writer.write(b"event")
        await writer.aclose()
        assert len(store.peers) >= 4
        numbers = []
        for peer in store.peers:
            appends = [each for each in peer.got if not hasattr(each, "high_version")]
            assert isinstance(appends[0], SetupAppend)
            numbers += [append.last_event_number for append in appends if isinstance(append, AppendBlockEnd)]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 23


@pytest.mark.seed("36.18")
async def test_with_one_append_in_flight_each_travels_in_a_block_of_its_own() -> None:
    config = settings(append_batching="blocks")
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        await make(store)
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            for number in range(20):
                await writer.write(b"%04d" % number)
                assert not writer._flow.connection.outbox._encoder.block_open
        assert content(store) == b"".join(b"%04d" % number for number in range(20))


@pytest.mark.seed("36.18")
@pytest.mark.seed("36.20")
async def test_with_many_in_flight_blocks_grow_and_an_event_that_crosses_the_end_arrives_whole() -> None:
    config = settings(append_batching="blocks")
    written = bytearray()
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        await make(store)
        random = Random(5)
        expected = b""
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            await writer.write(b"")
            connection = writer._flow.connection
            transport = connection.outbox._transport

            def writelines(parts: list[Buffer]) -> None:
                for part in parts:
                    written.extend(part)
                transport.writelines(parts)

            connection.outbox._transport = _Spy(transport, writelines)  # type: ignore[assignment]
            for _ in range(30):
                events = [random.randbytes(random.randrange(1, 600)) for _ in range(40)]
                expected += b"".join(events)
                await asyncio.gather(*[writer.write(event) for event in events])
            connection.outbox._transport = transport
        assert content(store) == expected
    frames = FrameDecoder().feed(bytes(written))
    ends = [frame for frame in frames if isinstance(frame, AppendBlockEnd)]
    assert max(end.num_events for end in ends) > 1, "several events share a block"
    crossing = [end for end in ends if len(end.data)]
    assert crossing, "some event crosses the end of its block"
    assert all(end.size_of_whole_events >= 0 for end in crossing)


class _Spy:
    def __init__(self, transport: Any, writelines: Callable[[list[Buffer]], None]) -> None:
        self._transport = transport
        self.writelines = writelines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.seed("36.19")
@looped("batching", ["turn", "blocks"])
async def test_many_writers_on_one_connection_each_arrive_whole_and_in_order(batching: str) -> None:
    config = settings(append_batching=batching, max_connections_per_store=1)
    segments = [f"scope/stream/{number}.#epoch.0" for number in range(12)]
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        await make(store, *segments)
        where = FixedStore(endpoint(store))
        writers = [SegmentWriter(pool, where, segment) for segment in segments]
        random = Random(1)
        expected = dict.fromkeys(segments, b"")
        acks = []
        for step in range(2_000):
            writer = random.choice(writers)
            event = b"%s:%d;" % (writer.segment.encode(), step) + b"." * random.randrange(2_000)
            expected[writer.segment] += event
            acks.append(writer.write(event))
            if random.random() < 0.02:
                await asyncio.sleep(0)
        await asyncio.gather(*acks)
        for writer in writers:
            await writer.aclose()
        assert pool.metrics().connections_opened == 1
        for segment in segments:
            assert content(store, segment) == expected[segment]


@pytest.mark.seed("36.19")
def test_who_does_not_own_the_open_block_queues_and_another_command_pads_it_and_flushes_the_queue() -> None:
    first, second = UUID(int=1), UUID(int=2)
    encoder = AppendBlockEncoder(lambda _: FixedBlockSize(100))
    for writer in (first, second):
        encoder.command(SetupAppend(1, writer, SEGMENT, ""))
    out = encoder.append(SEGMENT, first, 1, 1, b"owner", 1, 0.0)
    assert encoder.append(SEGMENT, second, 1, 1, b"queued", 2, 0.0) == [], "another's block is open"
    assert encoder.append(SEGMENT, first, 2, 1, b"again", 1, 0.0) == [b"again"]
    out = [*out, b"again", *encoder.command(KeepAlive())]
    block, end, queued, queued_end, command = FrameDecoder().feed(b"".join(out))
    assert isinstance(block, AppendBlock)
    assert bytes(block.data)[:10] == b"owneragain"
    assert bytes(block.data)[10:14] == b"\xff\xff\xff\xff", "padding closes it"
    assert isinstance(end, AppendBlockEnd)
    assert (end.size_of_whole_events, end.num_events, end.last_event_number, bytes(end.data)) == (10, 2, 2, b"")
    assert isinstance(queued, AppendBlock)
    assert isinstance(queued_end, AppendBlockEnd)
    assert (queued.writer_id, bytes(queued.data)) == (second, b"queued")
    assert queued_end.writer_id == second
    assert isinstance(command, KeepAlive)


@pytest.mark.seed("36.20")
def test_the_length_of_a_block_covers_its_fields_and_all_of_it_and_an_event_across_its_end_travels_in_two() -> None:
    writer = UUID(int=1)
    encoder = AppendBlockEncoder(lambda _: FixedBlockSize(100))
    encoder.command(SetupAppend(1, writer, SEGMENT, ""))
    out = b"".join(encoder.append(SEGMENT, writer, 1, 1, bytes(60), 1, 0.0))
    assert int.from_bytes(out[4:8]) == 16 + 100 + 8, "it is larger than the append: with a tail's header"
    out += b"".join(encoder.append(SEGMENT, writer, 2, 1, b"x" * 60, 1, 0.0))
    block, end = FrameDecoder().feed(out)
    assert isinstance(block, AppendBlock)
    assert isinstance(end, AppendBlockEnd)
    tail = bytes(block.data)[60:]
    assert tail[:4] == PartialEvent.code.to_bytes(4, signed=True)
    assert end.size_of_whole_events == 60
    assert int.from_bytes(tail[4:8]) + len(end.data) == 60
    assert tail[8:] + bytes(end.data) == b"x" * 60


@pytest.mark.seed("36.21")
async def test_a_read_and_a_keep_alive_may_pass_between_a_block_and_its_end(store: MockSegmentStore) -> None:
    await make(store)
    writer = UUID(int=3)
    async with await Peer.connect(store) as peer:
        await peer.ask(SetupAppend(1, writer, SEGMENT, ""))
        partial = encode(PartialEvent(b"ef"))
        body = b"abcd" + partial
        peer.send_bytes(b"\0\0\0\3" + (16 + len(body)).to_bytes(4) + writer.bytes + body)
        (info,) = await peer.ask(GetStreamSegmentInfo(5, SEGMENT, ""))
        assert isinstance(info, StreamSegmentInfo)
        (ack,) = await peer.ask(AppendBlockEnd(writer, 4, b"gh", 2, 2, 6))
        assert isinstance(ack, DataAppended)
    assert content(store) == b"abcdefgh"
