"""Requests and their replies, handshake and direction of a connection, without a socket."""

from uuid import UUID

import pytest

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    DataAppended,
    FrameDecoder,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
    SegmentCreated,
    SegmentIsSealed,
    SegmentSealed,
    UnknownCommand,
    WireError,
    decode,
    encode,
)
from segstore.wire.blocks import Append
from segstore.wire.errors import OutOfOrder, Truncated
from segstore.wire.protocol import HELLO, ClientProtocol, Requests, compatible, frames_of, gathered
from tests.looped import looped

WRITER, OTHER = UUID(int=7), UUID(int=8)


def end(number: int, writer: UUID = WRITER, request_id: int = 3) -> AppendBlockEnd:
    return AppendBlockEnd(writer, 0, b"", 1, number, request_id)


def ack(number: int, writer: UUID = WRITER, request_id: int = 3) -> DataAppended:
    return DataAppended(request_id, writer, number, 0, 0)


def pending(*of: object) -> Requests[object]:
    requests: Requests[object] = Requests()
    for each in of:
        assert requests.add(each, each)  # type: ignore[arg-type]
    return requests


def test_a_reply_answers_the_oldest_request_with_its_id_once() -> None:
    first, second, other = SealSegment(1, "a", ""), SealSegment(1, "b", ""), SealSegment(2, "c", "")
    requests = pending(first, second, other)
    assert list(requests) == [first, second, other]
    assert requests.answered(SegmentSealed(2, "c")) == [other]
    assert requests.answered(NoSuchSegment(1, "a", "", -1)) == [first]
    assert requests.answered(SegmentSealed(1, "b")) == [second]
    assert requests.answered(SegmentSealed(1, "b")) == []
    assert len(requests) == 0


def test_hello_and_keep_alive_answer_their_kind_and_no_request_with_the_id_that_they_seem_to_have() -> None:
    hidden = [SealSegment(0, "a", ""), SealSegment(-1, "b", "")]
    requests = pending(*hidden, HELLO, KeepAlive())
    assert requests.answered(KeepAlive()) == [KeepAlive()]
    assert requests.answered(Hello(12, 9)) == [HELLO]
    assert list(requests) == hidden


def test_one_acknowledgement_answers_the_appends_of_its_writer_up_to_its_number() -> None:
    item = Append("a", WRITER, 3, 1, b"", None, 3)
    conditional = ConditionalBlockEnd(OTHER, 1, 0, b"", 3)
    requests = pending(AppendBlock(WRITER, b""), end(1), end(2), item, conditional)
    assert len(requests) == 4
    assert requests.answered(ack(2)) == [end(1), end(2)]
    assert requests.answered(ack(2)) == []
    assert requests.answered(ConditionalCheckFailed(OTHER, 1, 3)) == [conditional]
    assert requests.answered(ack(3)) == [item]
    assert not list(requests)


def test_a_refusal_answers_the_oldest_append_with_its_id() -> None:
    requests = pending(end(1), end(2), end(1, OTHER, 4))
    assert requests.answered(SegmentIsSealed(4, "a", "", -1)) == [end(1, OTHER, 4)]
    assert requests.answered(SegmentIsSealed(3, "a", "", -1)) == [end(1)]
    assert list(requests) == [end(2)]


@pytest.mark.seed("36.30")
def test_a_refused_token_may_carry_the_offset_of_its_read() -> None:
    read, other = ReadSegment("a", 500, 10, "", 9), SealSegment(1, "a", "")
    requests = pending(other, read)
    refused = AuthTokenCheckFailed(500, "", AuthTokenErrorCode.TOKEN_EXPIRED)
    assert requests.answered(NoSuchSegment(500, "a", "", -1)) == []
    assert requests.answered(AuthTokenCheckFailed(-1, "", AuthTokenErrorCode.TOKEN_EXPIRED)) == []
    assert requests.answered(refused) == [read]
    assert requests.answered(refused) == []


