"""`encode`, `encode_parts` and `decode`: the generated codec against the schema, for any value and any bytes."""

import json
import os
import subprocess
import sys
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    AppendBlock,
    AppendBlockEnd,
    BadField,
    Command,
    FrameDecoder,
    FrameTooLarge,
    KeepAlive,
    MergeSegmentsBatch,
    Padding,
    PartialEvent,
    SegmentCreated,
    SegmentRead,
    SegmentsBatchMerged,
    TableEntries,
    TableEntry,
    TableKey,
    TableRead,
    TableValue,
    Truncated,
    Unknown,
    UnknownCommand,
    UpdateTableEntries,
    WireError,
    decode,
    encode,
    encode_parts,
)
from segstore.wire.codec import CODECS, Codec
from segstore.wire.codec import codec as generated
from tests.looped import looped
from tests.strategies import FRAMED, as_read, command_of, commands, examples, framed, mutated, refused_of
from tests.wire.agreement import check_body, check_encode, check_frame, outcome

CLASSES = looped("cls", FRAMED.values())
EACH_CODEC = looped("codec", CODECS)
WRITER = UUID(int=5)

SURROUNDINGS = st.one_of(st.binary(max_size=40), st.sampled_from((bytes(40), b"\xff" * 40, b"\x00\x00\x00\x01" * 10)))


@CLASSES
def test_both_codecs_write_the_same_frame_and_read_it_back(cls: type[Command]) -> None:
    @examples(25)
    @given(command_of(cls), SURROUNDINGS, SURROUNDINGS)
    def holds(value: Command, before: bytes, after: bytes) -> None:
        frame = check_encode(value)
        assert int.from_bytes(frame[4:8], "big") == len(frame) - HEADER_BYTES
        assert check_body(cls.code, frame[HEADER_BYTES:], before, after) == as_read(value)

    holds()


@CLASSES
def test_both_codecs_refuse_the_same_values_for_the_same_reason(cls: type[Command]) -> None:
    if refused_of(cls).is_empty:
        assert cls is KeepAlive
        return

    @examples(25)
    @given(refused_of(cls))
    def holds(value: Command) -> None:
        assert check_encode(value) is None
        with pytest.raises((BadField, FrameTooLarge)) as caught:
            encode(value)
        assert (caught.value.code, caught.value.type_name) == (cls.code, cls.type_name)
        if isinstance(caught.value, BadField):
            assert caught.value.field
            assert _reaches(value, caught.value.field), caught.value.field

    holds()


def _reaches(value: object, path: str) -> bool:
    for step in path.split("."):
        name, _, index = step.partition("[")
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
        if index:
            value = value[int(index[:-1])]  # type: ignore[index]
    return True


@given(commands())
def test_parts_are_the_frame_and_payloads_among_them_are_the_callers_own(value: Command) -> None:
    parts = encode_parts(value)
    assert b"".join(parts) == encode(value)
    assert encode_parts(value, codec="construct") == [encode(value)]


def test_no_payload_is_copied_into_parts() -> None:
    payloads = [bytearray(b"one"), memoryview(b"second"), b"third" * 100]
    for payload in payloads:
        for value in (
            PartialEvent(payload),
            AppendBlock(WRITER, payload),
            AppendBlockEnd(WRITER, 0, payload, 1, 1),
            SegmentRead("segment", 0, False, False, payload),
            Unknown(4711, payload),
        ):
            assert any(part is payload for part in encode_parts(value)), type(value).__name__
    entries = TableEntries(tuple(TableEntry(TableKey(each, 1), TableValue(each)) for each in payloads))
    parts = encode_parts(UpdateTableEntries(1, "table", "", entries))
    for payload in payloads:
        assert sum(part is payload for part in parts) == 2


@given(commands())
def test_decoded_payloads_are_views_of_the_frame(value: Command) -> None:
    frame = bytearray(encode(value))
    for kind in (frame, memoryview(frame)):
        found = decode(kind)
        payloads = [getattr(found, name) for name in found.__struct_fields__]
        assert all(each.obj is frame for each in payloads if isinstance(each, memoryview))
        assert not any(payload for payload in payloads if isinstance(payload, (bytes, bytearray)))


