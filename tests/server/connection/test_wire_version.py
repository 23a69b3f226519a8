"""A store of an older wire version, over real sockets: what it answers, leaves out, does not see and closes on."""

from collections.abc import Iterable

import pytest

from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    Event,
    GetTableSegmentInfo,
    Hello,
    KeepAlive,
    LocateOffset,
    MergeTableSegments,
    NoSuchSegment,
    OperationUnsupported,
    ReadTableEntriesDelta,
    ReadTableKeys,
    SealSegment,
    SegmentCreated,
    SegmentIsSealed,
    SegmentRead,
    SegmentSealed,
    StorageFlushed,
    TableIteratorArgs,
    TableKeysRead,
    encode,
)
from segstore.wire.codec.versions import encode_as
from segstore.wire.commands import FlushToStorage
from segstore.wire.schema import Command
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, append, create, read, set_up

pytestmark = pytest.mark.usefixtures("loop_is_left_clean")

NONE = -(1 << 63)


def as_of(version: int, commands: Iterable[Command]) -> bytes:
    return b"".join(encode_as(command, version) for command in commands)


@looped("version", [5, 9, 17])
async def test_hello_is_answered_with_the_version(version: int) -> None:
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        assert await peer.ask(HELLO) == [Hello(version, 5)]
        assert await peer.ask(KeepAlive()) == [KeepAlive()]


async def test_a_client_that_wants_a_newer_version_is_told_and_closed() -> None:
    async with MockSegmentStore(wire_version=8) as store, await Peer.connect(store) as peer:
        peer.send(Hello(17, 9))
        assert await peer.closed() == encode(Hello(8, 5))


@looped("version", [5, 6, 7, 8, 9, 15, 16, 17])
async def test_replies_are_as_long_as_the_version_wrote_them(version: int) -> None:
    """A client of the version talks: it sends what that version sent, and reads each byte that comes back."""
    named = version >= 8  # replies name the request by its own id
    said = [
        create(),
        set_up(),
        append(5, request_id=31),
        ConditionalAppend(WRITER, 6, 99, Event(b"e"), 32),
        read(request_id=33),
        SealSegment(34, SEGMENT, ""),
        append(7, request_id=35),
    ]
    heard = [
        SegmentCreated(1, SEGMENT),
        AppendSetup(2, SEGMENT, WRITER, NONE),
        DataAppended(31, WRITER, 5, NONE, 4),
        ConditionalCheckFailed(WRITER, 6, 32),
        SegmentRead(SEGMENT, 0, True, False, b"data", 33),
        SegmentSealed(34, SEGMENT),
        SegmentIsSealed(35 if named else 7, SEGMENT, "", 7),
    ]
    expected = as_of(version, heard)
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        peer.send_bytes(as_of(version, said))
        assert await peer.reader.readexactly(len(expected)) == expected
        peer.send_bytes(as_of(version, [KeepAlive()]))
        assert await peer.reader.readexactly(8) == encode(KeepAlive())


@looped(("version", "request_id"), [(7, 12), (8, 33), (17, 33)])
async def test_before_version_8_the_refusal_of_a_read_names_its_offset(version: int, request_id: int) -> None:
    refused = NoSuchSegment(request_id, SEGMENT, "", 12)
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        peer.send(read(12, request_id=33))
        expected = encode_as(refused, version)
        assert await peer.reader.readexactly(len(expected)) == expected


TABLE = CreateTableSegment(1, SEGMENT, False, 16, "", 4096)
LEGACY = MergeTableSegments(1, SEGMENT, SEGMENT, "")


