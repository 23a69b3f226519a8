"""PDP-36, ids 36.4 and 36.14 to 36.30: requests, appends and reads, against a real store over sockets.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import jwt
import pytest

from segstore.client.config import ClientSettings
from segstore.client.errors import (
    Closed,
    ConnectionLost,
    PeerRefused,
    RetriesExhausted,
    SegmentMissing,
    SegmentOver,
    SegmentSealed,
    TokenRefused,
    WrongStore,
)
from segstore.client.locations import FixedStore
from segstore.client.pool import ConnectionPool, Endpoint
from segstore.client.raw import RawClient, SegmentRequests
from segstore.client.retry import Backoff
from segstore.client.segment_reader import SegmentReader
from segstore.client.segment_writer import SegmentWriter
from segstore.client.writer_machine import WriterState
from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    ErrorMessageCode,
    Event,
    FrameDecoder,
    GetStreamSegmentInfo,
    InvalidEventNumber,
    KeepAlive,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    PartialEvent,
    ReadSegment,
    SealSegment,
    SealTableSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    WrongHost,
    decode,
    encode,
)
from segstore.wire import SegmentSealed as SegmentSealedReply
from segstore.wire.blocks import AppendBlockEncoder, FixedBlockSize
from segstore.wire.request_id import pack, unpack
from tests.client.support import Recorder, ScriptedPeer, ScriptedStore, create, endpoint, settings, until
from tests.server.support import Peer

SEGMENT = "scope/stream/0.#epoch.0"
FAST_RETRY = Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=4)


async def make(store: MockSegmentStore, *segments: str) -> None:
    async with await Peer.connect(store) as peer:
        for segment in segments or (SEGMENT,):
            (reply,) = await peer.ask(create(segment))
            assert isinstance(reply, SegmentCreated)


def content(store: MockSegmentStore, segment: str = SEGMENT) -> bytes:
    result = store.store.read(segment, 0, 1 << 21)
    return b"" if result is None else b"".join(result.data)


def setup_reply(command: Command, last: int = -(2**63)) -> AppendSetup:
    assert isinstance(command, SetupAppend)
    return AppendSetup(command.request_id, command.segment, command.writer_id, last)


# --- 36.4, 36.14: request ids and raw requests ----------------------------------------------------------------------


@pytest.mark.seed("36.4")
async def test_a_writer_and_a_reader_keep_one_request_id_and_a_raw_client_takes_the_next() -> None:
    async with MockSegmentStore(long_poll_s=0.02) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        seen: dict[str, set[int]] = {}
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            for _ in range(3):
                await writer.write(b"event")
                assert writer._flow is not None
                writer._flow.connection.end(ConnectionLost("cut"))  # a new connection, the same id
                await writer.write(b"again")
        for each in store.requests():
            if each.request_id is not None and each.segments == (SEGMENT,):
                seen.setdefault(each.type_name, set()).add(each.request_id)
        assert seen["SETUP_APPEND"] == seen["APPEND_BLOCK_END"] == {pack(1, 0)}
        reader = SegmentReader(pool, where, SEGMENT)
        for _ in range(3):
            await reader.read()
        assert unpack(reader._request_id)[1] == 0
        client = await RawClient.open(pool, endpoint(store))
        ids: list[int] = []

        def ask(request_id: int) -> Command:
            ids.append(request_id)
            return GetStreamSegmentInfo(request_id, SEGMENT, "")

        for _ in range(3):
            await client.request(ask)
        assert [unpack(each)[1] for each in ids] == [0, 1, 2]
        assert len({unpack(each)[0] for each in ids}) == 1
        reader.close()
        client.close()


@pytest.mark.seed("36.14")
@pytest.mark.parametrize(
    ("refuse", "error"),
    [
        (lambda id_: WrongHost(id_, SEGMENT, "other:1"), WrongStore),
        (lambda id_: ErrorMessage(id_, SEGMENT, "no", ErrorMessageCode.UNSPECIFIED), PeerRefused),
    ],
)
async def test_a_wrong_host_or_error_message_closes_the_client_and_fails_what_is_pending(
    refuse: Callable[[int], Command], error: type[Exception]
) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SealSegment):
            peer.send(refuse(command.request_id))

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        client = await RawClient.open(pool, store.endpoint)
        pending = [
            asyncio.ensure_future(client.request(lambda id_: GetStreamSegmentInfo(id_, SEGMENT, ""))) for _ in range(3)
        ]
        with pytest.raises(error):
            await client.request(lambda id_: SealSegment(id_, SEGMENT, ""))
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(each) for each in results] == [ConnectionLost] * 3, "retryable"
        assert client.closed
        with pytest.raises(ConnectionLost):
            await client.request(lambda id_: SealSegment(id_, SEGMENT, ""))
        assert pool.metrics().connections == 1, "its flow is closed, not the connection"


@pytest.mark.seed("36.14")
async def test_a_failure_that_matches_no_request_closes_the_client_and_a_success_is_ignored() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, GetStreamSegmentInfo)
        flow, _ = unpack(command.request_id)
        peer.send(SegmentSealedReply(pack(flow, 500), SEGMENT))
        if command.segment_name == "poison":
            peer.send(NoSuchSegment(pack(flow, 501), SEGMENT))
        peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, 7, 0))

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        client = await RawClient.open(pool, store.endpoint)
        reply = await client.request(lambda id_: GetStreamSegmentInfo(id_, "fine", ""))
        assert isinstance(reply, StreamSegmentInfo)
        with pytest.raises(ConnectionLost):
            await client.request(lambda id_: GetStreamSegmentInfo(id_, "poison", ""))
        assert client.closed


@pytest.mark.seed("36.14")
async def test_requests_about_segments_are_tried_again_and_other_refusals_are_errors() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings(retry=FAST_RETRY)) as pool:
        await make(store)
        async with SegmentRequests(pool, FixedStore(endpoint(store))) as requests:
            store.faults.add("type = SEAL_SEGMENT", nth=1, do="WrongHost")
            await requests.ask(SEGMENT, SegmentSealedReply, lambda id_, token: SealSegment(id_, SEGMENT, token))
            with pytest.raises(SegmentMissing):
                await requests.ask(
                    "no/such/0", SegmentDeleted, lambda id_, token: DeleteSegment(id_, "no/such/0", token)
                )
            store.faults.add("type = DELETE_SEGMENT", do="WrongHost")
            with pytest.raises(RetriesExhausted) as caught:
                await requests.ask(SEGMENT, SegmentDeleted, lambda id_, token: DeleteSegment(id_, SEGMENT, token))
            assert isinstance(caught.value.__cause__, WrongStore)
            assert caught.value.actual == 4


# --- 36.15, 36.16: fields -------------------------------------------------------------------------------------------


@pytest.mark.seed("36.15")
def test_the_commands_of_the_seed_carry_a_request_id_and_an_append_block_does_not() -> None:
    for kind in (ReadSegment, SegmentRead, AppendBlockEnd, ConditionalAppend, DataAppended, ConditionalCheckFailed):
        assert "request_id" in kind.__struct_fields__
    assert "request_id" not in AppendBlock.__struct_fields__
    assert ReadSegment("s", 0, 1, "").request_id == -1


def as_older(command: Command, missing_bytes: int = 8) -> Command:
    """What is read of the frame of a peer that does not know its last fields."""
    body = encode(command)[8:-missing_bytes]
    return decode(encode(command)[:4] + len(body).to_bytes(4) + body)


@pytest.mark.seed("36.15")
@pytest.mark.parametrize(
    ("command", "missing_bytes"),
    [
        (ReadSegment("s", 0, 1, "t", 7), 8),
        (SegmentRead("s", 0, True, False, b"data", 7), 8),
        (AppendBlockEnd(UUID(int=3), 1, b"x", 1, 1, 7), 8),
        (ConditionalAppend(UUID(int=3), 2, 1, Event(b"ab"), 7), 8),
        (DataAppended(7, UUID(int=3), 2, 1, 5), 16),  # its offset is younger still
        (ConditionalCheckFailed(UUID(int=3), 2, 7), 8),
    ],
    ids=lambda value: getattr(value, "type_name", ""),
)
def test_a_request_id_that_an_older_peer_does_not_send_is_minus_one(command: Command, missing_bytes: int) -> None:
    assert decode(encode(command)).request_id == 7  # type: ignore[attr-defined]
    assert as_older(command, missing_bytes).request_id == -1  # type: ignore[attr-defined]


@pytest.mark.seed("36.15")
async def test_replies_to_appends_and_reads_carry_the_request_id() -> None:
    async with MockSegmentStore() as store:
        await make(store)
        writer = UUID(int=3)
        async with await Peer.connect(store) as peer:
            await peer.ask(SetupAppend(1, writer, SEGMENT, ""))
            event = Event(b"ab")
            replies = await peer.ask(
                AppendBlockEnd(writer, 1, b"x", 1, 1, 71),
                ConditionalAppend(writer, 2, 1, event, 72),
                ConditionalAppend(writer, 3, 99, event, 73),
                ReadSegment(SEGMENT, 0, 100, "", 74),
            )
            assert [reply.request_id for reply in replies] == [71, 72, 73, 74]  # type: ignore[attr-defined]
            assert isinstance(replies[2], ConditionalCheckFailed)


@pytest.mark.seed("36.16")
async def test_sealed_truncated_and_missing_carry_the_offset() -> None:
    assert SegmentIsSealed(1, "s").offset == SegmentIsTruncated(1, "s", 0).offset == NoSuchSegment(1, "s").offset == -1
    for known in (SegmentIsSealed(1, "s", "", 9), SegmentIsTruncated(1, "s", 3, "", 9), NoSuchSegment(1, "s", "", 9)):
        assert as_older(known).offset == -1, "an older peer does not send it"  # type: ignore[attr-defined]
    async with MockSegmentStore() as store:
        await make(store)
        writer = UUID(int=3)
        async with await Peer.connect(store) as peer:
            await peer.ask(SetupAppend(1, writer, SEGMENT, ""), SealSegment(2, SEGMENT, ""))
            sealed, missing = await peer.ask(
                AppendBlockEnd(writer, 1, b"x", 1, 9, 3), ReadSegment("no/such/0", 55, 100, "", 4)
            )
            assert isinstance(sealed, SegmentIsSealed)
            assert sealed.offset == 9
            assert isinstance(missing, NoSuchSegment)
            assert missing.offset == 55
            other = "scope/stream/1.#epoch.0"
            await peer.ask(create(other), SetupAppend(5, writer, other, ""))
            await peer.ask(AppendBlockEnd(writer, 4, b"data", 1, 1, 5))
            (_, truncated) = await peer.ask(TruncateSegment(6, other, 3, ""), ReadSegment(other, 1, 100, "", 7))
            assert isinstance(truncated, SegmentIsTruncated)
            assert (truncated.start_offset, truncated.offset) == (3, 1)


# --- 36.17 to 36.21: frames of appends ------------------------------------------------------------------------------


@pytest.mark.seed("36.17")
async def test_set_up_comes_first_and_numbers_never_go_backwards() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            number = command.last_event_number
            peer.send(DataAppended(command.request_id, command.writer_id, number, number - command.num_events, number))
            if number % 5 == 0:
                peer.close()

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        async with SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) as writer:
            for _ in range(23):
                await writer.write(b"event")
        assert len(store.peers) >= 4
        numbers = []
        for peer in store.peers:
            appends = [each for each in peer.got if not hasattr(each, "high_version")]
            assert isinstance(appends[0], SetupAppend)
            numbers += [each.last_event_number for each in appends if isinstance(each, AppendBlockEnd)]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 23


@pytest.mark.seed("36.18")
async def test_with_one_append_in_flight_each_travels_in_a_block_of_its_own() -> None:
    config = settings(append_batching="blocks")
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            for number in range(20):
                await writer.write(b"%04d" % number)
                assert writer._flow is not None
                assert not writer._flow.connection.outbox._encoder.block_open
        assert content(store) == b"".join(b"%04d" % number for number in range(20))


@pytest.mark.seed("36.18")
@pytest.mark.seed("36.20")
async def test_with_many_in_flight_blocks_grow_and_an_event_that_crosses_the_end_arrives_whole() -> None:
    config = settings(append_batching="blocks")
    written = bytearray()
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        random = Random(5)
        expected = b""
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            await writer.write(b"")
            assert writer._flow is not None
            connection = writer._flow.connection
            transport = connection.outbox._transport
            assert transport is not None

            def write(data: bytes) -> None:
                written.extend(data)
                transport.write(data)

            connection.outbox._transport = _Spy(transport, write)  # type: ignore[assignment]
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
    def __init__(self, transport: Any, write: Callable[[bytes], None]) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.seed("36.19")
@pytest.mark.parametrize("batching", ["turn", "blocks"])
async def test_many_writers_on_one_connection_each_arrive_whole_and_in_order(batching: str) -> None:
    config = settings(append_batching=batching, max_connections_per_store=1)
    segments = [f"scope/stream/{number}.#epoch.0" for number in range(12)]
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
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
            assert content(store, segment)[:4_000] == expected[segment][:4_000]
            assert store.store.segment_info(segment).length == len(expected[segment])


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
@pytest.mark.parametrize(
    "frames",
    [
        lambda w: [AppendBlock(w, b"12345678"), SetupAppend(9, w, SEGMENT, "")],
        lambda w: [AppendBlock(w, b"12345678"), AppendBlock(w, b"12345678")],
        lambda w: [AppendBlock(w, b"12345678"), AppendBlockEnd(UUID(int=99), 8, b"", 1, 5, 3)],
        lambda w: [AppendBlock(w, b"12345678"), AppendBlockEnd(w, -1, b"", 1, 5, 3)],
        lambda w: [AppendBlock(w, b"12345678"), AppendBlockEnd(w, 9, b"", 1, 5, 3)],
        lambda w: [AppendBlockEnd(w, 1, b"x", 0, 5, 3)],
        lambda w: [AppendBlockEnd(w, 1, b"x", 1, 5, 3), AppendBlockEnd(w, 1, b"x", 1, 4, 3)],
        lambda w: [AppendBlockEnd(UUID(int=99), 1, b"x", 1, 5, 3)],
        lambda w: [AppendBlock(w, b"1234" + encode(Event(b"x"))), AppendBlockEnd(w, 4, b"", 1, 5, 3)],
        lambda w: [AppendBlock(w, b"1234" + encode(Padding(4))), AppendBlockEnd(w, 4, b"x", 1, 5, 3)],
    ],
    ids=["setup", "block", "mismatch", "negative", "beyond", "none", "backwards", "unknown", "tail", "padded data"],
)
async def test_a_sequence_that_breaks_the_rules_closes_the_connection(
    frames: Callable[[UUID], list[Command]],
) -> None:
    async with MockSegmentStore() as store:
        await make(store)
        writer = UUID(int=3)
        async with await Peer.connect(store) as peer:
            await peer.ask(SetupAppend(1, writer, SEGMENT, ""))
            for frame in frames(writer):
                body = frame.data if isinstance(frame, AppendBlock) else None
                if body is None:
                    peer.send(frame)
                else:
                    peer.send_bytes(b"\0\0\0\3" + (16 + len(body)).to_bytes(4) + writer.bytes + bytes(body))
            await peer.closed()
        assert store.server.service.counters.connections_open == 0 or await closed(store)


async def closed(store: MockSegmentStore) -> bool:
    await until(lambda: store.server.service.counters.connections_open == 0)
    return True


@pytest.mark.seed("36.21")
async def test_a_read_and_a_keep_alive_may_pass_between_a_block_and_its_end() -> None:
    async with MockSegmentStore() as store:
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


# --- 36.22 to 36.25: acks and errors --------------------------------------------------------------------------------


@pytest.mark.seed("36.22")
async def test_one_ack_covers_all_appends_before_it() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd) and command.last_event_number == 6:
            peer.send(DataAppended(command.request_id, command.writer_id, 6, 0, 60))

    config = settings(append_batching="turn", max_batch_events=2)
    async with (
        ScriptedStore(answer) as store,
        ConnectionPool(config) as pool,
        SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) as writer,
    ):
        acks = [writer.write(b"x") for _ in range(6)]
        await acks[0]
        assert all(ack.done() for ack in acks)
        assert writer.segment_length == 60
        assert writer.in_flight == 0


@pytest.mark.seed("36.22")
@pytest.mark.parametrize(
    ("number", "previous"), [(2, 2), (2, 3), (3, 1), (9, 0)], ids=["equal", "above", "never acknowledged", "not sent"]
)
async def test_an_ack_that_cannot_be_is_a_protocol_error_and_nothing_is_lost(number: int, previous: int) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            last = command.last_event_number
            if peer is store.peers[0]:
                peer.send(DataAppended(command.request_id, command.writer_id, number, previous, 1))
            else:
                peer.send(DataAppended(command.request_id, command.writer_id, last, 0, 1))

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        async with SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) as writer:
            await asyncio.gather(*[writer.write(b"x") for _ in range(3)])
        assert len(store.peers) == 2, "the connection that lied is gone"


@pytest.mark.seed("36.23")
@pytest.mark.parametrize("stored", [0, 1, 2, 3, 4])
async def test_the_answer_to_a_set_up_acknowledges_and_the_rest_is_sent_again_before_anything_new(stored: int) -> None:
    sent_again: list[int] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        first = peer is store.peers[0]
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command) if first else setup_reply(command, stored or -(2**63)))
        elif isinstance(command, AppendBlockEnd):
            if first:
                if command.last_event_number == 4:
                    peer.close()
                    acks.append(writer.write(b"new"))
                return
            sent_again.append(command.last_event_number)
            number = command.last_event_number
            peer.send(DataAppended(command.request_id, command.writer_id, number, number - command.num_events, 1))

    config = settings(max_batch_events=2)
    async with (
        ScriptedStore(answer) as store,
        ConnectionPool(config) as pool,
        SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) as writer,
    ):
        acks = [writer.write(b"x") for _ in range(4)]
        await until(lambda: len(acks) == 5)
        await asyncio.gather(*acks)
        assert writer.set_ups == 2
        assert writer.last_number == 5
    assert sent_again[-1] == 5
    assert sent_again[:-1] == [last for last in (2, 4) if last > stored]


@pytest.mark.seed("36.23")
async def test_a_writer_id_that_has_written_before_goes_on_where_it_stopped() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        for last in (3, 6):
            async with SegmentWriter(pool, where, SEGMENT, writer_id=UUID(int=5)) as writer:
                await asyncio.gather(*[writer.write(b"x") for _ in range(3)])
                assert writer.last_number == last
        assert content(store) == b"xxxxxx"


@pytest.mark.seed("36.23")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("batching", ["turn", "blocks"])
async def test_whatever_is_cut_before_or_after_the_store_took_it_is_there_once_and_in_order(
    when: str, batching: str
) -> None:
    config = settings(retry=Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=10), append_batching=batching)
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        store.faults.add("type = APPEND_BLOCK_END", every=3, do=f"close {when}")
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        acks = []
        for number in range(300):
            acks.append(writer.write(b"%05d" % number))
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        await asyncio.gather(*acks)
        await writer.aclose()
        assert content(store) == b"".join(b"%05d" % number for number in range(300))
        assert writer.set_ups > 1


@pytest.mark.seed("36.24")
async def test_the_error_of_an_append_comes_after_the_acks_before_it_and_a_failed_condition_keeps_the_connection() -> (
    None
):
    async with MockSegmentStore() as store:
        await make(store)
        writer = UUID(int=3)
        async with await Peer.connect(store) as peer:
            await peer.ask(SetupAppend(1, writer, SEGMENT, ""))
            replies = await peer.ask(
                AppendBlockEnd(writer, 1, b"x", 1, 1, 3),
                ConditionalAppend(writer, 2, 77, Event(b"no"), 3),
                ConditionalAppend(writer, 2, 1, Event(b"yes"), 3),
                SealSegment(4, SEGMENT, ""),
                AppendBlockEnd(writer, 1, b"x", 1, 3, 3),
            )
            assert [type(each) for each in replies] == [
                DataAppended,
                ConditionalCheckFailed,
                DataAppended,
                SegmentSealedReply,
                SegmentIsSealed,
            ]
            (again,) = await peer.ask(SetupAppend(5, writer, SEGMENT, ""))
            assert again == AppendSetup(5, SEGMENT, writer, 2), "the writer's state was dropped and is set up anew"
            peer.send(SealSegment(6, SEGMENT, ""))
            assert [type(each) for each in await peer.receive()] == [SegmentIsSealed]


@pytest.mark.seed("36.24")
async def test_after_a_failed_append_the_next_without_a_set_up_closes() -> None:
    async with MockSegmentStore() as store:
        await make(store)
        writer = UUID(int=3)
        async with await Peer.connect(store) as peer:
            await peer.ask(SetupAppend(1, writer, SEGMENT, ""), SealSegment(4, SEGMENT, ""))
            await peer.ask(AppendBlockEnd(writer, 1, b"x", 1, 1, 3))
            peer.send(AppendBlockEnd(writer, 1, b"x", 1, 2, 3))
            assert await peer.closed() == b""


@pytest.mark.seed("36.25")
async def test_each_error_of_the_store_has_its_reply() -> None:
    key = "0123456789abcdef" * 4
    async with MockSegmentStore(containers=2, own={0}) as store:
        names = [f"a/b/{number}.#epoch.0" for number in range(20)]
        async with await Peer.connect(store) as peer:
            kinds = {type(reply) for reply in await peer.ask(*[create(name) for name in names])}
            assert kinds == {SegmentCreated, WrongHost}
            owned = next(name for name in names if name in store.segments)
            assert isinstance((await peer.ask(create(owned)))[0], SegmentAlreadyExists)
            assert isinstance((await peer.ask(SealTableSegment(1, owned, "")))[0], OperationUnsupported)
            writer = UUID(int=4)
            async with await Peer.connect(store) as other:
                for each in (peer, other):
                    await each.ask(SetupAppend(1, writer, owned, ""))
                await other.ask(AppendBlockEnd(writer, 1, b"x", 1, 5, 1))
                peer.send(AppendBlockEnd(writer, 1, b"x", 1, 6, 1))
                assert isinstance((await peer.receive())[0], InvalidEventNumber)
                assert await peer.closed() == b""
            async with await Peer.connect(store) as third:
                third.send(ReadSegment(owned, -5, 10, ""))
                assert await third.closed() == b"", "an error without a reply closes"
    async with MockSegmentStore(auth_key=key) as store, await Peer.connect(store) as peer:
        old = jwt.encode({"a/b": "READ_UPDATE", "exp": 5}, key, "HS512")
        for token, code in ((old, 1), ("nonsense", 0)):
            (reply,) = await peer.ask(GetStreamSegmentInfo(3, "a/b/0", token))
            assert isinstance(reply, AuthTokenCheckFailed)
            assert reply.error_code == code


# --- 36.26, 36.27: the writer ---------------------------------------------------------------------------------------


class Moving(FixedStore):
    """Two stores, of which the segment is in the second."""

    def __init__(self, *endpoints: Endpoint) -> None:
        super().__init__(endpoints[0])
        self._endpoints = list(endpoints)
        self.forgotten = 0

    async def endpoint_of(self, segment: str) -> Endpoint:
        return self._endpoints[min(self.forgotten, len(self._endpoints) - 1)]

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        self.forgotten += 1


@pytest.mark.seed("36.26")
def test_a_writer_tries_ten_times_with_delays_that_grow_tenfold_to_twenty_seconds() -> None:
    assert ClientSettings().retry == Backoff(initial_ms=1, multiplier=10, max_ms=20_000, jitter=0, max_attempts=10)


@pytest.mark.seed("36.26")
async def test_a_wrong_host_forgets_the_endpoint_and_connects_to_the_owner() -> None:
    async with (
        MockSegmentStore(containers=1, own=set()) as wrong,
        MockSegmentStore(containers=1) as right,
        ConnectionPool(settings()) as pool,
    ):
        await make(right)
        where = Moving(endpoint(wrong), endpoint(right))
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(b"event")
        assert where.forgotten == 1
        assert content(right) == b"event"


@pytest.mark.seed("36.26")
@pytest.mark.parametrize("end", ["seal", "delete"])
async def test_a_sealed_or_missing_segment_hands_over_what_is_not_acknowledged_in_order(end: str) -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store, SEGMENT, "scope/stream/1.#epoch.1")
        where = FixedStore(endpoint(store))
        over: list[SegmentOver] = []
        heard = asyncio.Event()

        def on_over(writer: SegmentWriter, error: SegmentOver) -> None:
            over.append(error)
            heard.set()

        writer = SegmentWriter(pool, where, SEGMENT, on_over=on_over)
        await writer.write(b"stored")
        if end == "seal":
            store.store.seal_segment(SEGMENT, now_ms=0)
        else:
            store.store.delete_segment(SEGMENT)
        acks = [writer.write(b"%d" % number, tag=number) for number in range(3)]
        await heard.wait()
        acks += [writer.write(b"%d" % number, tag=number) for number in range(3, 6)]
        assert [type(error) for error in over] == [SegmentSealed if end == "seal" else SegmentMissing]
        assert writer.state is WriterState.OVER
        pending = writer.take_pending()
        assert [item.tag for item in pending] == list(range(6))
        successor = SegmentWriter(pool, where, "scope/stream/1.#epoch.1")
        successor.adopt(pending)
        await asyncio.gather(*acks)
        assert content(store, "scope/stream/1.#epoch.1") == b"012345"
        await writer.aclose()
        await successor.aclose()


@pytest.mark.seed("36.26")
async def test_without_successors_what_is_not_acknowledged_fails_as_sealed() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        await writer.write(b"stored")
        store.store.seal_segment(SEGMENT, now_ms=0)
        acks = [writer.write(b"late") for _ in range(3)]
        results = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(each) for each in results] == [SegmentSealed] * 3
        with pytest.raises(SegmentSealed):
            writer.write(b"later")
        with pytest.raises(SegmentSealed):
            await writer.aclose()
        await writer.aclose()


@pytest.mark.seed("36.26")
async def test_a_store_that_cannot_be_reached_fails_what_waits_after_the_last_attempt() -> None:
    async with ScriptedStore() as gone:
        where = gone.endpoint
    async with ConnectionPool(settings(retry=FAST_RETRY)) as pool:
        writer = SegmentWriter(pool, FixedStore(where), SEGMENT)
        flushing = asyncio.ensure_future(writer.flush())
        ack = writer.write(b"event")
        with pytest.raises(RetriesExhausted) as caught:
            await ack
        assert caught.value.actual == 4
        assert caught.value.endpoint == str(where)
        await asyncio.gather(flushing, return_exceptions=True)
        with pytest.raises(RetriesExhausted):
            await writer.aclose()


@pytest.mark.seed("36.26")
async def test_a_store_that_sets_up_but_never_acknowledges_does_not_hang_the_writer() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))

    config = settings(request_timeout_ms=20, retry=FAST_RETRY)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        writer = SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT)
        with pytest.raises(RetriesExhausted):
            await writer.write(b"event")
        await writer.abort()


@pytest.mark.seed("36.27")
async def test_flush_returns_when_what_was_written_before_it_is_acknowledged() -> None:
    held: list[Callable[[], None]] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd):
            number, count = command.last_event_number, command.num_events
            held.append(
                lambda: peer.send(DataAppended(command.request_id, command.writer_id, number, number - count, 1))
            )

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        writer = SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT)
        await writer.flush()
        acks = [writer.write(b"x") for _ in range(3)]
        flushing = asyncio.ensure_future(writer.flush())
        await until(lambda: len(held) == 1)
        later = writer.write(b"y")
        await until(lambda: len(held) == 2)
        assert not flushing.done()
        held[0]()
        await flushing
        assert all(ack.done() for ack in acks)
        assert not later.done()
        held[1]()
        await writer.aclose()
        assert later.done()


@pytest.mark.seed("36.7")
async def test_closing_the_pool_ends_a_writers_futures_and_its_flush() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))

    async with ScriptedStore(answer) as store:
        pool = ConnectionPool(settings())
        writer = SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT)
        ack = writer.write(b"x")
        flushing = asyncio.ensure_future(writer.flush())
        await until(lambda: writer.in_flight)
        await pool.aclose()
        results = await asyncio.gather(ack, flushing, return_exceptions=True)
        assert [type(each) for each in results] == [Closed, Closed]
        await writer.abort()


@pytest.mark.seed("36.9")
@pytest.mark.parametrize("pooled", [True, False])
async def test_without_pooling_each_writer_and_reader_has_a_connection_of_its_own(pooled: bool) -> None:
    config = settings(enable_connection_pooling=pooled, max_connections_per_store=2)
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        writers = [SegmentWriter(pool, where, SEGMENT) for _ in range(4)]
        await asyncio.gather(*[writer.write(b"x") for writer in writers])
        reader = SegmentReader(pool, where, SEGMENT)
        assert (await reader.read()).data == b"xxxx"
        assert pool.metrics().connections == (2 if pooled else 5)
        reader.close()
        for writer in writers:
            await writer.aclose()
        assert pool.metrics().connections == (2 if pooled else 0)


# --- 36.28, 36.30: reads --------------------------------------------------------------------------------------------


@pytest.mark.seed("36.28")
async def test_reads_bring_at_most_two_mebibytes_wait_at_the_tail_and_tell_the_end() -> None:
    async with MockSegmentStore(long_poll_s=0.02) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        data = Random(2).randbytes(5 << 20)
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            for at in range(0, len(data), 1 << 20):
                writer.write(data[at : at + (1 << 20)])
        async with SegmentReader(pool, where, SEGMENT) as reader:
            got = b""
            while len(got) < len(data):
                chunk = await reader.read()
                assert chunk.offset == len(got)
                assert 0 < len(chunk.data) <= 2 << 20
                got += chunk.data
            assert got == data
            empty = await reader.read()
            assert (empty.data, empty.at_tail, empty.end_of_segment) == (b"", True, False)
            store.store.seal_segment(SEGMENT, now_ms=0)
            chunks = [chunk async for chunk in reader]
            assert chunks == []
        async with SegmentReader(pool, where, SEGMENT, len(data)) as reader:
            assert (await reader.read()).end_of_segment


@pytest.mark.seed("36.28")
async def test_a_tiny_read_still_brings_eight_bytes() -> None:
    config = settings(read_size_bytes=8)
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(b"0123456789abcdef")
        async with SegmentReader(pool, where, SEGMENT) as reader:
            assert [(await reader.read()).data for _ in range(2)] == [b"01234567", b"89abcdef"]
        async with await Peer.connect(store) as peer:
            (reply,) = await peer.ask(ReadSegment(SEGMENT, 0, 1, "", 5))
            assert isinstance(reply, SegmentRead)
            assert bytes(reply.data) == b"01234567"


@pytest.mark.seed("36.28")
async def test_a_waiting_read_hears_of_appends_and_of_the_seal() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with SegmentReader(pool, where, SEGMENT) as reader, SegmentWriter(pool, where, SEGMENT) as writer:
            waiting = asyncio.ensure_future(reader.read())
            await writer.write(b"one")
            assert (await waiting).data == b"one"
            waiting = asyncio.ensure_future(reader.read())
            await store.wait_for("type = READ_SEGMENT", count=2, stage="received")
            async with SegmentRequests(pool, where) as requests:
                await requests.ask(SEGMENT, SegmentSealedReply, lambda id_, token: SealSegment(id_, SEGMENT, token))
            assert (await waiting).end_of_segment


@pytest.mark.seed("36.28")
async def test_replies_to_many_reads_on_one_connection_reach_who_asked_in_any_order() -> None:
    random = Random(3)
    held: list[ReadSegment] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, ReadSegment)
        held.append(command)
        if len(held) == 16:
            random.shuffle(held)
            for each in held:
                text = f"{each.segment} at {each.offset};".encode()
                peer.send(SegmentRead(each.segment, each.offset, False, False, text, each.request_id))
            held.clear()

    config = settings(max_connections_per_store=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        where = FixedStore(store.endpoint)
        # All read the same segments at the same offsets, so only the request id tells their replies apart.
        readers = [SegmentReader(pool, where, f"s{n % 4}", n % 2, read_ahead=False) for n in range(16)]
        for _ in range(5):
            chunks = await asyncio.gather(*[reader.read() for reader in readers])
            for n, chunk in enumerate(chunks):
                assert chunk.data.startswith(f"s{n % 4} at {chunk.offset}".encode())
        assert sum(reader.stale_replies for reader in readers) == 0
        assert len(store.peers) == 1
        for reader in readers:
            reader.close()


@pytest.mark.seed("36.28")
async def test_a_cancelled_read_loses_nothing() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with SegmentReader(pool, where, SEGMENT) as reader, SegmentWriter(pool, where, SEGMENT) as writer:
            got = b""
            expected = b""
            for number in range(40):
                reading = asyncio.ensure_future(reader.read())
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                event = b"<%d>" % number
                expected += event
                ack = writer.write(event)
                if number % 3:
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    reading.cancel()
                (result,) = await asyncio.gather(reading, return_exceptions=True)
                if not isinstance(result, BaseException):
                    got += result.data
                await ack
            while len(got) < len(expected):
                got += (await reader.read()).data
            assert got == expected


@pytest.mark.seed("36.28")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_reader_goes_on_where_it_was_when_its_connection_is_cut(when: str) -> None:
    config = settings(read_size_bytes=64, retry=Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=10))
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        data = Random(4).randbytes(2_000)
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(data)
        store.faults.add("type = READ_SEGMENT", every=4, do=f"close {when}")
        async with SegmentReader(pool, where, SEGMENT) as reader:
            got = b""
            while len(got) < len(data):
                got += (await reader.read()).data
            assert got == data


@pytest.mark.seed("36.30")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("flow_exists", [False, True])
async def test_a_refused_read_ends_its_reader_and_disturbs_no_other_flow(strict: bool, flow_exists: bool) -> None:
    """The offset of the read, taken for a request id, is that of flow 3, request 7."""
    config = settings(max_connections_per_store=1)
    async with (
        MockSegmentStore(auth_key="k" * 64, strict_request_ids=strict) as store,
        ConnectionPool(config) as pool,
    ):
        bystanders = [Recorder() for _ in range(3 if flow_exists else 2)]
        flows = [await pool.flow(endpoint(store), each) for each in bystanders]
        reader = SegmentReader(pool, FixedStore(endpoint(store), "bad"), SEGMENT, 3 << 32 | 7)
        with pytest.raises(TokenRefused) as caught:
            await reader.read()
        assert caught.value.request_id == (reader._request_id if strict else 3 << 32 | 7)
        assert [each.replies for each in bystanders] == [[]] * len(bystanders)
        assert [each.lost for each in bystanders] == [[]] * len(bystanders)
        assert not any(flow.closed for flow in flows)
        reader.close()


@pytest.mark.seed("36.30")
async def test_the_refusal_of_a_read_whose_reader_is_gone_disturbs_nobody() -> None:
    held: list[Callable[[], None]] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, ReadSegment):
            held.append(lambda: peer.send(AuthTokenCheckFailed(command.offset)))
        elif isinstance(command, GetStreamSegmentInfo):
            held[0]()
            peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, 0, 0))

    config = settings(max_connections_per_store=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        client = await RawClient.open(pool, store.endpoint)
        offset = client.flow.flow_id << 32 | 99
        reader = SegmentReader(pool, FixedStore(store.endpoint), SEGMENT, offset)
        reading = asyncio.ensure_future(reader.read())
        await until(lambda: held)
        reader.close()
        with pytest.raises(Closed):
            await reading
        reply = await client.request(lambda id_: GetStreamSegmentInfo(id_, SEGMENT, ""))
        assert isinstance(reply, StreamSegmentInfo)
        assert not client.closed
        assert pool.metrics().dropped_replies == 1
        client.close()


@pytest.mark.seed("36.30")
async def test_a_read_whose_answer_went_elsewhere_is_asked_anew_and_one_that_waits_is_not() -> None:
    reads: list[int] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, ReadSegment):
            reads.append(command.request_id)
            if length and len(reads) > 1:
                peer.send(SegmentRead(SEGMENT, 0, False, False, b"data", command.request_id))
        elif isinstance(command, GetStreamSegmentInfo):
            nonlocal probes
            probes += 1
            peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, length, 0))

    length = probes = 0
    config = settings(read_timeout_ms=10)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        reader = SegmentReader(pool, FixedStore(store.endpoint), SEGMENT)
        reading = asyncio.ensure_future(reader.read())
        await until(
            lambda: sum(isinstance(each, GetStreamSegmentInfo) for each in store.peers[:1] and store.peers[0].got) > 2
        )
        assert len(reads) == 1, "nothing to read: the read still waits and is not asked again"
        length = 4
        assert (await reading).data == b"data"
        assert len(set(reads)) == len(reads) >= 2, "asked anew with another request id"
        reader.close()


@pytest.mark.seed("36.29")
async def test_raw_requests_a_reader_and_a_writer_of_one_segment_share_the_pool() -> None:
    """The three roles of a revisioned stream client; the client itself adds nothing to the sockets."""
    config = settings(max_connections_per_store=2)
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with (
            SegmentWriter(pool, where, SEGMENT) as writer,
            SegmentReader(pool, where, SEGMENT) as reader,
            SegmentRequests(pool, where) as requests,
        ):
            await writer.write(b"state")
            assert (await reader.read()).data == b"state"
            info = await requests.ask(
                SEGMENT, StreamSegmentInfo, lambda id_, token: GetStreamSegmentInfo(id_, SEGMENT, token)
            )
            assert info.write_offset == 5
            assert pool.metrics().connections == 2
            assert store.server.service.counters.connections_open <= 2 + 1