def test_too_many_requests_are_forgotten_for_the_next() -> None:
    requests: Requests[int] = Requests(most=2)
    assert requests.add(SealSegment(1, "a", ""), 1)
    assert requests.add(end(1), 2)
    assert not requests.add(SealSegment(3, "a", ""), 3)
    assert (list(requests), len(requests)) == ([3], 1)
    assert requests.answered(ack(1)) == requests.answered(SegmentSealed(1, "a")) == []
    assert requests.answered(SegmentSealed(3, "a")) == [3]


def test_a_forgotten_request_has_no_answer() -> None:
    request = SealSegment(1, "a", "")
    requests = pending(request)
    requests.forget(request)
    requests.forget(request)
    assert len(requests) == 0
    assert requests.answered(SegmentSealed(1, "a")) == []


@looped(
    ("one", "other", "agree"),
    [((17, 5), (5, 1), True), ((17, 5), (4, 1), False), ((17, 5), (30, 17), True), ((17, 5), (30, 18), False)],
)
def test_peers_are_compatible_that_have_a_version_in_common(
    one: tuple[int, int], other: tuple[int, int], agree: bool
) -> None:
    assert compatible(Hello(*one), Hello(*other)) is compatible(Hello(*other), Hello(*one)) is agree


def test_a_protocol_pairs_what_it_reads_in_any_pieces() -> None:
    protocol: ClientProtocol[str] = ClientProtocol()
    assert decode(protocol.hello()) == HELLO
    assert decode(protocol.send(CreateSegment(1, "a", 0, 0, "", 0), "create")) == CreateSegment(1, "a", 0, 0, "", 0)
    append = Append("a", WRITER, 1, 1, b"event", None, 3)
    assert protocol.send(append, "append") == frames_of(append)
    data = b"".join(map(encode, [Hello(12, 9), SegmentCreated(1, "a"), SegmentCreated(2, "b"), ack(1)]))
    read = [each for at in range(len(data)) for each in protocol.receive(data[at : at + 1])]
    assert read == [
        (Hello(12, 9), []),
        (SegmentCreated(1, "a"), ["create"]),
        (SegmentCreated(2, "b"), []),
        (ack(1), ["append"]),
    ]
    assert protocol.peer == Hello(12, 9)
    assert len(protocol.requests) == 0


def test_a_protocol_of_an_older_version_speaks_it() -> None:
    protocol: ClientProtocol[None] = ClientProtocol(9)
    assert decode(protocol.hello()) == Hello(9, 5)
    with pytest.raises(OutOfOrder, match="Hello"):
        list(protocol.receive(encode(Hello(17, 10))))
    assert protocol.peer is None


@looped(
    ("bad", "error"),
    [
        (encode(SealSegment(1, "a", "")), OutOfOrder),
        (encode(AppendBlock(WRITER, b"")), OutOfOrder),
        (b"\0\0\0\x01\0\0\0\0", Truncated),
        (b"\0\0\x7f\x7f\0\0\0\0", UnknownCommand),
    ],
)
def test_what_no_store_says_is_an_error_after_the_replies_before_it(bad: bytes, error: type[WireError]) -> None:
    protocol: ClientProtocol[str] = ClientProtocol()
    protocol.send(SealSegment(1, "a", ""), "seal")
    replies = protocol.receive(encode(SegmentSealed(1, "a")) + bad)
    assert next(replies) == (SegmentSealed(1, "a"), ["seal"])
    with pytest.raises(error):
        next(replies)


def test_unknown_replies_are_yielded_where_the_decoder_keeps_them() -> None:
    protocol: ClientProtocol[str] = ClientProtocol(decoder=FrameDecoder(unknown="keep"))
    ((reply, answered),) = protocol.receive(b"\0\0\x7f\x7f\0\0\0\x01\0")
    assert (reply.type_name, answered) == ("UNKNOWN", [])


def test_small_parts_are_joined_and_large_ones_are_the_callers_own() -> None:
    large = [bytearray(4), bytearray(5)]
    parts = [b"a", b"bc", large[0], large[1], b"d", b"", b"e"]
    out = gathered(parts, 4)
    assert out == [b"abc", *large, b"de"]
    assert out[1] is large[0]
    assert out[2] is large[1]
    assert gathered([], 4) == []
