"""Dialogues for the tests of replay: recorded at a store as `serve --record` records them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from segstore.server import MockSegmentStore
from segstore.server.replay import TraceServer
from segstore.traces import FileRecorder, TraceFile, drive, write_trace
from segstore.wire import (
    CreateTransientSegment,
    GetStreamSegmentInfo,
    KeepAlive,
    MergeSegments,
    SegmentCreated,
    SetupAppend,
    encode,
)
from segstore.wire.trace import Direction, Metadata, Record, RecordKind
from tests.server.support import HELLO, SEGMENT, Peer, append, create, read, set_up, until

WRITER = UUID("00112233-4455-6677-8899-aabbccddeeff")


async def record(path: Path, client: Callable[[str, int], Awaitable[object]], mock: MockSegmentStore) -> list[Record]:
    """What a client says to a store and hears."""
    recorder = FileRecorder(path, Metadata(17, "a test"))
    mock.server.hub.recorder = recorder
    try:
        await client(mock.host, mock.port)
        await until(lambda: not mock.server.hub.connections)
    finally:
        mock.server.hub.recorder = None
        recorder.close()
    return read_all(path)


def dialogue(folder: Path) -> Path:
    """Writes a trace of two requests with the replies that a store gives."""
    commands = [(0, HELLO), (1, HELLO), (0, create()), (1, SegmentCreated(1, SEGMENT))]
    records = [
        Record(at, 1, Direction(direction), RecordKind.FRAME, encode(command))
        for at, (direction, command) in enumerate(commands)
    ]
    path = folder / "dialogue.jsonl"
    write_trace(path, records, Metadata)
    return path


def read_all(path: Path) -> list[Record]:
    with TraceFile(path) as trace:
        found = list(trace.records())
        assert not trace.damages
    return found


def streams(records: list[Record]) -> dict[tuple[int, Direction], bytes]:
    """The bytes of each direction of each connection."""
    found: dict[tuple[int, Direction], bytes] = {}
    for record in records:
        if record.kind in (RecordKind.FRAME, RecordKind.BYTES):
            key = record.connection, record.direction
            found[key] = found.get(key, b"") + record.data
    return found


async def check_replayed_as_a_server(records: list[Record]) -> None:
    """A server made of a trace says to the trace's own client what was recorded, byte for byte."""
    async with TraceServer(records) as server:
        found = await drive(records, server.host, server.port, ignore=frozenset())
        assert server.problems == []
        assert not server.unused()
    assert found.differences == []
    assert streams(found.records) == streams(records)


class Port:
    """As much of a store as `Peer.connect` asks for."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port


async def writes(host: str, port: int, *, writer: UUID = WRITER, first_id: int = 0, appends: int = 3) -> list[str]:
    """A client: two connections, appends, a read at the tail, a transient segment; the names of what it heard."""
    where = Port(host, port)
    heard = []
    async with await Peer.connect(where) as peer:  # type: ignore[arg-type]  # it asks for host and port alone
        heard += await peer.ask(HELLO, create(request_id=first_id + 1), set_up(writer_id=writer))
        peer.send(*(append(number, b"event%d" % number, writer, first_id + 3) for number in range(1, appends + 1)))
        heard += await peer.receive(appends)
        heard += await peer.ask(KeepAlive(), GetStreamSegmentInfo(first_id + 4, SEGMENT, ""))
        (made,) = await peer.ask(CreateTransientSegment(first_id + 5, writer, SEGMENT, ""))
        assert isinstance(made, SegmentCreated)
        transient = made.segment
        heard += [made, *await peer.ask(SetupAppend(first_id + 6, writer, transient, ""))]
        heard += await peer.ask(append(1, b"moved", writer, first_id + 7))
        heard += await peer.ask(MergeSegments(first_id + 8, SEGMENT, transient, ""))
    async with await Peer.connect(where) as other:  # type: ignore[arg-type]  # as above
        heard += await other.ask(HELLO, read(0, request_id=first_id + 9), read(900, request_id=first_id + 10))
    return [each.type_name for each in heard]
