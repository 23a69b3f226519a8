"""Requests and waiting reads, without a socket."""

import logging
from typing import Any
from uuid import UUID

import jwt
import pytest

from segstore.server import LimitSettings
from segstore.server.connection import SessionEnding
from segstore.wire import (
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    ConditionalAttributeUpdate,
    CreateTableSegment,
    DeleteSegment,
    ErrorMessage,
    ErrorMessageCode,
    GetStreamSegmentInfo,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadTable,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SegmentAlreadyExists,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    TableEntries,
    TableEntriesUpdated,
    TableEntry,
    TableIteratorArgs,
    TableKey,
    TableKeysRead,
    TableValue,
    TruncateSegment,
    UpdateTableEntries,
    WrongHost,
)
from segstore.wire.commands import ChunkInfo, FlushToStorage, ListStorageChunks, StorageChunksListed, StorageFlushed
from tests.looped import looped
from tests.server.support import SEGMENT, Desk, FakeClock, append, create, make_service, read, set_up

KEY = "0123456789abcdef" * 4


def token(**claims: object) -> str:
    return jwt.encode(claims, KEY.encode(), algorithm="HS512")


def segment_read(offset: int, data: bytes, *, tail: bool, request_id: int = 4) -> SegmentRead:
    return SegmentRead(SEGMENT, offset, tail, False, data, request_id)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def writer(clock: FakeClock) -> Desk:
    desk = Desk(make_service(clock, long_poll_s=20))
    desk.ask(create(), set_up())
    return desk


def test_a_read_at_the_tail_is_answered_by_the_next_append(writer: Desk) -> None:
    reader = Desk(writer.service)
    assert reader.ask(read()) == []
    writer.ask(append(0, b"news"))
    assert reader.take() == [segment_read(0, b"news", tail=True)]
    assert reader.session.reads == set()


def test_an_append_and_the_read_that_waits_for_it_may_share_a_connection(writer: Desk) -> None:
    answers = writer.ask(read(), append(0, b"news"), read(4, request_id=5))
    assert [type(answer).__name__ for answer in answers] == ["DataAppended", "SegmentRead"]
    assert len(writer.session.reads) == 1


@pytest.mark.parametrize("appended", [True, False])
def test_reads_of_a_session_that_has_ended_are_dropped_in_slices_and_not_answered(
    writer: Desk, clock: FakeClock, appended: bool
) -> None:
    """appended: they are woken; else their time passes."""
    reader = Desk(writer.service)
    reader.ask(*(read(request_id=each) for each in range(1, 6)))
    reader.session.end("")
    assert len(reader.session.reads) == 5
    if appended:
        writer.ask(append(0, b"news"))
    else:
        clock.advance(21)
    assert reader.take() == []
    assert reader.session.reads == set()
    leaver = Desk(writer.service)
    leaver.ask(*(read(4 if appended else 0, request_id=each) for each in range(1, 6)))
    leaver.session.close()
    assert (leaver.session.reads, len(writer.service.store.waiters)) == (set(), 0)


def test_a_read_at_the_tail_is_answered_empty_when_its_time_is_over(writer: Desk, clock: FakeClock) -> None:
    reader = Desk(writer.service)
    reader.ask(read())
    clock.advance(19.9)
    assert reader.take() == []
    clock.advance(0.2)
    assert reader.take() == [segment_read(0, b"", tail=True)]
    writer.ask(append(0))
    assert reader.take() == []


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (SealSegment(9, SEGMENT, ""), SegmentIsSealed(4, SEGMENT, "", 0)),
        (DeleteSegment(9, SEGMENT, ""), SegmentRead(SEGMENT, 0, True, False, b"", 4)),
    ],
    ids=["sealed", "deleted"],
)
def test_a_waiting_read_hears_of_the_end_of_its_segment(
    writer: Desk, change: SealSegment, answer: SegmentIsSealed
) -> None:
    reader = Desk(writer.service)
    reader.ask(read())
    assert isinstance(writer.ask(change)[0], (SegmentSealed, SegmentDeleted))
    assert reader.take() == [answer]


def test_a_waiting_read_hears_that_its_container_went_elsewhere() -> None:
    desk = Desk(make_service(containers=1))
    desk.ask(create(), read())
    desk.service.store.release(0)
    desk.service.answer_waiting()
    assert desk.take() == [WrongHost(4, SEGMENT, "", "")]


def test_one_waiting_read_too_many_ends_the_connection() -> None:
    desk = Desk(make_service(limits=LimitSettings(connection_waiting_reads=3)))
    desk.ask(create(), *[read(request_id=each) for each in range(3)])
    assert not desk.session.ended
    desk.ask(read())
    assert desk.session.ending is SessionEnding.DROPPED
    assert "3 waiting reads" in desk.session.why
    assert len(desk.service.store.waiters) == 3