@looped(
    ("version", "command", "answer"),
    [
        (6, TABLE, None),
        (7, TABLE, SegmentCreated(1, SEGMENT)),
        (9, ReadTableEntriesDelta(1, SEGMENT, "", 0, 1), None),
        (10, ConditionalBlockEnd(WRITER, 1, 0, b"e", 1), None),
        (11, GetTableSegmentInfo(1, SEGMENT, ""), None),
        (12, LEGACY, None),
        *((version, LEGACY, OperationUnsupported(1, "mergeTableSegments", "")) for version in (7, 11, 17)),
        (14, CreateTransientSegment(1, WRITER, SEGMENT, ""), None),
        (16, LocateOffset(1, SEGMENT, 0, ""), None),
    ],
)
async def test_a_command_that_the_version_had_not_closes(
    version: int, command: Command, answer: Command | None
) -> None:
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        if answer is not None:
            assert await peer.ask(command) == [answer]
            return
        assert await peer.ask(create()) == [SegmentCreated(1, SEGMENT)]
        peer.send(command)
        assert await peer.closed() == b""
        assert store.server.service.counters.malformed_frames == 1


async def test_fields_that_are_newer_are_not_seen() -> None:
    """A key length is version 12: before, the table is a hash table whatever the client asks for."""
    async with MockSegmentStore(wire_version=11) as store, await Peer.connect(store) as peer:
        args = TableIteratorArgs(b"", b"", b"", b"")
        assert await peer.ask(TABLE, ReadTableKeys(2, SEGMENT, "", 10, args)) == [
            SegmentCreated(1, SEGMENT),
            TableKeysRead(2, SEGMENT, (), b""),
        ]


@looped("version", [10, 11])
async def test_an_illegal_argument_closed_until_there_was_a_reply_for_it(version: int) -> None:
    """Beyond the length of the delta; the reply to what came before is written in both."""
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        peer.send(TABLE, ReadTableEntriesDelta(2, SEGMENT, "", 1 << 40, 1), KeepAlive())
        assert await peer.receive() == [SegmentCreated(1, SEGMENT)]
        if version == 10:
            assert await peer.closed() == b""
        else:
            refused, alive = await peer.receive(2)
            assert (refused.type_name, alive) == ("ERROR_MESSAGE", KeepAlive())


@looped(("version", "closes"), [(5, True), (8, True), (9, False), (17, False)])
async def test_strictly_bytes_behind_the_last_field_closed_up_to_version_8(version: int, closes: bool) -> None:
    frame = encode(KeepAlive())[:4] + (3).to_bytes(4, "big") + b"???"
    async with (
        MockSegmentStore(wire_version=version, strict_wire_version=True) as store,
        await Peer.connect(store) as peer,
    ):
        peer.send_bytes(encode_as(create(), version) + frame + encode_as(SealSegment(1, SEGMENT, ""), version))
        if closes:
            await peer.closed()
        else:
            assert await peer.receive(3) == [SegmentCreated(1, SEGMENT), KeepAlive(), SegmentSealed(1, SEGMENT)]
        assert store.segments[SEGMENT].sealed is not closes


@looped("version", [8, 9])
async def test_frames_above_eight_mebibytes_came_with_version_9(version: int) -> None:
    header = append(1).code.to_bytes(4, "big") + (0x7FFFFF).to_bytes(4, "big")
    async with MockSegmentStore(wire_version=version) as store, await Peer.connect(store) as peer:
        assert await peer.ask(HELLO) == [Hello(version, 5)]
        peer.send_bytes(header)
        if version == 8:
            assert await peer.closed() == b""
        else:
            peer.send_bytes(b"\0")
            assert store.server.service.counters.malformed_frames == 0


async def test_the_admin_port_speaks_the_same_version() -> None:
    flush = FlushToStorage(0, "", 4)
    async with MockSegmentStore(wire_version=13, admin_port=0) as store, await Peer.connect(store, admin=True) as peer:
        assert await peer.ask(HELLO, flush) == [Hello(13, 5), StorageFlushed(4)]
    async with MockSegmentStore(wire_version=12, admin_port=0) as store, await Peer.connect(store, admin=True) as peer:
        peer.send(flush)
        assert await peer.closed() == b""
