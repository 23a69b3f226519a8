"""PDP-36, ids 36.4 and 36.14 to 36.16: request ids, raw requests and the fields that carry them.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from segstore.client.connection import ConnectionPool, FixedStore, RawClient, SegmentRequests
from segstore.client.errors import ConnectionLost, PeerRefused, RetriesExhausted, SegmentMissing, WrongStore
from segstore.client.segment import SegmentReader, SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    ErrorMessageCode,
    Event,
    GetStreamSegmentInfo,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
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
from segstore.wire.request_id import flow_of, pack, sequence_of
from tests.client.segments import FAST_RETRY, SEGMENT, make
from tests.client.support import ScriptedPeer, ScriptedStore, create, endpoint, settings
from tests.looped import looped
from tests.server.support import Peer


@pytest.mark.seed("36.4")
async def test_a_writer_and_a_reader_keep_one_request_id_and_a_raw_client_takes_the_next() -> None:
    async with MockSegmentStore(long_poll_s=0.02) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        seen: dict[str, set[int]] = {}
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            for _ in range(3):
                await writer.write(b"event")
                writer._flow.connection.end(ConnectionLost("cut"))  # a new connection, the same id
                await writer.write(b"again")
        for request in store.requests():
            if request.request_id is not None and request.segments == (SEGMENT,):
                seen.setdefault(request.type_name, set()).add(request.request_id)
        assert seen["SETUP_APPEND"] == seen["APPEND_BLOCK_END"] == {pack(1, 0)}
        reader = SegmentReader(pool, where, SEGMENT)
        for _ in range(3):
            await reader.read()
        assert sequence_of(reader._request_id) == 0
        client = await RawClient.open(pool, endpoint(store))
        ids: list[int] = []

        def ask(request_id: int) -> Command:
            ids.append(request_id)
            return GetStreamSegmentInfo(request_id, SEGMENT, "")

        for _ in range(3):
            await client.request(ask)
        assert [sequence_of(each) for each in ids] == [0, 1, 2]
        assert len({flow_of(each) for each in ids}) == 1
        reader.close()
        client.close()


@pytest.mark.seed("36.14")
@looped(
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
        assert [type(result) for result in results] == [ConnectionLost] * 3, "retryable"
        assert client.closed
        with pytest.raises(ConnectionLost):
            await client.request(lambda id_: SealSegment(id_, SEGMENT, ""))
        assert pool.metrics().connections == 1, "its flow is closed, not the connection"


@pytest.mark.seed("36.14")
async def test_a_failure_that_matches_no_request_closes_the_client_and_a_success_is_ignored() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, GetStreamSegmentInfo)
        flow = flow_of(command.request_id)
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


@pytest.mark.watched
@pytest.mark.seed("36.14")
async def test_requests_about_segments_are_tried_again_and_other_refusals_are_errors(store: MockSegmentStore) -> None:
    async with ConnectionPool(settings(retry=FAST_RETRY)) as pool:
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
@looped(
    ("command", "missing_bytes"),
    [
        (ReadSegment("s", 0, 1, "t", 7), 8),
        (SegmentRead("s", 0, True, False, b"data", 7), 8),
        (AppendBlockEnd(UUID(int=3), 1, b"x", 1, 1, 7), 8),
        (ConditionalAppend(UUID(int=3), 2, 1, Event(b"ab"), 7), 8),
        (DataAppended(7, UUID(int=3), 2, 1, 5), 16),  # its offset is younger still
        (ConditionalCheckFailed(UUID(int=3), 2, 7), 8),
    ],
)
def test_a_request_id_that_an_older_peer_does_not_send_is_minus_one(command: Command, missing_bytes: int) -> None:
    assert decode(encode(command)).request_id == 7  # type: ignore[attr-defined]
    assert as_older(command, missing_bytes).request_id == -1  # type: ignore[attr-defined]


@pytest.mark.seed("36.15")
async def test_replies_to_appends_and_reads_carry_the_request_id(store: MockSegmentStore) -> None:
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
    async with MockSegmentStore(watched=False) as store:
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