def test_answered_reads_make_room_for_others() -> None:
    desk = Desk(make_service(limits=LimitSettings(connection_waiting_reads=3)))
    desk.ask(create(), set_up())
    for number in range(10):
        desk.ask(*[read(number * 4, request_id=each) for each in range(3)])
        assert len(desk.ask(append(number))) == 4
    assert not desk.session.ended


def test_a_peer_that_has_too_much_to_read_gets_its_woken_reads_later(writer: Desk, clock: FakeClock) -> None:
    reader = Desk(writer.service)
    reader.ask(*[read(request_id=each) for each in range(5)])
    reader.session.full = True
    writer.ask(append(0, b"news"))
    assert reader.take() == []
    assert len(reader.session.woken) == 5
    assert reader.session.waiting_bytes > 0
    clock.advance(60)  # it was woken: its time does not end any more
    assert reader.take() == []
    reader.session.full = False
    writer.service.answer_later(reader.session)
    assert reader.take() == [segment_read(0, b"news", tail=True, request_id=each) for each in range(5)]
    assert reader.session.waiting_bytes == 0


def test_a_read_woken_late_meets_the_segment_as_it_is_then(writer: Desk) -> None:
    reader = Desk(writer.service)
    reader.ask(read(), read(request_id=5))
    reader.session.full = True
    writer.ask(append(0, b"news"), TruncateSegment(9, SEGMENT, 4, ""))
    reader.session.full = False
    writer.service.answer_later(reader.session)
    assert [type(each) for each in reader.take()] == [SegmentIsTruncated, SegmentIsTruncated]


def test_a_session_that_closes_takes_its_woken_reads_with_it(writer: Desk) -> None:
    reader = Desk(writer.service)
    reader.ask(read())
    reader.session.full = True
    writer.ask(append(0))
    reader.session.close()
    assert not reader.session.woken
    assert not reader.session.reads


@pytest.mark.parametrize("appended", [True, False])
def test_a_reader_that_cannot_be_answered_hurts_no_other_connection(
    writer: Desk, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, appended: bool
) -> None:
    """appended: the reads are woken; else their time passes."""
    healthy, broken, last = readers = [Desk(writer.service) for _ in range(3)]
    for reader in readers:
        reader.ask(read())

    def fail(_: object) -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(broken.session, "reply_with_payload", fail)
    with caplog.at_level(logging.ERROR):
        if appended:
            assert len(writer.ask(append(0))) == 1
        else:
            clock.advance(20)
    assert broken.session.ending is SessionEnding.DROPPED
    answer = segment_read(0, b"data" if appended else b"", tail=True)
    assert [each.take() for each in (healthy, last)] == [[answer], [answer]]
    assert writer.service.counters.internal_errors == 1
    assert "unexpected error" in caplog.text


@pytest.mark.seed("36.30")
@looped(("strict", "request_id"), [(False, 77), (True, 4)])
def test_a_refused_read_carries_its_offset_or_strictly_its_request_id(strict: bool, request_id: int) -> None:
    desk = Desk(make_service(auth_key=KEY, strict_request_ids=strict))
    refused = AuthTokenCheckFailed(request_id, "", AuthTokenErrorCode.TOKEN_CHECK_FAILED)
    assert desk.ask(read(77, token="none")) == [refused]
    assert not desk.session.ended


def test_a_read_with_a_token_for_its_stream_is_served() -> None:
    desk = Desk(make_service(auth_key=KEY))
    desk.service.store.create_segment(SEGMENT, now_ms=0)
    desk.ask(read(token=token(**{"prn::/scope:scope/stream:stream": "READ"})))
    assert len(desk.session.reads) == 1


@pytest.mark.seed("36.25")
@looped("traces", [False, True])
def test_stack_traces_travel_only_where_they_are_switched_on(traces: bool) -> None:
    desk = Desk(make_service(stack_traces=traces))
    (missing,) = desk.ask(GetStreamSegmentInfo(8, SEGMENT, ""))
    assert isinstance(missing, NoSuchSegment)
    assert ("Traceback" in missing.server_stack_trace) is traces
    desk.ask(create())
    (exists,) = desk.ask(create())
    assert isinstance(exists, SegmentAlreadyExists)
    assert ("SegmentExists" in exists.server_stack_trace) is traces


def test_the_admin_port_always_sends_stack_traces() -> None:
    (missing,) = Desk(make_service(), admin=True).ask(GetStreamSegmentInfo(8, SEGMENT, ""))
    assert isinstance(missing, NoSuchSegment)
    assert "Traceback" in missing.server_stack_trace


@pytest.mark.seed("36.25")
def test_what_has_no_reply_ends_the_connection(writer: Desk) -> None:
    assert writer.ask(read(-1)) == []
    assert writer.session.ending is SessionEnding.FLUSHED
    assert "-1" in writer.session.why


