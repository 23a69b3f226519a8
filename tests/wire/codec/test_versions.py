"""Older wire versions: the tables are complete, and what is left out reads as the reference reads a shorter frame."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    COMMANDS,
    MAX_FRAME_BYTES,
    AppendBlockEnd,
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    BadField,
    Command,
    ConditionalAppend,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    Event,
    FrameTooLarge,
    InvalidEventNumber,
    KeepAlive,
    LocateOffset,
    MergeTableSegments,
    NoSuchSegment,
    PartialEvent,
    ReadSegment,
    ReadTableKeys,
    SegmentRead,
    TableIteratorArgs,
    Truncated,
    UnknownCommand,
    WireError,
    WireStruct,
    decode,
    encode,
)
from segstore.wire.codec import (
    COMMANDS_SINCE,
    COMMANDS_UNTIL,
    FIELDS_SINCE,
    RELEASES,
    encoder,
    longest_frame_in,
    parts_encoder,
)
from segstore.wire.codec.versions import OlderFrameDecoder, encode_as, form_in, known_in, parse_as
from segstore.wire.schema import Nested, types
from tests.conformance.recorded import read_lines, snake
from tests.looped import looped
from tests.strategies import as_read, command_of

VERSIONS = range(5, 18)
OLDER = range(5, 17)
ROOT = Path(__file__).parent.parent.parent.parent
COMMAND_VECTORS = ROOT / "fixtures" / "vectors" / "commands.jsonl"
WRITER = UUID(int=0x0102030405060708090A0B0C0D0E0F10)

CODES_OF_RELEASES = {5: 40, 6: 40, 7: 57, 8: 57, 9: 57, 10: 59, 11: 61, 12: 61, 13: 63, 14: 63, 15: 68, 16: 68}
"""How many types the reference's enumeration had in each version, EVENT among them."""


def optional_fields(cls: type[WireStruct]) -> Iterator[tuple[type[WireStruct], str]]:
    """Every field that a shorter frame may lack, nested ones with the record that they are in."""
    for node in cls.parts:
        match node:
            case types.Tail() | types.Blob(optional=True):
                yield cls, node.name
            case Nested(record=record):
                yield from optional_fields(record)


def newer_than(cls: type[Command], version: int) -> dict[str, Any]:
    """The fields of a class that a version lacks."""
    return {name: since for (owner, name), since in FIELDS_SINCE.items() if owner is cls and since > version}


def test_every_optional_field_of_the_schema_has_its_version() -> None:
    found = {field for cls in COMMANDS.values() for field in optional_fields(cls)}
    assert found == FIELDS_SINCE.keys()


def test_every_command_has_its_version() -> None:
    assert COMMANDS_SINCE.keys() == set(COMMANDS.values())
    assert COMMANDS_UNTIL.keys() <= COMMANDS_SINCE.keys()
    assert set(COMMANDS_SINCE.values()) | {6, 8, 9, 14, 16} == set(VERSIONS) == RELEASES.keys()


def test_fields_were_only_ever_added_at_the_end() -> None:
    for cls in COMMANDS.values():
        ages = [FIELDS_SINCE.get((cls, part.name), 0) for part in cls.parts]
        if cls is InvalidEventNumber or ages == sorted(ages):
            continue
        pytest.fail(f"{cls.__name__}: {ages}")


@looped("version", OLDER)
def test_as_many_commands_are_known_as_the_reference_had_types(version: int) -> None:
    assert len(known_in(version)) == CODES_OF_RELEASES[version] - 1
    assert Event.code not in known_in(version)


@looped("version", [4, 18, 0, -1])
def test_a_version_that_is_not_spoken_is_refused(version: int) -> None:
    for ask in (known_in, longest_frame_in, encoder, parts_encoder, OlderFrameDecoder):
        with pytest.raises(ValueError, match=f"wire version {version} is not spoken here: 5 to 17 are"):
            ask(version)
    with pytest.raises(ValueError, match=f"wire version {version}"):
        encode_as(KeepAlive(), version)
    with pytest.raises(ValueError, match=f"wire version {version}"):
        parse_as(KeepAlive.code, b"", version)


