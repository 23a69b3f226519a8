"""Append blocks: the encoder and the decoder against what was recorded, and against each other."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.wire.blocks import (
    MAX_PENDING_BYTES,
    Append,
    AppendBlockDecoder,
    AppendBlockEncoder,
    AppendRule,
    AppendViolation,
    FixedBlockSize,
)
from segstore.wire.codec import decode, encode
from segstore.wire.commands.append import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    Event,
    Padding,
    PartialEvent,
    SetupAppend,
)
from segstore.wire.commands.session import Hello, KeepAlive
from segstore.wire.errors import BadField, FrameTooLarge, OutOfOrder, WireError
from segstore.wire.framing import FrameDecoder
from segstore.wire.schema import COMMANDS, Buffer, Command

ROOT = Path(__file__).parents[2]
A, B, C = (UUID(int=int(digit * 32, 16)) for digit in "123")
SEGMENTS = {A: "scope/stream/0.#epoch.0", B: "scope/stream/1.#epoch.0", C: "scope/stream/0.#epoch.0"}
TYPES = {cls.type_name: cls for cls in COMMANDS.values()}
MAX_FRAME = 2**24 - 1


# Recorded ----------------------------------------------------------------------------------------------------------


def recorded(name: str) -> list[dict[str, Any]]:
    for folder in (ROOT / "fixtures" / "vectors", ROOT.parent / "shared" / "vectors"):
        path = folder / name
        if path.exists():
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return []


def snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): snake(inner) for key, inner in value.items()}
    return [snake(inner) for inner in value] if isinstance(value, list) else value


def command_of(line: dict[str, Any]) -> Command:
    return TYPES[line["type"]].from_dict(snake(line["fields"]))


def frames_of(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        assert end <= len(data), "the last frame is cut"
        yield data[at:end]
        at = end


def payloads(step: dict[str, Any]) -> list[bytes]:
    """What the append of a step may have held: the recording tells length and seed of a long payload, and not whether
    it was those raw bytes or an event of them with its header; where its frame was recorded, that tells.
    """
    if "data" in step:
        return [bytes.fromhex(step["data"])]
    size, seed = step["data_len"], step["data_seed"]
    raw = (bytes((seed + i) % 251 for i in range(251)) * (size // 251 + 1))[:size]
    if size < 8:
        return [raw]
    event = struct.pack(">ii", 0, size - 8) + raw[: size - 8]
    written = step.get("out", "")
    return [data for data in (raw, event) if not written or data[:16].hex() in written]


def as_recorded(result: Command | Append) -> dict[str, Any]:
    if not isinstance(result, Append):
        return {"kind": "command", "type": result.type_name, "fields": result.to_dict()}
    data = bytes(result.data)
    return {
        "kind": "append",
        "segment": result.segment,
        "writer_id": str(result.writer_id),
        "event_number": result.event_number,
        "event_count": result.event_count,
        "data": data,
        "expected_offset": result.expected_offset,
        "request_id": result.request_id,
    }


def agrees(result: Command | Append, line: dict[str, Any]) -> None:
    got, want = as_recorded(result), snake(line)
    if line["kind"] == "append":
        data = got.pop("data")
        if "data" in want:
            assert data == bytes.fromhex(want.pop("data"))
        else:
            assert len(data) == want.pop("data_len")
            assert hashlib.sha256(data).hexdigest() == want.pop("data_sha256")
    assert got == want


STREAMS = recorded("append_streams.jsonl") + recorded("append_streams_big.jsonl")
DECODINGS = recorded("append_decode.jsonl")


def replay(stream: dict[str, Any], data_of: dict[int, bytes]) -> tuple[AppendBlockEncoder, list[tuple[bytes, bool]]]:
    """Runs the steps; what each wrote and whether it asked to be flushed."""
    size = stream["blockSize"]
    encoder = AppendBlockEncoder(None if size is None else lambda flow: FixedBlockSize(size, stream["batchTimeoutMs"]))
    now_ms = 0.0
    written = []
    for number, step in enumerate(stream["steps"]):
        out: list[Buffer] = []
        refused = False
        try:
            if step["op"] == "append":
                writer = UUID(step["writerId"])
                facts = step["eventNumber"], step["eventCount"], data_of[number]
                out = encoder.append(step["segment"], writer, *facts, 0, now_ms)
            elif step["op"] == "command":
                out = encoder.command(command_of(step))
            else:
                assert step["op"] == "advance"
                now_ms += step["ms"]
                out = encoder.tick(now_ms)
        except WireError:
            refused = True
        assert refused is ("exception" in step), f"step {number}"
        written.append((b"".join(out), encoder.flush_required))
    return encoder, written


def total_agrees(stream: dict[str, Any], data: bytes) -> bool:
    if "out" in stream:
        return bool(data.hex() == stream["out"])
    return bool(len(data) == stream["out_len"] and hashlib.sha256(data).hexdigest() == stream["out_sha256"])


@pytest.mark.skipif(not STREAMS, reason="no recorded streams beside this checkout")
@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream["name"])
def test_a_recorded_stream_is_written_byte_for_byte_and_read_as_recorded(stream: dict[str, Any]) -> None:
    appends = {number: payloads(step) for number, step in enumerate(stream["steps"]) if step["op"] == "append"}
    for choice in product(*appends.values()):
        encoder, written = replay(stream, dict(zip(appends, choice, strict=True)))
        whole = b"".join(data for data, _ in written)
        if total_agrees(stream, whole):
            break
    for number, (step, (data, flush)) in enumerate(zip(stream["steps"], written, strict=True)):
        assert step.get("out", data.hex()) == data.hex(), f"step {number}"
        assert step.get("out_len", len(data)) == len(data), f"step {number}"
        assert flush is step["flush"], f"step {number}"
    assert total_agrees(stream, whole)
    if not stream["complete"]:
        assert encoder.block_open
        return
    results = AppendBlockDecoder().feed_all([decode(frame) for frame in frames_of(whole)])
    assert len(results) == len(stream["decoded"])
    for result, line in zip(results, stream["decoded"], strict=True):
        agrees(result, line)


@pytest.mark.skipif(not DECODINGS, reason="no recorded decodings beside this checkout")
@pytest.mark.parametrize("case", DECODINGS, ids=lambda case: case["name"])
def test_a_recorded_sequence_of_commands_is_answered_as_recorded(case: dict[str, Any]) -> None:
    decoder = AppendBlockDecoder()
    for step in case["steps"]:
        command = decode(bytes.fromhex(step["hex"]))
        if "exception" in step:
            with pytest.raises(AppendViolation):
                decoder.feed(command)
            assert not decoder.block_open
            continue
        result = decoder.feed(command)
        if result is not None:
            agrees(result, step["out"][0])
        else:
            assert step["out"] == []


# The decoder -------------------------------------------------------------------------------------------------------


def set_up(*writers: UUID) -> AppendBlockDecoder:
    decoder = AppendBlockDecoder()
    for number, writer in enumerate(writers or (A,)):
        setup = SetupAppend(number, writer, SEGMENTS[writer], "")
        assert decoder.feed(setup) is setup
    return decoder


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


def test_an_append_of_a_megabyte_is_not_copied_in_the_common_case() -> None:
    decoder = set_up()
    command = end(b"x" * 1_000_000)
    tracemalloc.start()
    try:
        decoder.feed(command)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000


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


@pytest.mark.parametrize("whole_batch", [False, True])
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


@pytest.mark.parametrize(
    "command",
    [
        SetupAppend(1, B, SEGMENTS[B], ""),
        Padding(0),
        AppendBlock(A, b""),
        ConditionalAppend(A, 1, 0, Event(b""), 1),
        ConditionalBlockEnd(A, 1, 0, b"", 1),
    ],
    ids=lambda command: str(command.type_name),
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


@pytest.mark.parametrize(
    "command",
    [
        AppendBlock(B, b""),
        end(writer=B),
        ConditionalAppend(B, 1, 0, Event(b""), 1),
        ConditionalBlockEnd(B, 1, 0, b"", 1),
    ],
    ids=lambda command: str(command.type_name),
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


@pytest.mark.parametrize("whole", [-1, 5, 2**31 - 1, -(2**31)])
def test_whole_events_outside_the_block_are_refused(whole: int) -> None:
    decoder = set_up()
    decoder.feed(AppendBlock(A, b"four"))
    error = violated(decoder, end(whole=whole))
    assert (error.rule, error.limit, error.actual) == (AppendRule.WHOLE_SIZE, 4, whole)


@pytest.mark.parametrize("events", [0, -1, -(2**31)])
@pytest.mark.parametrize("block", [False, True])
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


@pytest.mark.parametrize(
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
    ids=["short", "keepalive", "event", "unknown", "beyond", "negative", "huge"],
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


def test_a_forgotten_writer_must_be_set_up_again() -> None:
    decoder = set_up(A, B)
    decoder.forget(A)
    decoder.forget(C)
    assert violated(decoder, end()).rule is AppendRule.WRITER_UNKNOWN
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
    decoder.forget(B)
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
        SetupAppend,
        st.integers(0, 9),
        st.sampled_from([A, B]),
        st.sampled_from(["s/t/0", "s/t/1"]),
        st.just(""),
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


# The encoder -------------------------------------------------------------------------------------------------------


def ready(size: int | None, *writers: UUID, **options: Any) -> AppendBlockEncoder:
    encoder = AppendBlockEncoder(None if size is None else lambda flow: FixedBlockSize(size), **options)
    for number, writer in enumerate(writers or (A,)):
        encoder.command(SetupAppend(number, writer, SEGMENTS[writer], ""))
    return encoder


def put(encoder: AppendBlockEncoder, writer: UUID, number: int, data: Buffer, **more: Any) -> list[Buffer]:
    return encoder.append(
        SEGMENTS[writer], writer, number, more.get("count", 1), data, more.get("request_id", 0), more.get("now_ms", 0.0)
    )


def kinds(parts: list[Buffer]) -> list[str]:
    return [decode(data).type_name for data in frames_of(b"".join(parts))]


def test_payloads_are_returned_as_they_came() -> None:
    encoder = ready(1000, A, B)
    first, second, third = bytearray(b"first"), b"second", memoryview(b"third")
    assert any(part is first for part in put(encoder, A, 1, first))
    assert put(encoder, A, 2, second) == [second]
    assert put(encoder, B, 1, third) == []
    assert encoder.pending_bytes == 5
    assert encoder.pending_writers == 1
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


@pytest.mark.parametrize("number", [-1, 4, 5])
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


def test_the_largest_append_fits_a_frame_and_one_byte_more_does_not() -> None:
    encoder = ready(64, A)
    parts = put(encoder, A, 1, memoryview(bytes(MAX_FRAME - 24)))
    assert sum(len(part) for part in parts[:2]) == MAX_FRAME
    with pytest.raises(FrameTooLarge) as caught:
        put(encoder, A, 2, memoryview(bytes(MAX_FRAME - 23)))
    assert (caught.value.limit, caught.value.actual) == (MAX_FRAME - 24, MAX_FRAME - 23)


@pytest.mark.parametrize("opener", [A, B])
@pytest.mark.parametrize("size", [100, 299, 300, 300 - 24, 300 - 52 + 1])
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
        assert encoder.pending_writers == 1
        assert encoder.deadline() == (None if leftover_ms is None else 7.0)
        for number in range(2, 5):
            put(encoder, A, number, b"y" * 100, now_ms=3.0)
        assert encoder.deadline() == (None if leftover_ms is None else 7.0)
        assert kinds(encoder.tick(7.0)) == ([] if leftover_ms is None else ["APPEND_BLOCK", "APPEND_BLOCK_END"])


def test_pending_appends_are_flushed_above_a_mebibyte_or_500_events() -> None:
    encoder = ready(100, A, B)
    put(encoder, A, 1, b"x")
    assert put(encoder, B, 1, bytes(MAX_PENDING_BYTES)) == []
    assert encoder.pending_bytes == MAX_PENDING_BYTES
    assert len(b"".join(put(encoder, B, 2, b"x"))) > MAX_PENDING_BYTES
    put(encoder, A, 2, b"x")
    assert put(encoder, B, 502, b"", count=500) == []
    assert b"".join(put(encoder, B, 503, b"")) != b""
    assert encoder.pending_writers == 0


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


def test_a_view_of_wider_items_counts_its_bytes() -> None:
    data = memoryview(b"\0\0\0\1\0\0\0\2").cast("I")
    (append,) = set_up().feed_all([decode(f) for f in frames_of(b"".join(put(ready(None), A, 1, data)))])
    assert isinstance(append, Append)
    assert bytes(append.data) == b"\0\0\0\1\0\0\0\2"


# Both --------------------------------------------------------------------------------------------------------------

OPERATION = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([A, B, C]), st.integers(1, 300), st.binary(max_size=80)),
    st.tuples(st.just("append"), st.sampled_from([A, B, C]), st.just(1), st.integers(0, 400_000).map(bytes)),
    st.tuples(st.just("tick"), st.integers(0, 30)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("keep-alive")),
    st.tuples(st.just("setup"), st.sampled_from([A, B, C])),
    st.tuples(st.just("remove"), st.sampled_from([A, B, C])),
)


@settings(deadline=None)
@given(
    st.lists(OPERATION, max_size=40),
    st.sampled_from([None, 0, 1, 8, 40, 100, 1024, 100_000, 2**30]),
    st.one_of(st.none(), st.just(5.0)),
    st.lists(st.sampled_from([1, 7, 8, 24, 100, 5000, 70_000, 10**6]), min_size=1, max_size=8).filter(
        lambda c: max(c) > 50
    ),
)
def test_every_append_comes_back_in_order(
    operations: list[Any], size: int | None, leftover_ms: float | None, chunks: list[int]
) -> None:
    encoder = ready(size, leftover_ms=leftover_ms)
    out: list[Buffer] = []
    numbers = dict.fromkeys((A, B, C), 0)
    sent: dict[UUID, list[tuple[int, int, bytes]]] = {A: [], B: [], C: []}
    for writer in (A, B, C):
        out += encoder.command(SetupAppend(0, writer, SEGMENTS[writer], ""))
    now_ms = 0.0
    for operation, *facts in operations:
        if operation == "append":
            writer, count, data = facts
            numbers[writer] += count
            out += put(encoder, writer, numbers[writer], data, count=count, now_ms=now_ms)
            sent[writer].append((numbers[writer], count, data))
        elif operation == "tick":
            now_ms += facts[0]
            out += encoder.tick(now_ms)
            deadline = encoder.deadline()
            assert deadline is None or deadline > now_ms
        elif operation == "flush":
            out += encoder.flush()
        elif operation == "keep-alive":
            out += encoder.command(KeepAlive())
        else:
            if operation == "remove":
                out += encoder.remove(SEGMENTS[facts[0]], facts[0])
            out += encoder.command(SetupAppend(1, facts[0], SEGMENTS[facts[0]], ""))
    out += encoder.flush()
    assert encoder.pending_writers == 0
    assert not encoder.block_open

    frames, decoder = FrameDecoder(), AppendBlockDecoder()
    stream = b"".join(out)
    results: list[Any] = []
    sizes = cycle(chunks)
    at = 0
    while at < len(stream):
        # A buffer that is used again: what was kept of it without a copy would show.
        buffer = bytearray(stream[at : at + next(sizes)])
        at += len(buffer)
        results += [as_recorded(result) for result in decoder.feed_all(frames.feed(buffer))]
        buffer[:] = bytes(len(buffer))
    assert not decoder.block_open
    for writer, appends in sent.items():
        got = [r for r in results if r["kind"] == "append" and r["writer_id"] == str(writer)]
        assert b"".join(r["data"] for r in got) == b"".join(data for _, _, data in appends)
        assert sum(r["event_count"] for r in got) == sum(count for _, count, _ in appends)
        assert [r["event_number"] for r in got] == sorted({r["event_number"] for r in got})
        # Each result is some appends whole: its bytes end where the append of its number ends.
        lengths: dict[int, int] = {}
        total = 0
        for number, _, data in appends:
            total += len(data)
            lengths[number] = total
        position = 0
        for r in got:
            position += len(r["data"])
            assert position == lengths[r["event_number"]]


def test_the_encoder_writes_what_the_codec_writes() -> None:
    parts = put(ready(None, A), A, 1, b"event")
    block, block_end = frames_of(b"".join(parts))
    assert block == encode(AppendBlock(A, b"event"))
    assert block_end == encode(AppendBlockEnd(A, 5, b"", 1, 1, 0))
