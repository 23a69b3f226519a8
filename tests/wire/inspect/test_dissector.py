"""The dissector gives Wireshark the values that the codec gives, of every command, and marks what the codec refuses.

The frames are the reference's own; `tshark` reads them from packets that are cut at any byte.
"""

import enum
import json
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any
from uuid import UUID

import pytest

from segstore.traces import write_trace
from segstore.wire import WireError, decode, encode
from segstore.wire.codec import HEADER_BYTES
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    Event,
    FlushToStorage,
    Hello,
    KeepAlive,
    MergeTableSegments,
    Padding,
    PartialEvent,
    ReadSegment,
    SealTableSegment,
    SegmentRead,
    TableEntriesUpdated,
    WrongHost,
)
from segstore.wire.inspect import dissector, pieces
from segstore.wire.schema import COMMANDS, Command, Unknown
from segstore.wire.schema.record import WireStruct as Structure
from segstore.wire.trace import Direction, Metadata, Record, RecordKind

VECTORS = Path(__file__).parents[3] / "fixtures" / "vectors"
HELLO = encode(Hello(17, 5))
tshark = pytest.mark.needs("tshark")


def filter_name(type_name: str, path: str) -> str:
    return f"segstore.{type_name.lower()}.{path}"


def vectors(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_text("utf-8").split("\n") if line]


def whole_frames(name: str) -> list[bytes]:
    found = [bytes.fromhex(line["hex"]) for line in vectors(name) if "hex" in line]
    return [each for each in found if [piece.whole for piece in pieces(each)] == [True]]


