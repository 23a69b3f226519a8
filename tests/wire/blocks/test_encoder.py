"""Append blocks written: sizes, timers, the order of writers, and what the encoder refuses."""

from uuid import UUID

import pytest

from segstore.wire.blocks import MAX_PENDING_BYTES, Append, AppendBlockEncoder, AppendRule, AppendViolation
from segstore.wire.codec import decode
from segstore.wire.commands import AppendBlockEnd, Hello, SetupAppend
from segstore.wire.errors import BadField, FrameTooLarge, OutOfOrder, WireError
from segstore.wire.schema import Buffer
from tests.conformance.blocks import FixedBlockSize
from tests.looped import looped
from tests.wire.blocks.appends import SEGMENTS, A, B, C, frames_of, put, ready, set_up

MAX_FRAME = 2**24 - 1


def kinds(parts: list[Buffer]) -> list[str]:
    return [decode(data).type_name for data in frames_of(b"".join(parts))]


def test_payloads_are_returned_as_they_came() -> None:
    encoder = ready(1000, A, B)
    first, second, third = bytearray(b"first"), b"second", memoryview(b"third")
    assert any(part is first for part in put(encoder, A, 1, first))
    assert put(encoder, A, 2, second) == [second]
    assert put(encoder, B, 1, third) == []
    assert encoder.pending_bytes == 5
    assert any(part is third for part in encoder.flush())
    assert encoder.pending_bytes == 0


def test_an_append_without_set_up_is_refused_and_changes_nothing() -> None:
    encoder = ready(100, A)
    with pytest.raises(AppendViolation) as caught:
        put(encoder, B, 1, b"x")
    assert caught.value.rule is AppendRule.WRITER_UNKNOWN
    with pytest.raises(AppendViolation):
        encoder.append("other/segment/0", A, 1, 1, b"x", 0, 0.0)
    assert not encoder.block_open
    assert encoder.deadline() is None


@looped("number", [-1, 4, 5])
def test_event_numbers_of_a_writer_rise(number: int) -> None:
    encoder = ready(None, A)
    put(encoder, A, 5, b"x")
    with pytest.raises(AppendViolation) as caught:
        put(encoder, A, number, b"x")
    assert (caught.value.rule, caught.value.limit, caught.value.actual) == (AppendRule.NUMBER_BACKWARDS, 5, number)
    assert kinds(put(encoder, A, 6, b"x")) == ["APPEND_BLOCK", "APPEND_BLOCK_END"]


def test_numbers_beyond_their_fields_are_refused() -> None:
    encoder = ready(None, A)
    for count in (0, -1, 2**31):
        with pytest.raises(BadField) as caught:
            put(encoder, A, 1, b"x", count=count)
        assert (caught.value.field, caught.value.actual) == ("event_count", count)
    with pytest.raises(BadField) as caught:
        put(encoder, A, 2**63, b"x")
    assert caught.value.field == "event_number"
    put(encoder, A, 2**63 - 1, b"x", count=2**31 - 1)


@looped("length", [-1, 0, 5])
def test_an_append_with_an_expected_length_is_refused_and_changes_nothing(length: int) -> None:
    encoder = ready(100, A)
    put(encoder, A, 1, b"x")
    with pytest.raises(BadField) as caught:
        encoder.append(SEGMENTS[A], A, 2, 1, b"y", 0, 0.0, expected_length=length)
    assert (caught.value.field, caught.value.actual) == ("expected_length", length)
    assert "ConditionalAppend" in str(caught.value)
    assert not encoder.flush_required
    assert put(encoder, A, 2, b"y") == [b"y"]


def test_the_largest_append_makes_a_frame_and_one_byte_more_is_refused() -> None:
    encoder = ready(64, A)
    parts = put(encoder, A, 1, memoryview(bytes(MAX_FRAME - 24)))
    assert sum(len(part) for part in parts[:2]) == MAX_FRAME
    with pytest.raises(FrameTooLarge) as caught:
        put(encoder, A, 2, memoryview(bytes(MAX_FRAME - 23)))
    assert (caught.value.limit, caught.value.actual) == (MAX_FRAME - 24, MAX_FRAME - 23)


@looped("opener", [A, B])
@looped("size", [100, 299, 300, 300 - 24, 300 - 52 + 1])
def test_no_frame_exceeds_the_limit_whatever_was_pending(opener: UUID, size: int) -> None:
    encoder = ready(100, A, B, max_frame_bytes=300)
    parts = put(encoder, opener, 1, b"o" * 10)
    parts += put(encoder, A, 2, b"a" * 60)
    try:
        parts += put(encoder, A, 3, b"b" * size)
    except FrameTooLarge:
        assert size > 300 - 24
    parts += encoder.flush()
    frames = list(frames_of(b"".join(parts)))
    assert max(map(len, frames)) <= 300
    decoder = set_up(A, B)
    appends = decoder.feed_all([decode(f) for f in frames])
    got = b"".join(bytes(a.data) for a in appends if isinstance(a, Append) and a.writer_id == A)
    assert got.endswith(b"a" * 60 + (b"b" * size if size <= 300 - 24 else b""))


def test_a_count_of_events_that_would_overflow_starts_a_new_append() -> None:
    encoder = ready(1000, A)
    parts = put(encoder, A, 1, b"x", count=2**31 - 1) + put(encoder, A, 2, b"y", count=2) + encoder.flush()
    appends = set_up().feed_all([decode(f) for f in frames_of(b"".join(parts))])
    assert [(a.event_count, bytes(a.data)) for a in appends if isinstance(a, Append)] == [(2**31 - 1, b"x"), (2, b"y")]


