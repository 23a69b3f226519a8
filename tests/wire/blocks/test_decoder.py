"""Append blocks read: what comes back as appends, and what the decoder refuses."""

import struct
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import WIRE_VERSION, FrameDecoder, decode
from segstore.wire.blocks import Append, AppendBlockDecoder, AppendRule, AppendViolation, acknowledger
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    Event,
    Hello,
    KeepAlive,
    Padding,
    PartialEvent,
    SetupAppend,
)
from segstore.wire.schema import Command
from tests.looped import looped
from tests.wire.blocks.appends import SEGMENTS, A, B, C, as_recorded, set_up


def end(
    data: bytes = b"", *, whole: int = 0, events: int = 1, number: int = 1, writer: UUID = A, request_id: int = 5
) -> AppendBlockEnd:
    return AppendBlockEnd(writer, whole, data, events, number, request_id)


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">ii", kind, len(body)) + body


def violated(decoder: AppendBlockDecoder, command: Command) -> AppendViolation:
    with pytest.raises(AppendViolation) as caught:
        decoder.feed(command)
    assert not decoder.block_open
    return caught.value


def appended(decoder: AppendBlockDecoder, command: Command) -> Append:
    result = decoder.feed(command)
    assert isinstance(result, Append)
    return result


def test_an_end_without_a_block_hands_its_data_on_uncopied() -> None:
    data = bytearray(b"whole append")
    view = memoryview(data)
    append = set_up().feed(AppendBlockEnd(A, 0, view, 3, 9, 77))
    assert append == Append(SEGMENTS[A], A, 9, 3, view, None, 77)
    assert isinstance(append, Append)
    assert append.data is view


def test_a_block_and_its_end_in_one_read_are_not_copied() -> None:
    block = memoryview(bytearray(b"event" * 200_000 + frame(-1, b"")))
    decoder = set_up()
    tracemalloc.start()
    try:
        (append,) = decoder.feed_all([AppendBlock(A, block), end(whole=1_000_000)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(append, Append)
    assert bytes(append.data) == b"event" * 200_000
    assert peak < 10_000


@looped("whole_batch", [False, True])
def test_an_open_block_survives_its_buffer(whole_batch: bool) -> None:
    buffer = bytearray(b"event" + frame(-2, b"par"))
    decoder = set_up()
    block = AppendBlock(A, memoryview(buffer))
    if whole_batch:
        assert decoder.feed_all([block, KeepAlive()]) == [KeepAlive()]
    else:
        assert decoder.feed(block) is None
    assert decoder.block_open
    assert decoder.block_bytes == 16
    buffer[:] = bytes(len(buffer))
    assert bytes(appended(decoder, end(b"tial", whole=5)).data) == b"eventpartial"
    assert decoder.block_bytes == 0


@looped(
    "command",
    [
        SetupAppend(1, B, SEGMENTS[B], ""),
        Padding(0),
        AppendBlock(A, b""),
        ConditionalAppend(A, 1, 0, Event(b""), 1),
        ConditionalBlockEnd(A, 1, 0, b"", 1),
    ],
)
def test_another_append_command_between_a_block_and_its_end_drops_the_block(command: Command) -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"lost"))
    error = violated(decoder, command)
    assert error.rule is AppendRule.BLOCK_OPEN
    assert error.type_name == command.type_name
    assert error.writer_id == A
    assert bytes(appended(decoder, end(b"next")).data) == b"next"


def test_commands_that_append_nothing_pass_between_a_block_and_its_end() -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"kept"))
    for command in (KeepAlive(), Hello(17, 5), PartialEvent(b"x"), Event(b"y")):
        assert decoder.feed(command) is command
    assert bytes(appended(decoder, end(whole=4)).data) == b"kept"


@looped(
    "command",
    [
        AppendBlock(B, b""),
        end(writer=B),
        ConditionalAppend(B, 1, 0, Event(b""), 1),
        ConditionalBlockEnd(B, 1, 0, b"", 1),
    ],
)
def test_a_writer_that_is_not_set_up_may_not_append(command: Command) -> None:
    error = violated(set_up(A), command)
    assert error.rule is AppendRule.WRITER_UNKNOWN
    assert error.writer_id == B
    assert error.facts()["rule"] == "WRITER_UNKNOWN"
    assert str(B) in str(error)


def test_an_end_of_another_writer_drops_the_block() -> None:
    decoder = set_up(A, B)
    decoder.feed(AppendBlock(A, b"x"))
    assert violated(decoder, end(writer=B, whole=1)).rule is AppendRule.WRITER_MISMATCH