def test_a_reply_that_fits_no_frame_ends_that_connection_with_a_reason(writer: Desk) -> None:
    from segstore.wire import FrameTooLarge

    writer.service.failed(writer.session, FrameTooLarge("a frame of 20000000 bytes", limit=16_777_215))
    assert "cannot be written" in writer.session.why
    assert writer.service.counters.internal_errors == 0


def test_a_read_below_the_start_carries_no_stack_trace_where_a_truncation_does() -> None:
    desk = Desk(make_service(stack_traces=True))
    desk.ask(create(), set_up(), append(0, b"12345678"), TruncateSegment(9, SEGMENT, 8, ""))
    assert desk.ask(read(3)) == [SegmentIsTruncated(4, SEGMENT, 8, "", 3)]
    (refused,) = desk.ask(TruncateSegment(9, SEGMENT, 3, ""))
    assert isinstance(refused, SegmentIsTruncated)
    assert "Traceback" in refused.server_stack_trace


def test_a_merge_into_an_index_is_done_and_then_refused(writer: Desk) -> None:
    index = f"{SEGMENT}#index"
    writer.ask(append(1))
    merged, refused = writer.ask(MergeSegments(7, index, SEGMENT, "", ()))
    assert isinstance(merged, SegmentsMerged)
    assert (merged.target, merged.source) == (index, SEGMENT)
    message = "segmentName is already an index segment name"
    assert refused == ErrorMessage(7, SEGMENT, message, ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION)


def test_a_batch_of_more_segments_than_can_be_merged_in_good_time_is_refused(writer: Desk) -> None:
    assert isinstance(writer.ask(MergeSegmentsBatch(7, SEGMENT, ("gone",) * 256, ""))[0], SegmentsBatchMerged)
    (refused,) = writer.ask(MergeSegmentsBatch(8, SEGMENT, ("gone",) * 257, ""))
    message = "A request names 257 segments, but at most 256 are allowed."
    assert refused == ErrorMessage(8, SEGMENT, message, ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION)
    assert not writer.session.ended


def test_requests_that_name_too_many_keys_are_refused_and_change_nothing() -> None:
    desk = Desk(make_service(limits=LimitSettings(request_keys=3)))
    desk.ask(create(), CreateTableSegment(1, "table", False, 0, "", 0))
    keys = [TableKey(b"%d" % number) for number in range(4)]
    entries = [TableEntry(key, TableValue(b"value")) for key in keys]
    updates = [ConditionalAttributeUpdate(UUID(int=number), 0, 0, 0) for number in range(4)]
    requests: list[Any] = [
        UpdateTableEntries(2, "table", "", TableEntries(tuple(entries))),
        ReadTable(2, "table", "", tuple(keys)),
        RemoveTableKeys(2, "table", "", tuple(keys)),
        MergeSegments(2, SEGMENT, "table", "", tuple(updates)),
    ]
    for request in requests:
        (refused,) = desk.ask(request)
        assert isinstance(refused, ErrorMessage)
        assert "4 keys, but at most 3 are allowed" in refused.message
    assert desk.service.store.table("table").info()[2] == 0
    assert not desk.service.store.segment("table").sealed
    (updated,) = desk.ask(UpdateTableEntries(2, "table", "", TableEntries(tuple(entries[:3]))))
    assert isinstance(updated, TableEntriesUpdated)


def test_a_page_of_a_table_ends_where_it_has_enough_entries_and_goes_on_there() -> None:
    desk = Desk(make_service())
    desk.ask(CreateTableSegment(1, "table", False, 0, "", 0))
    count = 6_000
    desk.service.store.container_for("table").update_table(
        "table", [(b"%d" % each, b"", -(1 << 63)) for each in range(count)], now_ms=1
    )
    token, found = b"", []
    while True:
        (page,) = desk.ask(ReadTableKeys(2, "table", "", 1 << 30, TableIteratorArgs(token, b"", b"", b"")))
        assert isinstance(page, TableKeysRead)
        assert len(page.keys) <= 1024
        if not page.keys:
            break
        found += [bytes(key.data) for key in page.keys]
        token = bytes(page.continuation_token)
    assert sorted(found) == sorted(b"%d" % each for each in range(count))


def test_the_admins_requests_know_containers_and_segments(writer: Desk) -> None:
    writer.ask(append(1))
    service, size = writer.service, writer.service.store.segment(SEGMENT).length
    for offset, chunks in ((0, (ChunkInfo(size, 0, 0, SEGMENT, False),)), (size, ())):
        service.store.truncate_segment(SEGMENT, offset)
        asked = Desk(service, admin=True).ask(ListStorageChunks(SEGMENT, "", 5), FlushToStorage(0, "", 6))
        assert asked == [StorageChunksListed(5, chunks), StorageFlushed(6)]
    for request in (ListStorageChunks("no/such/0", "", 5), FlushToStorage(77, "", 6)):
        desk = Desk(service, admin=True)
        assert (desk.ask(request), desk.session.ended) == ([], True)