NO_SUCH = NoSuchSegment(1, "s", "at x", 9)
APPENDED = DataAppended(7, WRITER, 5, 4, 3)
TOKEN = AuthTokenCheckFailed(1, "t", AuthTokenErrorCode.TOKEN_EXPIRED)
NUMBER = InvalidEventNumber(WRITER, 1, "t", 6)
TABLE = CreateTableSegment(1, "s", True, 16, "", 4096)
ARGS = TableIteratorArgs(b"token", b"pre", b"from", b"to")
KEYS = ReadTableKeys(1, "s", "", 10, ARGS)

BODIES = [
    (NO_SUCH, 5, "0000000000000001 000173"),
    (NO_SUCH, 6, "0000000000000001 000173 000461742078"),
    (NO_SUCH, 7, "0000000000000001 000173 000461742078"),
    (NO_SUCH, 8, "0000000000000001 000173 000461742078 0000000000000009"),
    (APPENDED, 7, f"{WRITER.hex} 0000000000000005 0000000000000004"),
    (APPENDED, 8, f"{WRITER.hex} 0000000000000005 0000000000000004 0000000000000007"),
    (APPENDED, 9, f"{WRITER.hex} 0000000000000005 0000000000000004 0000000000000007 0000000000000003"),
    (TOKEN, 5, "0000000000000001"),
    (TOKEN, 8, "0000000000000001 000174"),
    (TOKEN, 9, "0000000000000001 000174 00000001"),
    (NUMBER, 5, f"{WRITER.hex} 0000000000000001"),
    (NUMBER, 15, f"{WRITER.hex} 0000000000000001 000174"),
    (NUMBER, 16, f"{WRITER.hex} 0000000000000001 000174 0000000000000006"),
    (SegmentRead("s", 2, True, False, b"ab", 7), 7, "000173 0000000000000002 01 00 00000002 6162"),
    (SegmentRead("s", 2, True, False, b"ab", 7), 8, "000173 0000000000000002 01 00 00000002 6162 0000000000000007"),
    (TABLE, 9, "0000000000000001 000173 0000"),
    (TABLE, 10, "0000000000000001 000173 0000 01"),
    (TABLE, 12, "0000000000000001 000173 0000 01 00000010"),
    (TABLE, 14, "0000000000000001 000173 0000 01 00000010 0000000000001000"),
    (KEYS, 9, "0000000000000001 000173 0000 0000000a 00000005 746f6b656e"),
    (KEYS, 11, "0000000000000001 000173 0000 0000000a 00000005 746f6b656e 00000003 707265"),
    (KEYS, 12, "0000000000000001 000173 0000 0000000a 00000005 746f6b656e 00000000 00000004 66726f6d 00000002 746f"),
    (AppendBlockEnd(WRITER, 4, b"", 1, 5, 77), 7, f"{WRITER.hex} 00000004 00000000 00000001 {5:016x} {0:016x}"),
    (AppendBlockEnd(WRITER, 4, b"", 1, 5, 77), 8, f"{WRITER.hex} 00000004 00000000 00000001 {5:016x} {77:016x}"),
]


@looped(("command", "version", "body"), BODIES)
def test_a_version_writes_what_it_knew(command: Command, version: int, body: str) -> None:
    frame = encode_as(command, version)
    assert frame[8:] == bytes.fromhex(body)
    assert frame[:8] == encode(command)[:4] + len(frame[8:]).to_bytes(4, "big")


@given(st.data())
def test_the_current_version_is_the_encoder_itself(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from([cls for code, cls in sorted(COMMANDS.items()) if code]))
    command = data.draw(command_of(cls))
    assert encode_as(command, 17) == encode(command)
    assert form_in(cls, 17) is None


