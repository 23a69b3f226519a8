"""Frames as text: every byte has its field, whatever the bytes are, and no token is shown."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    COMMANDS,
    AppendBlockEnd,
    Hello,
    ReadSegment,
    SealSegment,
    SegmentCreated,
    Truncated,
    Unknown,
    UnknownCommand,
    decode,
    encode,
)
from segstore.wire.commands import TableEntries, TableEntry, TableKey, TableValue, UpdateTableEntries
from segstore.wire.inspect import describe, lines, summary
from segstore.wire.inspect.describe import Description
from tests.looped import looped

VECTORS = Path(__file__).parents[3] / "fixtures" / "vectors"


def recorded(*names: str) -> Iterator[bytes]:
    for name in names:
        for line in (VECTORS / f"{name}.jsonl").read_text("utf-8").split("\n"):
            if line and "hex" in (what := json.loads(line)):
                yield bytes.fromhex(what["hex"])


def whole(description: Description) -> None:
    at = 0
    for span in description.spans:
        assert (span.offset, span.length >= 0) == (at, True), description
        at += span.length
    assert at == len(description.frame)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def test_the_spans_of_recorded_frames_cover_them_and_hold_the_values_of_the_command() -> None:
    decoded = 0
    for frame in recorded("commands", "legacy", "malformed", "mutations"):
        found = describe(frame)
        whole(found)
        assert (found.command is None) is (found.error is not None)
        if found.command is not None and found.command.type_name != "APPEND_BLOCK":
            values = {span.field: span.value for span in found.spans}
            for path, value in leaves(found.command.to_dict()):
                assert path in values, (path, frame.hex())
                assert values[path] == value, (path, frame.hex())
                decoded += 1
    assert decoded > 1000


@given(st.binary(max_size=80))
def test_any_bytes_are_described_without_an_error(data: bytes) -> None:
    found = describe(data)
    whole(found)
    assert list(lines(found))
    assert found.command is not None or found.error is not None


@given(st.sampled_from(sorted(COMMANDS)), st.binary(max_size=120), st.integers(-2, 4))
def test_any_body_of_a_known_type_is_described(code: int, body: bytes, off: int) -> None:
    found = describe(struct.pack(">ii", code, len(body) + off) + body)
    whole(found)
    assert list(lines(found, full=True))


TOKEN = "secret-token-of-a-user"


@looped("cls", [cls for cls in COMMANDS.values() if cls.secrets])
def test_no_cut_of_a_frame_shows_its_token_unless_asked(cls: type[Any]) -> None:
    example = next((what["hex"] for what in map(json.loads, commands()) if what["code"] == cls.code), None)
    # The two legacy commands, which the reference does not know, hold an int64 and texts.
    texts = (TOKEN,) * (len(cls.__struct_fields__) - 1)
    value = cls(1, *texts) if example is None else decode(bytes.fromhex(example))
    fields = {name: getattr(value, name) for name in value.__struct_fields__} | dict.fromkeys(cls.secrets, TOKEN)
    if example is None:
        fields |= {name: "t" for name in cls.__struct_fields__ if name != "request_id" and name not in cls.secrets}
    frame = encode(cls(**fields))
    for end in range(len(frame) + 1):
        for body in (frame[:end], frame[:4] + struct.pack(">i", max(end - 8, 0)) + frame[8:end]):
            text = "\n".join(lines(describe(body), full=True))
            assert TOKEN[:4] not in text
            assert TOKEN[:4].encode().hex(" ") not in text
    assert TOKEN in "\n".join(lines(describe(frame), show_tokens=True))
    assert TOKEN not in summary(decode(frame))


def test_bytes_behind_a_token_that_is_longer_than_its_length_says_are_shown_only_if_asked() -> None:
    frame = bytearray(encode(SealSegment(1, "a/b/0", TOKEN)))
    frame[-len(TOKEN) - 1] -= 6
    last = list(lines(describe(frame)))[-1]
    assert last.split("··")[-1].strip() == "not read: behind the last field"
    assert b"a-user".hex(" ") not in last
    assert b"a-user".hex(" ") in list(lines(describe(frame), show_tokens=True))[-1]


def commands() -> list[str]:
    return [line for line in (VECTORS / "commands.jsonl").read_text("utf-8").split("\n") if line]


def test_a_frame_is_shown_as_offset_bytes_field_and_value() -> None:
    assert list(lines(describe(encode(SegmentCreated(9, "a/b/0"))))) == [
        "  000000  00 00 00 15                                      type            21 (SEGMENT_CREATED)",
        "  000004  00 00 00 0f                                      length          15",
        "  000008  00 00 00 00 00 00 00 09                          request_id      9",
        "  000010  00 05                                            segment.length  5",
        '  000012  61 2f 62 2f 30                                   segment         "a/b/0"',
    ]


def test_a_malformed_frame_is_shown_up_to_the_error_which_stands_at_its_offset() -> None:
    frame = bytearray(encode(SegmentCreated(9, "a/b/0")))
    frame[17] = 200
    found = describe(frame)
    assert isinstance(found.error, Truncated)
    *_, name, rest, error = lines(found)
    assert name.split() == ["000010", "00", "c8", "segment.length", "200"]
    assert rest.split("  ")[-1].split() == ["segment", "5", "of", "200", "bytes"][1:]
    assert error.startswith("  error at 0x0010: SEGMENT_CREATED.segment at byte 16: 200 bytes")


def test_bytes_of_a_cut_frame_are_those_of_their_fields() -> None:
    entries = TableEntries((TableEntry(TableKey(b"key", 1), TableValue(b"value")),) * 2)
    for command in (
        ReadSegment("scope/stream/0", 1, 2, "secret", 7),
        AppendBlockEnd(UUID(int=3), 5, b"12345", 2, 2, 9),
        UpdateTableEntries(1, "a/b/0", "secret", entries, 7),
    ):
        frame = encode(command)
        whole = describe(frame).spans
        for size in range(8, len(frame)):
            spans = [each for each in describe(frame[:size]).spans if each.length]
            ends = [(each.offset, min(each.length, size - each.offset), each.field) for each in whole if each.length]
            assert [(span.offset, span.length, span.field) for span in spans] == [end for end in ends if end[1] > 0]
            assert "secret" not in "".join(lines(describe(frame[:size])))


def test_a_missing_tail_is_shown_with_its_default_and_bytes_behind_the_last_field_as_not_read() -> None:
    frame = encode(ReadSegment("s", 1, 2, ""))
    cut = frame[:4] + struct.pack(">i", len(frame) - 16) + frame[8:-8]
    assert any("-1 (missing: its default)" in line for line in lines(describe(cut)))
    longer = frame[:4] + struct.pack(">i", len(frame) - 6) + frame[8:] + b"xy"
    assert "not read: behind the last field" in list(lines(describe(longer)))[-1]


def test_the_frames_inside_an_append_block_are_shown() -> None:
    inside = struct.pack(">ii", 0, 3) + b"abc" + struct.pack(">ii", -1, 2) + b"\0\0"
    frame = struct.pack(">ii16x", 3, 16 + len(inside)) + inside
    fields = [span.field for span in describe(frame).spans][3:]
    assert fields == ["data[0].type", "data[0].length", "data[0]", "data[1].type", "data[1].length", "data[1]"]
    opaque = struct.pack(">ii16x", 3, 20) + b"data"
    assert describe(opaque).spans[-1].field == "data"


def test_an_unknown_type_is_an_error_or_kept_on_request() -> None:
    frame = struct.pack(">ii", 6, 2) + b"ab"
    assert isinstance(describe(frame).error, UnknownCommand)
    assert describe(frame, unknown="keep").command == Unknown(6, b"ab")
    assert summary(Unknown(6, b"ab")) == 'UNKNOWN 6 type_code=6 data="ab"'


def test_long_fields_are_shortened_unless_asked() -> None:
    frame = encode(SegmentCreated(9, "s" * 300))
    short, full = list(lines(describe(frame))), list(lines(describe(frame), full=True))
    assert short[-1].strip() == "… 236 more bytes"
    assert len(full) == 4 + 19
    assert "300 characters" in short[4]


def test_text_that_no_terminal_shows_is_escaped() -> None:
    assert summary(SegmentCreated(1, 'a\x1b[0m"\ud800')) == r'SEGMENT_CREATED request_id=1 segment="a\u001b[0m\"\ud800"'
    assert summary(Hello(17, 5)) == "HELLO high_version=17 low_version=5"