def test_a_hello_is_refused_while_appends_are_unfinished() -> None:
    encoder = ready(100, A, B)
    put(encoder, A, 1, b"x")
    with pytest.raises(OutOfOrder):
        encoder.command(Hello(17, 5))
    assert encoder.block_open
    encoder.flush()
    assert kinds(encoder.command(Hello(17, 5))) == ["HELLO"]


def test_a_command_that_cannot_be_encoded_leaves_the_block_open() -> None:
    encoder = ready(100, A)
    put(encoder, A, 1, b"x")
    with pytest.raises(WireError):
        encoder.command(SetupAppend(1, B, "s" * 70_000, ""))
    assert encoder.block_open
    assert put(encoder, A, 2, b"y") == [b"y"]


@pytest.mark.seed("36.18")
def test_a_block_is_closed_when_its_time_is_over_and_not_before() -> None:
    encoder = ready(100, A)
    put(encoder, A, 1, b"x", now_ms=1000.0)
    assert encoder.deadline() == 1020.0
    assert encoder.tick(1019.9) == []
    assert b"".join(encoder.tick(1020.0))[:4] == b"\xff\xff\xff\xff"
    assert not encoder.block_open
    assert encoder.deadline() is None
    assert encoder.tick(2000.0) == []


def test_what_a_lone_flush_leaves_behind_goes_out_in_time_when_asked_for() -> None:
    for leftover_ms in (None, 5.0):
        encoder = ready(100, A, B, C, leftover_ms=leftover_ms)
        put(encoder, A, 1, b"x")
        put(encoder, C, 1, b"left behind", now_ms=1.0)
        put(encoder, B, 501, b"many", count=501, now_ms=2.0)
        assert encoder.pending_bytes == len(b"left behind")
        assert encoder.deadline() == (None if leftover_ms is None else 7.0)
        for number in range(2, 5):
            put(encoder, A, number, b"y" * 100, now_ms=3.0)
        assert encoder.deadline() == (None if leftover_ms is None else 7.0)
        assert kinds(encoder.tick(7.0)) == ([] if leftover_ms is None else ["APPEND_BLOCK", "APPEND_BLOCK_END"])


@pytest.mark.seed("36.19")
def test_pending_appends_are_flushed_above_a_mebibyte_or_500_events() -> None:
    encoder = ready(100, A, B)
    put(encoder, A, 1, b"x")
    assert put(encoder, B, 1, bytes(MAX_PENDING_BYTES)) == []
    assert encoder.pending_bytes == MAX_PENDING_BYTES
    assert len(b"".join(put(encoder, B, 2, b"x"))) > MAX_PENDING_BYTES
    put(encoder, A, 2, b"x")
    assert put(encoder, B, 502, b"", count=500) == []
    assert b"".join(put(encoder, B, 503, b"")) != b""


def test_two_writers_with_one_id_on_two_segments_both_get_through() -> None:
    encoder = ready(100, B, A)
    encoder.command(SetupAppend(9, A, SEGMENTS[B], ""))
    put(encoder, B, 1, b"opens")
    put(encoder, A, 1, b"one")
    encoder.append(SEGMENTS[B], A, 1, 1, b"two", 0, 0.0)
    out = b"".join(encoder.flush())
    assert b"one" in out
    assert b"two" in out


def test_a_removed_writer_is_sent_out_first() -> None:
    encoder = ready(100, A, B)
    parts = put(encoder, A, 1, b"open") + put(encoder, B, 1, b"pending") + encoder.remove(SEGMENTS[B], B)
    assert kinds(parts) == ["APPEND_BLOCK", "APPEND_BLOCK_END"] * 2
    encoder = ready(100, A)
    parts = put(encoder, A, 1, b"open") + encoder.remove(SEGMENTS[A], A)
    assert kinds(parts) == ["APPEND_BLOCK", "APPEND_BLOCK_END"]
    with pytest.raises(AppendViolation):
        put(encoder, A, 2, b"x")
    assert encoder.remove(SEGMENTS[A], A) == []


def test_the_sizing_of_the_flow_that_appends_is_asked() -> None:
    asked: list[int] = []

    def sizing(flow: int) -> FixedBlockSize | None:
        asked.append(flow)
        return FixedBlockSize(100) if flow == 7 else None

    encoder = AppendBlockEncoder(sizing)
    encoder.command(SetupAppend(7 << 32, A, SEGMENTS[A], ""))
    assert len(kinds(put(encoder, A, 1, b"x", request_id=8 << 32))) == 2
    assert encoder.deadline() is None
    put(encoder, A, 2, b"x", request_id=(7 << 32) + 3)
    assert encoder.block_open
    assert asked == [8, 7]


def test_pending_writers_are_flushed_in_the_order_of_the_references_map() -> None:
    """java.util.HashMap by UUID.hashCode: of 16 buckets these writers lie in 3, 1 and 2."""
    writers = [UUID(int=3), UUID(int=1), UUID(int=2)]
    encoder = AppendBlockEncoder(lambda flow: FixedBlockSize(1000, 20))
    for number, writer in enumerate([A, *writers]):
        encoder.command(SetupAppend(number, writer, f"scope/stream/{number}.#epoch.0", ""))
    encoder.append("scope/stream/0.#epoch.0", A, 1, 1, b"opens the block", 0, 0.0)
    for number, writer in enumerate(writers, 1):
        encoder.append(f"scope/stream/{number}.#epoch.0", writer, 1, 1, b"waits", 0, 0.0)
    ends = [decode(data) for data in frames_of(b"".join(encoder.flush())) if data[3] == AppendBlockEnd.code]
    order = [end.writer_id for end in ends if isinstance(end, AppendBlockEnd)]
    assert order == [A, UUID(int=1), UUID(int=2), UUID(int=3)]