@given(st.data(), st.sampled_from(OLDER))
def test_what_is_left_out_reads_as_its_default_and_all_else_as_written(data: st.DataObject, version: int) -> None:
    known = known_in(version) - {AppendBlockEnd.code}  # it has a test of its own
    cls = COMMANDS[data.draw(st.sampled_from(sorted(known)))]
    command = data.draw(command_of(cls))
    frame = encode_as(command, version)
    expected = as_read(command)
    defaults = {part.name: part.default for part in cls.parts if part.name in newer_than(cls, version)}
    expected = msgspec.structs.replace(expected, **defaults)
    if isinstance(expected, ReadTableKeys) or hasattr(expected, "args"):
        # As bytes, because a memoryview of another format equals no view of bytes.
        kept = {"prefix_filter": bytes(command.args.prefix_filter)} if 10 <= version < 12 else {}  # type: ignore[attr-defined]
        lost = {"from_key": b"", "to_key": b""} if version < 12 else {}
        expected = msgspec.structs.replace(expected, args=msgspec.structs.replace(expected.args, **kept, **lost))  # type: ignore[attr-defined]
    assert decode(frame) == expected
    assert parts_encoder(version)(command) == [frame] == [encoder(version)(command)]


@given(st.data(), st.sampled_from(OLDER))
def test_a_version_reads_what_it_writes_to_the_last_byte(data: st.DataObject, version: int) -> None:
    command = data.draw(command_of(COMMANDS[data.draw(st.sampled_from(sorted(known_in(version))))]))
    frame = encode_as(command, version)
    read, left = parse_as(command.code, frame[8:], version)
    assert left == 0
    assert encode_as(read, version) == frame


@looped("version", OLDER)
@looped("cls", sorted(set(COMMANDS.values()), key=lambda cls: cls.code))
def test_a_command_that_a_version_had_not_cannot_be_said(cls: type[Command], version: int) -> None:
    if cls.code in known_in(version) or cls is Event:
        return
    command = next(iter(samples(cls)))
    with pytest.raises(UnknownCommand, match=f"wire version {version} has no command") as caught:
        encode_as(command, version)
    assert (caught.value.code, caught.value.type_name) == (cls.code, cls.type_name)


def samples(cls: type[Command]) -> Iterator[Command]:
    for line in COMMAND_VECTORS.read_text("utf-8").splitlines():
        case = json.loads(line)
        if case.get("code") == cls.code and "hex" in case:
            yield decode(bytes.fromhex(case["hex"]))
    if cls is MergeTableSegments or cls.code in (72, 73):
        yield cls.from_dict({name: 1 if name == "request_id" else "s" for name in cls.__struct_fields__})


def test_frames_were_shorter_before_the_limit_was_raised() -> None:
    assert [longest_frame_in(version) for version in (5, 8, 9, 17)] == [
        0x7FFFFF,
        0x7FFFFF,
        MAX_FRAME_BYTES,
        MAX_FRAME_BYTES,
    ]
    fits = PartialEvent(bytes(0x7FFFFF - 8))
    assert len(encode_as(fits, 8)) == 0x7FFFFF
    with pytest.raises(FrameTooLarge) as caught:
        encode_as(PartialEvent(bytes(0x7FFFFF - 7)), 8)
    assert (caught.value.limit, caught.value.actual) == (0x7FFFFF, 0x800000)
    assert len(encode_as(PartialEvent(bytes(0x7FFFFF - 7)), 9)) == 0x800000


def full_frames(vectors: Path) -> dict[tuple[int, str], bytes]:
    lines = map(json.loads, (vectors / "commands.jsonl").read_text("utf-8").splitlines())
    return {(line["code"], line["case"]): bytes.fromhex(line["hex"]) for line in lines if "hex" in line}


def bytes_of_the_next(cls: type[WireStruct], version: int) -> int:
    """How many bytes the first field that a version lacks must have to be read at all."""
    for node in cls.parts:
        if isinstance(node, Nested) and (found := bytes_of_the_next(node.record, version)):
            return found
        if FIELDS_SINCE.get((cls, node.name), 0) > version:
            return node.needs if isinstance(node, types.Tail) else 4
    return 0