@given(commands())
def test_a_frame_reads_the_same_from_every_kind_of_buffer(value: Command) -> None:
    frame = encode(value)
    for codec in CODECS:
        expected = decode(frame, codec=codec)
        signed = memoryview(frame).cast("b")
        inside = memoryview(b"<" + frame + b">")[1:-1]
        for other in (bytearray(frame), memoryview(frame), memoryview(bytearray(frame)), signed, inside):
            found = decode(other, codec=codec)
            assert found == expected
            assert json.dumps(found.to_dict()) == json.dumps(expected.to_dict())


@CLASSES
def test_both_codecs_agree_on_every_truncation(cls: type[Command]) -> None:
    @examples(8)
    @given(command_of(cls).filter(lambda value: len(encode(value)) < 250))
    def holds(value: Command) -> None:
        body = encode(value)[HEADER_BYTES:]
        for cut in range(len(body)):
            # what was cut off lies behind the body: the most inviting bytes to read too far into
            check_body(cls.code, body[:cut], before=body[-9:], after=body[cut:])

    holds()


@CLASSES
def test_both_codecs_agree_on_mutated_frames(cls: type[Command]) -> None:
    @examples(40)
    @given(command_of(cls).flatmap(lambda value: mutated(encode(value)[HEADER_BYTES:])), SURROUNDINGS, SURROUNDINGS)
    def holds(body: bytes, before: bytes, after: bytes) -> None:
        check_frame(framed(cls.code, body), before, after)

    holds()


@CLASSES
def test_what_follows_the_last_field_is_ignored_or_refused_by_both(cls: type[Command]) -> None:
    @examples(10)
    @given(command_of(cls), st.binary(min_size=1, max_size=30), SURROUNDINGS)
    def holds(value: Command, extra: bytes, after: bytes) -> None:
        body = encode(value)[HEADER_BYTES:]
        found = check_body(cls.code, body + extra, after=after)
        assert found is not None
        if type(value) not in (Padding, PartialEvent, AppendBlock):
            assert found == check_body(cls.code, body)

    holds()


@given(st.binary(max_size=200), SURROUNDINGS, SURROUNDINGS)
def test_any_bytes_are_a_command_or_a_wire_error(frame: bytes, before: bytes, after: bytes) -> None:
    check_frame(frame, before, after)


@given(st.sampled_from(sorted(FRAMED)), st.binary(max_size=120), SURROUNDINGS, SURROUNDINGS)
def test_any_body_is_a_command_or_a_wire_error(code: int, body: bytes, before: bytes, after: bytes) -> None:
    check_frame(framed(code, body), before, after)