@looped("whole", [-1, 5, 2**31 - 1, -(2**31)])
def test_whole_events_outside_the_block_are_refused(whole: int) -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four"))
    error = violated(decoder, end(whole=whole))
    assert (error.rule, error.limit, error.actual) == (AppendRule.WHOLE_SIZE, 4, whole)


@looped("events", [0, -1, -(2**31)])
@looped("block", [False, True])
def test_an_append_of_no_events_is_refused(events: int, block: bool) -> None:
    decoder = set_up()
    if block:
        decoder.feed(AppendBlock(A, b"four"))
    error = violated(decoder, end(events=events, whole=4 if block else 0))
    assert (error.rule, error.actual, error.segment) == (AppendRule.NO_EVENTS, events, SEGMENTS[A])


def test_event_numbers_start_at_zero_and_may_repeat_but_not_fall() -> None:
    decoder = set_up()
    assert violated(decoder, end(number=-1)).rule is AppendRule.NUMBER_BACKWARDS
    for number in (0, 0, 7, 7):
        assert appended(decoder, end(number=number)).event_number == number
    error = violated(decoder, end(number=6))
    assert (error.rule, error.limit, error.actual) == (AppendRule.NUMBER_BACKWARDS, 7, 6)
    for conditional in (ConditionalAppend(A, 6, 0, Event(b""), 1), ConditionalBlockEnd(A, 6, 0, b"", 1)):
        assert violated(decoder, conditional).rule is AppendRule.NUMBER_BACKWARDS
    assert appended(decoder, ConditionalBlockEnd(A, 8, 0, b"", 1)).event_number == 8
    assert violated(decoder, end(number=7)).rule is AppendRule.NUMBER_BACKWARDS


def test_a_refused_end_leaves_the_last_event_number() -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four"))
    violated(decoder, end(number=100, whole=9))
    assert appended(decoder, end(number=1)).event_number == 1


@looped(
    "tail",
    [
        b"\0" * 7,
        frame(100, b""),
        frame(0, b""),
        frame(12345, b""),
        struct.pack(">ii", -1, 1),
        struct.pack(">ii", -2, -1),
        struct.pack(">ii", -2, 2**31 - 1),
    ],
)
def test_a_block_ends_with_padding_or_a_partial_event(tail: bytes) -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four" + tail))
    assert violated(decoder, end(whole=4)).rule is AppendRule.BLOCK_TAIL


def test_a_padded_block_has_no_data_in_its_end() -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four" + frame(-1, b"\0\0")))
    error = violated(decoder, end(b"more", whole=4))
    assert (error.rule, error.actual) == (AppendRule.PADDED_DATA, 4)


def test_data_behind_a_block_that_is_exactly_full_is_dropped_as_the_reference_does() -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four"))
    assert bytes(appended(decoder, end(b"more", whole=4)).data) == b"four"


def test_a_conditional_append_keeps_the_header_of_its_event_and_a_block_end_is_raw() -> None:
    decoder = set_up()
    append = appended(decoder, ConditionalAppend(A, 1, 33, Event(b"abc"), 9))
    assert (append.data, append.expected_offset, append.event_count) == (b"\0\0\0\0\0\0\0\3abc", 33, 1)
    assert append.request_id == 9
    append = appended(decoder, ConditionalBlockEnd(A, 2, -1, b"abc", 10))
    assert (append.data, append.expected_offset, append.event_count) == (b"abc", -1, 1)


def test_a_second_set_up_redirects_a_writer_and_starts_its_numbers_again() -> None:
    decoder = set_up(A)
    appended(decoder, end(number=50))
    decoder.feed(SetupAppend(6, A, "other/stream/0", ""))
    append = appended(decoder, end(number=1))
    assert append.segment == "other/stream/0"


def test_a_writer_that_is_not_retained_must_be_set_up_again() -> None:
    decoder = set_up(A, B, C)
    decoder.retain({(appended(decoder, end(writer=B)).segment, B.bytes), ("another/segment", C.bytes)})
    for each in (A, C):
        assert violated(decoder, end(writer=each)).rule is AppendRule.WRITER_UNKNOWN
    appended(decoder, end(writer=B))


def test_set_ups_take_bounded_memory() -> None:
    decoder = AppendBlockDecoder(max_state_bytes=100_000)
    name = "s" * 10_000
    decoder.feed(SetupAppend(0, A, name, ""))
    for _ in range(50):
        decoder.feed(SetupAppend(0, A, name, ""))
    decoder.feed(SetupAppend(0, B, name, ""))
    error = violated(decoder, SetupAppend(0, C, name, ""))
    assert (error.rule, error.limit) == (AppendRule.TOO_MANY_WRITERS, 100_000)
    decoder.retain({(name, A.bytes)})
    decoder.feed(SetupAppend(0, C, name, ""))