@pytest.mark.parametrize(
    ("vectors", "enough"),
    [
        pytest.param(ROOT / "fixtures" / "vectors", 40, id="fixtures"),
        pytest.param(ROOT.parent / "shared" / "vectors", 60, id="shared", marks=pytest.mark.needs("../shared")),
    ],
)
def test_the_reference_reads_the_frames_of_older_versions_to_the_same_values(vectors: Path, enough: int) -> None:
    """Recorded frames that end where a version ended them, or within a field that is then ignored."""
    full, compared = full_frames(vectors), set()
    for case in (line.what for line in read_lines(vectors / "legacy.jsonl")):
        key = case["code"], case.get("from_case")
        if case["kind"] != "truncated" or key not in full:
            continue
        whole = decode(full[key])
        recorded = type(whole).from_dict(snake(case["decoded"]))
        for version in OLDER:
            if case["code"] not in known_in(version):
                continue
            frame = encode_as(whole, version)
            behind = case["kept"] - (len(frame) - 8)
            if behind == 0 or 0 < behind < bytes_of_the_next(type(whole), version):
                assert frame[8:] == bytes.fromhex(case["hex"])[8 : len(frame)]
                assert decode(frame) == recorded
                compared.add((case["code"], version))
    assert len(compared) >= enough


def newer_fields_are_defaults() -> list[tuple[Command, int, Command]]:
    event = Event(b"e")
    return [
        (CreateSegment(1, "s", 0, 0, "", 4096), 13, CreateSegment(1, "s", 0, 0, "", 0)),
        (CreateSegment(1, "s", 0, 0, "", 4096), 14, CreateSegment(1, "s", 0, 0, "", 4096)),
        (TABLE, 11, CreateTableSegment(1, "s", True, 0, "", 0)),
        (KEYS, 9, msgspec.structs.replace(KEYS, args=TableIteratorArgs(b"token", b"", b"", b""))),
        (ReadSegment("s", 12, 100, "", 7), 8, ReadSegment("s", 12, 100, "", 7)),
        (ReadSegment("s", 12, 100, "", 7), 7, ReadSegment("s", 12, 100, "", 12)),
        (ConditionalAppend(WRITER, 3, 9, event, 7), 7, ConditionalAppend(WRITER, 3, 9, event, 3)),
        (AppendBlockEnd(WRITER, 4, b"", 1, 5, 77), 7, AppendBlockEnd(WRITER, 4, b"", 1, 5, 5)),
        (AppendBlockEnd(WRITER, 4, b"", 1, 5, 77), 8, AppendBlockEnd(WRITER, 4, b"", 1, 5, 77)),
    ]


@looped(("sent", "version", "read"), newer_fields_are_defaults())
def test_a_version_ignores_fields_that_are_newer(sent: Command, version: int, read: Command) -> None:
    assert OlderFrameDecoder(version).feed(encode(sent) + encode(KeepAlive())) == [read, KeepAlive()]


def test_a_code_that_a_version_had_not_ends_its_decoder_after_what_came_before() -> None:
    decoder = OlderFrameDecoder(16)
    with pytest.raises(UnknownCommand) as caught:
        decoder.feed(encode(KeepAlive()) + encode(LocateOffset(1, "s", 5, "")) + encode(KeepAlive()))
    assert caught.value.decoded == [KeepAlive()]
    assert caught.value.code == LocateOffset.code
    with pytest.raises(UnknownCommand):
        decoder.feed(encode(KeepAlive()))


def test_the_end_of_a_block_had_its_last_eight_bytes_before_they_meant_anything() -> None:
    frame = encode(AppendBlockEnd(WRITER, 4, b"", 1, 5, 77))
    shorter = frame[:4] + (len(frame) - 16).to_bytes(4, "big") + frame[8:-8]
    assert decode(shorter) == AppendBlockEnd(WRITER, 4, b"", 1, 5, -1)
    with pytest.raises(Truncated):
        OlderFrameDecoder(7).feed(shorter)
    assert OlderFrameDecoder(8).feed(shorter) == [AppendBlockEnd(WRITER, 4, b"", 1, 5, -1)]