@given(commands())
def test_an_error_of_a_truncated_frame_says_where_and_what(value: Command) -> None:
    frame = encode(value)
    for cut in {HEADER_BYTES, (HEADER_BYTES + len(frame)) // 2, len(frame) - 1}:
        if not HEADER_BYTES <= cut < len(frame):
            continue
        error = outcome(lambda cut=cut: decode(framed(value.code, frame[HEADER_BYTES:cut])))
        if error[0] == "raises":
            facts = error[3]
            assert (facts["code"], facts["type_name"]) == (value.code, value.type_name)
            assert HEADER_BYTES <= facts["offset"] <= cut
            assert facts["field"].split(".")[0].split("[")[0] in {*value.__struct_fields__, "type_code"}
            assert error[1] is not Truncated or facts["actual"] > facts["limit"]


@EACH_CODEC
@looped("size", range(8))
def test_a_frame_without_a_whole_header_is_truncated(codec: Codec, size: int) -> None:
    with pytest.raises(Truncated) as caught:
        decode(encode(KeepAlive())[:size], codec=codec)
    assert (caught.value.limit, caught.value.actual, caught.value.offset) == (size, 8, 0)


@EACH_CODEC
@looped(("announced", "kind"), [(-1, BadField), (-(1 << 31), BadField), (5, Truncated), (3, BadField)])
def test_a_header_that_does_not_match_its_body_is_refused(codec: Codec, announced: int, kind: type[WireError]) -> None:
    frame = encode(PartialEvent(b"data"))
    with pytest.raises(kind) as caught:
        decode(frame[:4] + announced.to_bytes(4, "big", signed=True) + frame[8:], codec=codec)
    error = caught.value
    assert (error.field, error.offset, error.actual, error.limit) == ("length", 4, announced, 4)


@EACH_CODEC
@looped("code", [0, 13, 1000, -6000, (1 << 31) - 1, -(1 << 31)])
def test_a_code_that_is_not_served_is_refused_or_kept_whole(codec: Codec, code: int) -> None:
    frame = framed(code, b"\x01\x02\x03")
    with pytest.raises(UnknownCommand) as caught:
        decode(frame, codec=codec)
    assert (caught.value.code, caught.value.offset) == (code, 0)
    kept = decode(frame, unknown="keep", codec=codec)
    assert kept == Unknown(code, b"\x01\x02\x03")
    assert kept.code == code
    assert encode(kept, codec=codec) == frame
    assert b"".join(encode_parts(kept)) == frame


@EACH_CODEC
def test_the_longest_frame_is_written_and_one_byte_more_is_not(codec: Codec) -> None:
    most = MAX_FRAME_BYTES - HEADER_BYTES
    for make in (PartialEvent, lambda data: Unknown(4711, data)):
        assert len(encode(make(bytes(most)), codec=codec)) == MAX_FRAME_BYTES
        for write in (encode, encode_parts):
            with pytest.raises(FrameTooLarge) as caught:
                write(make(bytes(most + 1)), codec=codec)
            assert (caught.value.limit, caught.value.actual) == (MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1)
    assert len(encode(Padding(most), codec=codec)) == MAX_FRAME_BYTES
    for length in (most + 1, 1 << 40, 1 << 80):
        with pytest.raises(FrameTooLarge):
            encode(Padding(length), codec=codec)


def test_many_texts_that_exceed_a_frame_together_are_refused_by_both() -> None:
    names = ("x" * 65535,) * 257
    for value in (MergeSegmentsBatch(1, "t", names, ""), SegmentsBatchMerged(1, "t", names, (0,) * 257)):
        assert check_encode(value) is None
        with pytest.raises(FrameTooLarge) as caught:
            encode(value)
        assert caught.value.type_name == value.type_name


@EACH_CODEC
@looped(
    ("value", "field"),
    [
        (Unknown(1 << 31, b""), "type_code"),
        (Unknown(-(1 << 31) - 1, b""), "type_code"),
        (Unknown("13", b""), "type_code"),  # type: ignore[arg-type]
        (Unknown(13, "text"), "data"),  # type: ignore[arg-type]
        (Unknown(13, memoryview(b"abcdef")[::2]), "data"),
    ],
)
def test_an_unknown_that_is_no_frame_is_refused(codec: Codec, value: Unknown, field: str) -> None:
    for write in (encode, encode_parts):
        with pytest.raises(BadField) as caught:
            write(value, codec=codec)
        assert caught.value.field == field


@EACH_CODEC
@looped("value", [None, b"", SegmentCreated, TableKey(b"key"), TableEntries(())])
def test_what_is_no_command_is_a_type_error(codec: Codec, value: object) -> None:
    for write in (encode, encode_parts):
        with pytest.raises(TypeError, match="encode takes a command"):
            write(value, codec=codec)  # type: ignore[arg-type]


def test_a_record_in_the_place_of_another_is_refused_though_its_attributes_would_do() -> None:
    value = TableRead(1, "t", TableEntries((TableEntry(TableKey(b"k"), TableKey(b"v")),)))  # type: ignore[arg-type]
    assert check_encode(value) is None
    with pytest.raises(BadField, match="a TableValue is needed, not TableKey"):
        encode(value)


@given(commands())
def test_the_schema_alone_reads_and_writes_every_command(value: Command) -> None:
    with patch.multiple(generated, make_decoder=None, make_encoder=None):
        frame = encode(value, codec="construct")
        assert decode(frame, codec="construct") == as_read(value)
        assert FrameDecoder(codec="construct").feed(frame) == [as_read(value)]
        assert encode_parts(value, codec="construct") == [frame]


def test_a_codec_that_does_not_exist_is_refused_at_import() -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import segstore.wire"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "SEGSTORE_CODEC": "fastest"},
        check=False,
    )
    assert process.returncode != 0
    assert "SEGSTORE_CODEC is 'fastest'" in process.stderr