def test_what_came_before_a_violation_in_the_same_read_is_handed_over_with_it() -> None:
    decoder = set_up()
    with pytest.raises(AppendViolation) as caught:
        decoder.feed_all([end(b"1", number=1), KeepAlive(), end(b"0", number=0), end(b"2", number=2)])
    first, second = caught.value.decoded
    assert bytes(first.data) == b"1"
    assert second == KeepAlive()


COMMAND = st.one_of(
    st.builds(
        SetupAppend, st.integers(0, 9), st.sampled_from([A, B]), st.sampled_from(["s/t/0", "s/t/1"]), st.just("")
    ),
    st.builds(
        AppendBlock,
        st.sampled_from([A, B]),
        st.lists(
            st.one_of(st.binary(max_size=9), st.builds(frame, st.sampled_from([-2, -1, 0, 3]), st.binary(max_size=5)))
        ).map(b"".join),
    ),
    st.builds(
        AppendBlockEnd,
        st.sampled_from([A, B]),
        st.integers(-2, 30),
        st.binary(max_size=6),
        st.integers(-1, 3),
        st.integers(-1, 9),
        st.integers(-1, 9),
    ),
    st.builds(
        ConditionalAppend,
        st.sampled_from([A, B]),
        st.integers(-1, 9),
        st.integers(-1, 9),
        st.builds(Event, st.binary(max_size=4)),
        st.just(1),
    ),
    st.builds(ConditionalBlockEnd, st.just(A), st.integers(-1, 9), st.just(0), st.binary(max_size=4), st.just(1)),
    st.builds(Padding, st.integers(0, 4)),
    st.builds(PartialEvent, st.binary(max_size=4)),
    st.just(KeepAlive()),
)


@given(st.lists(COMMAND, max_size=30))
def test_any_sequence_of_commands_gives_results_or_a_violation(commands: list[Command]) -> None:
    decoder = AppendBlockDecoder()
    last: dict[UUID, int] = {}
    for command in commands:
        error: AppendViolation | None = None
        result: Command | Append | None = None
        try:
            result = decoder.feed(command)
        except AppendViolation as violation:
            error = violation
        if error is not None:
            assert error.type_name == command.type_name
            assert not decoder.block_open
        elif isinstance(result, Append):
            assert result.event_count >= 1
            assert result.event_number >= last.get(result.writer_id, 0)
            last[result.writer_id] = result.event_number
        elif isinstance(result, SetupAppend):
            last[result.writer_id] = 0
        else:
            assert result is command or isinstance(command, AppendBlock | Padding)


@given(st.lists(COMMAND, max_size=20), st.integers(1, 5))
def test_reads_of_any_size_give_what_single_commands_give(commands: list[Command], chunk: int) -> None:
    def run(size: int) -> tuple[list[Any], bool]:
        decoder, out = AppendBlockDecoder(), []
        try:
            for at in range(0, len(commands), size):
                out += [as_recorded(r) for r in decoder.feed_all(commands[at : at + size])]
        except AppendViolation as error:
            return out + [as_recorded(r) for r in error.decoded], True
        return out, False

    decoder, single, failed = AppendBlockDecoder(), [], False
    for command in commands:
        try:
            result = decoder.feed(command)
        except AppendViolation:
            failed = True
            break
        if result is not None:
            single.append(as_recorded(result))
    assert run(chunk) == (single, failed)


int64 = st.integers(-(1 << 63), (1 << 63) - 1)
rows_of = st.lists(
    st.tuples(st.integers(0, 9) | int64, st.just(1), st.binary(max_size=9).map(memoryview) | st.binary(), int64)
)


def plain(rows: list[Any], previous: int, offset: int) -> tuple[list[DataAppended], int]:
    found = []
    for number, _, data, request_id in rows:
        offset += len(data)
        if number > previous:
            found.append(DataAppended(request_id, A, number, previous, offset))
            previous = number
    return found, previous


@given(rows_of, st.integers(-1, 9) | int64, st.integers(0, 1 << 60))
def test_each_number_that_rises_is_acknowledged(rows: list[Any], previous: int, offset: int) -> None:
    out = bytearray(b"before")
    last = acknowledger(WIRE_VERSION)(rows, A.bytes, previous, offset, out)
    assert out.startswith(b"before")
    assert (FrameDecoder().feed(out[6:]), last) == plain(rows, previous, offset)


def test_an_older_version_has_its_own_form() -> None:
    row = (3, 1, b"data", 9)
    now, then = bytearray(), bytearray()
    for version, out in ((WIRE_VERSION, now), (5, then)):
        acknowledger(version)([row], A.bytes, 1, 10, out)
    assert decode(now) == DataAppended(9, A, 3, 1, 14)
    assert len(then) < len(now)