class Lab:
    """Writes connections as packets and reads them with tshark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "segstore.lua"
        self.script.write_text(dissector(port=12345), encoding="utf-8")

    def frames(self, *connections: list[bytes], step: int = 1000) -> list[dict[str, list[str]]]:
        """The fields of all frames, in order; each field's values. The bytes of a connection come in pieces of `step`
        bytes, after a Hello of its own, whose fields are left out.
        """
        records = []
        for number, several in enumerate(connections, 1):
            sent = b"".join([HELLO, *several])
            records += [
                Record(number, number, Direction.REQUEST, RecordKind.BYTES, sent[at : at + step])
                for at in range(0, len(sent), step)
            ]
        path = self.folder / "a.pcapng"
        write_trace(path, records, lambda: Metadata(17, "tests", {}))
        found: list[dict[str, list[str]]] = []
        for packet in self.read(path):
            found += [each for name, each in packet["_source"]["layers"] if name == "segstore"]
        flat = []
        for each in found:
            fields: dict[str, list[str]] = {}
            for name, value in flattened(each):
                fields.setdefault(name, []).append(value)
            flat.append(fields)
        return [each for each in flat if filter_name("HELLO", "high_version") not in each]

    def read(self, path: Path) -> list[dict[str, Any]]:
        shown = self.run(path, "-T", "json", "-J", "segstore")

        def pairs(found: list[tuple[str, Any]]) -> Any:
            return dict(found) if any(name in ("_source", "layers") for name, _ in found) else found

        packets: list[dict[str, Any]] = json.loads(shown, object_pairs_hook=pairs)
        return packets

    def run(self, path: Path, *options: str) -> str:
        command = ["tshark", "-n", "-X", f"lua_script:{self.script}", "-r", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
        assert (done.returncode, "Lua" in done.stderr) == (0, False), done.stderr
        return done.stdout


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def flattened(found: Any) -> Iterator[tuple[str, str]]:
    for name, value in found:
        if isinstance(value, list):
            yield from flattened(value)
        else:
            yield name, value


def expected(command: Command) -> dict[str, list[str]]:
    """The fields of a command as tshark shows them."""
    found: dict[str, list[str]] = {}
    for path, value in shown(command, ""):
        found.setdefault(filter_name(command.type_name, path), []).append(value)
    return found


def shown(value: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case Structure():
            for name in value.__struct_fields__:
                yield from shown(getattr(value, name), f"{path}.{name}" if path else name)
        case tuple():
            for each in value:
                yield from shown(each, path)
        case enum.IntEnum() | int():
            yield path, str(int(value))
        case UUID():
            yield path, str(value)
        case str():
            yield path, re.sub("[\ud800-\udfff]", "\ufffd", value).replace("\0", "\u2400")
        case _:
            yield path, bytes(value).hex(":")


def fields_of(found: dict[str, list[str]], command: Command) -> dict[str, list[str]]:
    """The fields of the command among those of a frame. A number that is no member of its enum, which Wireshark shows
    as it is, is the enum's unknown one, as in the codec.
    """
    prefix = filter_name(command.type_name, "")
    fields = {name: values for name, values in found.items() if name.startswith(prefix)}
    for name in command.__struct_fields__:
        if isinstance(value := getattr(command, name), enum.IntEnum):
            (number,) = fields[prefix + name]
            fields[prefix + name] = [number if int(number) in set(type(value)) else str(int(value))]
    return fields


def decoded(frame: bytes) -> Command | None:
    try:
        return decode(frame, unknown="keep")
    except WireError:
        return None


@tshark
@pytest.mark.parametrize("step", [7, 60_000])
def test_every_field_of_every_command_is_what_the_codec_says(lab: Lab, step: int) -> None:
    frames = [each for name in ("commands.jsonl", "legacy.jsonl") for each in whole_frames(name)]
    frames += [encode(MergeTableSegments(1, "a", "b", "token")), encode(SealTableSegment(2, "a", "token"))]
    frames = [each for each in frames if type(decoded(each)) not in (Hello, Unknown, NoneType)]
    commands = [(frame, decode(frame)) for frame in frames]
    found = lab.frames([frame for frame, _ in commands], step=step)
    assert len(found) == len(commands)
    for shown_fields, (frame, command) in zip(found, commands, strict=True):
        assert shown_fields["segstore.type"][0] == str(command.code)
        assert shown_fields["segstore.length"][0] == str(len(frame) - HEADER_BYTES)
        assert fields_of(shown_fields, command) == expected(command), command
        assert "segstore.malformed" not in shown_fields
        assert ("segstore.failure" in shown_fields) is command.is_failure
    assert {type(command) for _, command in commands} | {Hello, Event} == set(COMMANDS.values())


@tshark
def test_a_malformed_frame_is_marked_and_the_next_ones_are_read(lab: Lab) -> None:
    frames = [each for name in ("malformed.jsonl", "mutations.jsonl") for each in whole_frames(name)]
    frames = [each for each in frames if type(decoded(each)) not in (Hello, Unknown)]
    found = lab.frames([part for each in frames for part in (each, encode(KeepAlive()))])
    assert len(found) == 2 * len(frames)
    malformed = 0
    for frame, fields, after in zip(frames, found[::2], found[1::2], strict=True):
        command = decoded(frame)
        assert ("segstore.malformed" in fields) is (command is None), frame.hex()
        if command is not None:
            assert fields_of(fields, command) == expected(command)
        malformed += command is None
        assert after["segstore.type"] == [str(KeepAlive.code)]
    assert malformed > 50


@tshark
def test_events_are_taken_out_of_append_blocks(lab: Lab) -> None:
    inside = [Event(b"one"), PartialEvent(b"tw"), Padding(9)]
    block = AppendBlock(UUID(int=7), b"".join(map(encode_nested, inside)))
    odd = AppendBlock(UUID(int=7), encode_nested(Event(b"two")) + b"rest")
    first, second = lab.frames([encode(block), encode(odd)])
    assert fields_of(first, block) == expected(block)
    for each in inside:
        assert fields_of(first, each) == expected(each)
    assert first["segstore.type"] == [str(each.code) for each in (block, *inside)]
    assert second[filter_name("EVENT", "data")] == [b"two".hex(":")]
    assert second[filter_name("APPEND_BLOCK", "data")] == [bytes(odd.data).hex(":")]


@tshark
def test_the_events_in_an_append_of_one_frame_and_in_a_read_are_fields(lab: Lab) -> None:
    writer, events = UUID(int=7), encode_nested(Event(b"one")) + encode_nested(Event(b"two"))
    commands = [
        AppendBlockEnd(writer, len(events), events, 2, 2, 1),
        SegmentRead("scope/stream/0", 0, True, False, events + events[:10], 1),
        SegmentRead("scope/stream/0", 5, True, False, events[5:], 1),
        SegmentRead("scope/stream/0", 0, True, False, bytes(32), 1),
    ]
    found = lab.frames([encode(each) for each in commands])
    assert [fields_of(each, command) for each, command in zip(found, commands, strict=True)] == list(
        map(expected, commands)
    )
    both = [b"one".hex(":"), b"two".hex(":")]
    assert [each.get(filter_name("EVENT", "data")) for each in found] == [both, both, None, None]
    assert not any("segstore.malformed" in each for each in found)


def encode_nested(command: Command) -> bytes:
    body = bytes(command.length) if isinstance(command, Padding) else bytes(command.data)  # type: ignore[attr-defined]
    return command.code.to_bytes(4, "big", signed=True) + len(body).to_bytes(4, "big") + body


@tshark
def test_headers_without_a_meaning_end_what_can_be_read(lab: Lab) -> None:
    frames = [bytes.fromhex("00000009ffffffff") + bytes(20), bytes.fromhex("0000000901000000")]
    known = [encode(Unknown(99, b"abc")), encode_nested(Event(b"abc")), encode(KeepAlive())]
    found = lab.frames(known, *([frame] for frame in frames))
    assert [each["segstore.type"] for each in found] == [["99"], ["0"], ["100"], ["9"], ["9"]]
    assert ["segstore.unknown" in each for each in found] == [True, True, False, False, False]
    assert ["segstore.malformed" in each for each in found] == [False, False, False, True, True]
    assert found[0]["segstore.unread"] == found[1]["segstore.unread"] == ["61:62:63"]


@tshark
def test_a_packet_of_which_only_the_start_was_captured_is_not_called_malformed(lab: Lab, tmp_path: Path) -> None:
    head = bytes.fromhex("4500ffff00004000400600007f0000017f000001")  # IPv4, with its total length below
    frame = encode(ReadSegment("scope/stream/0", 0, 9, "token", 1))
    tcp = struct.pack(">HHIIBBHHH", 40_000, 12_345, 1, 1, 0x50, 0x18, 1024, 0, 0)
    packet = head[:2] + struct.pack(">H", 40 + len(HELLO + frame)) + head[4:] + tcp + HELLO + frame
    taken = len(packet) - 12
    path = tmp_path / "cut.pcap"
    path.write_bytes(
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, taken, 101)
        + struct.pack("<IIII", 1, 0, taken, len(packet))
        + packet[:taken]
    )
    fields = ["segstore.type", "segstore.read_segment.segment", "segstore.cut", "segstore.malformed"]
    line = lab.run(path, "-T", "fields", "-E", "separator=|", *(part for field in fields for part in ("-e", field)))
    types, segment, cut, malformed = line.rstrip("\n").split("|")
    assert (types, segment, bool(cut), malformed) == ("-127,9", "scope/stream/0", True, "")


@tshark
def test_long_lists_are_shown_up_to_a_limit(lab: Lab) -> None:
    command = TableEntriesUpdated(1, tuple(range(20_000)))
    (found,) = lab.frames([encode(command)])
    assert found[filter_name(command.type_name, "updated_versions")] == [str(each) for each in range(10_000)]
    assert "segstore.malformed" in found


@tshark
def test_lines_name_the_commands_and_segments_but_no_tokens(lab: Lab, tmp_path: Path) -> None:
    sent = [
        HELLO,
        encode(ReadSegment("scope/stream/0", 0, 9, "the token", 1)),
        encode(FlushToStorage(1, "the token", 5)),
    ]
    path = tmp_path / "a.pcapng"
    write_trace(path, [Record(1, 1, Direction.REQUEST, RecordKind.BYTES, b"".join(sent))], Metadata)
    (line,) = lab.run(path, "-Y", "segstore", "-T", "fields", "-e", "_ws.col.Info").splitlines()
    assert line == "HELLO | READ_SEGMENT scope/stream/0 | FLUSH_TO_STORAGE"


@tshark
def test_a_connection_without_its_start_is_read_on_the_stores_port(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    reply = Record(1, 1, Direction.REPLY, RecordKind.FRAME, encode(WrongHost(7, "scope/stream/0", "host:1", "")))
    write_trace(path, [reply], Metadata)
    shown_fields = lab.run(path, "-Y", "segstore.failure", "-T", "fields", "-e", "segstore.wrong_host.correct_host")
    assert shown_fields.splitlines() == ["host:1"]
    assert not lab.run(path, "-o", "segstore.ports:9", "-Y", "segstore")


def test_every_command_is_in_the_source() -> None:
    source = dissector(port=1)
    for command in COMMANDS.values():
        assert f'name = "{command.type_name}"' in source
    assert source.count("@") == 0