STRICT_FRAMES = encode(CreateSegment(1, "s", 0, 0, "", 0)) + encode(KeepAlive())


@looped("version", [5, 6, 7, 8])
@looped("cut", [0, 3, 9, len(STRICT_FRAMES) - 9])
def test_strictly_up_to_version_8_bytes_left_over_end_the_decoder_behind_their_command(version: int, cut: int) -> None:
    decoder = OlderFrameDecoder(version, strict=True)
    got: list[Command] = []
    got += decoder.feed(STRICT_FRAMES[:cut])
    with pytest.raises(BadField, match="takes the 8 bytes behind the last field for another frame") as caught:
        decoder.feed(STRICT_FRAMES[cut:])
    assert [*got, *caught.value.decoded] == [CreateSegment(1, "s", 0, 0, "", 0)]
    assert caught.value.offset == len(STRICT_FRAMES) - 16
    assert decoder.buffered_bytes == 0
    with pytest.raises(BadField) as again:
        decoder.feed(encode(KeepAlive()))
    assert not again.value.decoded


def test_strictly_from_version_9_on_bytes_left_over_are_ignored() -> None:
    assert len(OlderFrameDecoder(9, strict=True).feed(STRICT_FRAMES)) == 2


def test_strictly_a_conditional_append_with_bytes_behind_its_event_is_refused_before_version_8() -> None:
    frame = encode(ConditionalAppend(WRITER, 3, 9, Event(b"e"), 7))
    with pytest.raises(BadField) as caught:
        OlderFrameDecoder(7, strict=True).feed(frame)
    assert not caught.value.decoded
    assert OlderFrameDecoder(7, strict=True).feed(encode_as(decode(frame), 7)) == [
        ConditionalAppend(WRITER, 3, 9, Event(b"e"), 3)
    ]


@given(st.data(), st.sampled_from(OLDER), st.integers(1, 40))
def test_frames_are_found_whatever_the_pieces(data: st.DataObject, version: int, size: int) -> None:
    codes = st.sampled_from(sorted(known_in(version)))
    commands = [data.draw(command_of(COMMANDS[code])) for code in data.draw(st.lists(codes, max_size=3))]
    stream = b"".join(encode_as(command, version) for command in commands)
    decoder = OlderFrameDecoder(version)
    got = b""
    for start in range(0, len(stream), size):
        got += b"".join(encode_as(each, version) for each in decoder.feed(stream[start : start + size]))
    assert got == stream
    assert decoder.buffered_bytes == 0


@given(st.binary(max_size=80), st.sampled_from(sorted(COMMANDS)), st.sampled_from(OLDER), st.booleans())
def test_any_body_is_read_or_refused_with_a_wire_error(body: bytes, code: int, version: int, strict: bool) -> None:
    decoder = OlderFrameDecoder(version, strict=strict)
    try:
        assert len(decoder.feed(code.to_bytes(4, "big", signed=True) + len(body).to_bytes(4, "big") + body)) == 1
    except WireError:
        with pytest.raises(WireError):
            decoder.feed(b"")


def test_a_frame_beyond_the_limit_of_its_version_is_refused_on_its_header() -> None:
    header = PartialEvent.code.to_bytes(4, "big", signed=True) + (0x7FFFFF - 7).to_bytes(4, "big")
    with pytest.raises(FrameTooLarge) as caught:
        OlderFrameDecoder(8).feed(header)
    assert caught.value.limit == 0x7FFFFF
    assert OlderFrameDecoder(9).feed(header) == []
    with pytest.raises(FrameTooLarge):
        OlderFrameDecoder(9, max_frame_bytes=100).feed(header)
