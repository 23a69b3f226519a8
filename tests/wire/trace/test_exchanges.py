"""Which reply belongs to which request, and which segment a frame is about."""

import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    DataAppended,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
    SegmentAttribute,
    SegmentSealed,
    SetupAppend,
)
from segstore.wire.schema import Unknown
from segstore.wire.trace import Exchange, Exchanges, Record, RecordKind, parse_filter
from tests.wire.trace.traces import frame, record, records

W, V = uuid.UUID(int=1), uuid.UUID(int=2)


def follow(*of: Record) -> list[Exchange]:
    return list(map(Exchanges().see, of))


def unpaired(seen: list[Exchange]) -> tuple[dict[str, int], dict[str, int]]:
    """The requests without a reply, and the replies without a request, by type."""
    return Counter(each.name for each in seen if each.awaits_reply), Counter(each.name for each in seen if each.unasked)


def test_a_reply_answers_the_request_with_its_id() -> None:
    seen = follow(
        record(SealSegment(1, "a/b/0", ""), at=10),
        record(SealSegment(2, "a/b/1", ""), at=11),
        record(SegmentSealed(2, "a/b/1"), at=13, reply=True),
        record(SegmentSealed(1, "a/b/0"), at=20, reply=True),
    )
    assert seen[2].answers == (seen[1],)
    assert seen[3].answers == (seen[0],)
    assert [each.latency_ns for each in seen] == [10, 2, 2, 10]
    assert [each.time_ns for each in seen] == [0, 1, 3, 10]
    assert unpaired(seen) == ({}, {})


def test_ids_of_other_connections_are_others() -> None:
    seen = follow(
        record(SealSegment(1, "a/b/0", ""), connection=1), record(SegmentSealed(1, "a/b/0"), connection=2, reply=True)
    )
    assert seen[1].answers == ()
    assert unpaired(seen) == ({"SEAL_SEGMENT": 1}, {"SEGMENT_SEALED": 1})


def test_a_connection_that_closes_takes_its_requests_with_it() -> None:
    close = record(b"{}", kind=RecordKind.CLOSE)
    seen = follow(record(SealSegment(1, "a/b/0", "")), close, record(SegmentSealed(1, "a/b/0"), reply=True))
    assert seen[2].answers == ()
    assert unpaired(seen) == ({"SEAL_SEGMENT": 1}, {"SEGMENT_SEALED": 1})


def test_a_read_that_waits_when_its_client_closes_is_given_up_and_not_unanswered() -> None:
    read, seal = record(ReadSegment("a/b/0", 0, 1, "", 1)), record(SealSegment(2, "a/b/0", ""))
    for by_store, given_up, unanswered in (
        (False, 1, {"SEAL_SEGMENT": 1}),
        (True, 0, {"READ_SEGMENT": 1, "SEAL_SEGMENT": 1}),
    ):
        seen = follow(read, seal, record(b"{}", kind=RecordKind.CLOSE, reply=by_store))
        assert seen[2].given_up == tuple(seen[:given_up])
        assert {each.name: 1 for each in seen[2].pending if each not in seen[2].given_up} == unanswered


def appended(number: int, request_id: int = 7, writer: uuid.UUID = W) -> list[Record]:
    return [
        record(AppendBlock(writer, b""), at=number),
        record(AppendBlockEnd(writer, 0, b"", 1, number, request_id), at=number),
    ]


def test_segments_are_those_that_are_named() -> None:
    seen = follow(
        record(ReadSegment("a/b/0", 0, 1, "", 1)),
        record(MergeSegments(2, "target", "source", "")),
        record(MergeSegmentsBatch(3, "target", ("one", "two"), "")),
    )
    assert [each.segments for each in seen] == [("a/b/0",), ("target", "source"), ("target", "one", "two")]


def test_a_segment_that_is_not_named_is_that_of_the_writer_or_of_the_request() -> None:
    attribute = frame(34, (5).to_bytes(8, "big") + b"\0\x05a/b/1" + bytes(16) + bytes(2))
    seen = follow(
        record(SetupAppend(7, W, "a/b/0", "")),
        *appended(1),
        record(DataAppended(7, W, 1, 0, 0), reply=True),
        record(attribute),
        record(SegmentAttribute(5, 0), reply=True),
        *appended(1, writer=V),
    )
    assert [each.segments for each in seen] == [*[("a/b/0",)] * 4, ("a/b/1",), ("a/b/1",), (), ()]


def test_what_does_not_decode_is_malformed_and_keeps_its_type() -> None:
    seen = follow(record(frame(9, b"ab")), record(frame(111)), record(b"ab", kind=RecordKind.BYTES), record(b"abc"))
    assert [each.malformed for each in seen] == [True, False, True, True]
    assert [each.type_name for each in seen] == ["READ_SEGMENT", "UNKNOWN", None, None]
    assert isinstance(seen[1].command, Unknown)
    assert "READ_SEGMENT.segment" in str(seen[0].error)
    assert [each.kind for each in seen] == ["frame", "frame", "bytes", "frame"]


def test_a_filter_takes_an_exchange() -> None:
    seen = follow(
        record(SetupAppend(7, W, "a/b/0", "")),
        *appended(1),
        record(NoSuchSegment(7, "a/b/0", "", -1), at=9_000_000, reply=True),
    )
    chosen = parse_filter("scope = a and stream = b and failure and latency > 5ms and flow = 0 and direction = reply")
    assert [chosen(each) for each in seen] == [False, False, False, True]
    assert [parse_filter("writer ~ *1")(each) for each in seen] == [True, True, True, False]


def test_a_request_has_the_latency_and_failure_of_its_reply_once_it_is_settled() -> None:
    of = [
        record(SealSegment(1, "a/b/0", ""), at=10),
        record(SealSegment(2, "a/b/1", ""), at=11),
        record(NoSuchSegment(2, "a/b/1", "", -1), at=13, reply=True),
        record(SealSegment(3, "a/b/2", ""), at=14),
        record(b"{}", kind=RecordKind.CLOSE, at=15),
        record(SealSegment(4, "a/b/3", ""), at=16),
    ]
    settled = list(Exchanges().settled(of))
    assert [place for place, _ in settled] == [1, 2, 0, 3, 4, 5], "the first one waits for the end of its connection"
    assert [place for place, seen in settled if parse_filter("failure and latency = 2ns")(seen)] == [1, 2]
    assert unpaired([seen for _, seen in settled]) == ({"SEAL_SEGMENT": 3}, {})


def test_only_filters_that_need_it_have_connections_followed() -> None:
    assert Exchanges.needed(parse_filter("segment = a").names)
    assert Exchanges.needed(parse_filter("size > 1 and latency > 1s").names)
    assert Exchanges.needed(parse_filter("failure").names)
    assert not Exchanges.needed(parse_filter("type = HELLO and size > 1 and malformed").names)
    exchanges = Exchanges(follow=False)
    exchanges.see(record(SealSegment(1, "a/b/0", "")))
    assert exchanges.see(record(SegmentSealed(1, "a/b/0"), reply=True)).answers == ()


EVERYTHING = parse_filter("segment ~ * or flow = 1 or writer ~ * or latency > 1s or type ~ * or malformed or failure")


@given(st.lists(records(), max_size=8))
def test_any_records_are_taken(drawn: list[Record]) -> None:
    settled = dict(Exchanges().settled(drawn))
    assert [settled[place].record for place in range(len(drawn))] == drawn
    for seen in settled.values():
        EVERYTHING(seen)
