"""Turns packet captures (pcap, pcapng) into traces: reassembles TCP connections and finds the frames in them.

The client is the host that opens a connection, or whose packets are seen first. Without ports, connections that start
with a Hello are read and others ignored. A connection ends when both sides have finished, or one resets it.

Invariants: bytes are in order and appear once, also after retransmission or reordering. After a gap a direction is not
read any further, because the start of its next frame is unknown; the lost bytes are reported. Times come from the
packets, controller calls and facts about connections from `segstore trace convert`. Not read: TLS, HTTP/2, and whatever
`segstore.pipeline.trace.packet_files` does not read.

A record's block is the offset of the packet that completed it, at the end of the capture of the last packet. Its number
is unique there, and later records have higher blocks or numbers. A connection's number is the offset of its first
packet.

Memory is bounded: data that waits for earlier packets, or for the first bytes of a client, takes at most
`MOST_WAITING_BYTES`, incomplete frames at most `MOST_FRAME_BYTES`; at most `MOST_CONNECTIONS` are open, and one more
ends the connection that has been silent longest.
"""

from __future__ import annotations

import heapq
import ipaddress
import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from segstore.pipeline.storage import File
from segstore.pipeline.trace.files import FileRange, RecordChunk, Skipped
from segstore.pipeline.trace.packet_files import (
    ACK,
    FIN,
    LINKS,
    RST,
    SYN,
    BadPackets,
    Packet,
    TcpSegment,
    call_in,
    packets_of,
    tcp_in,
)
from segstore.wire import WIRE_VERSION
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import (
    Call,
    Columns,
    Direction,
    FixtureError,
    FixtureHeader,
    Metadata,
    RecordKind,
    TraceWriter,
    decode_line,
    from_line,
    make_mark,
    read_body,
    read_header,
    unpack_data,
)

MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
MOST_FRAME_BYTES: Final = 128 * 1024 * 1024
MOST_CONNECTIONS: Final = 32_768

_PIECE_BYTES: Final = 128
"""Estimated overhead of a queued piece, in addition to its data."""
_CHUNK_BYTES: Final = 2 * 1024 * 1024
PIECES_AT_ONCE: Final = 16_384
"""A chunk ends after this many pieces, however short they are."""
HELLO_START: Final = struct.pack(">ii", -127, 8)
"""The first bytes of a client, by which connections to stores are found."""
_CUT: Final = "cut short by the capture (snap length; tcpdump -s 0 sets none)"
_MASK: Final = 0xFFFFFFFF

_End = tuple[bytes, int]
_Key = tuple[_End, _End]


@dataclass(slots=True, eq=False)
class TcpDirection:
    """One direction of a connection: bytes in order.

    is_cut: whether the capture has truncated any packet.
    next: position of the next byte; unlike a sequence number it never wraps. last: position of the end, once known.
    waiting: memory, in bytes, of pieces that came too early. lost: number of bytes after a gap.
    """

    next: int | None = None
    last: int | None = None
    _ahead: dict[int, bytes] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    waiting: int = 0
    lost: int = 0
    broken: bool = False
    is_cut: bool = False

    def take(self, sequence: int, data: bytes) -> list[bytes]:
        """Adds a piece; returns the pieces that are now in order."""
        if self.next is None:
            self.next = sequence
        if self.broken:
            self.lost += len(data)
            return []
        at = self._position(self.next, sequence)
        if at > self.next:
            self._keep(at, data)
            return []
        pieces = []
        while True:
            piece = data[self.next - at :]
            if piece:
                pieces.append(piece)
                self.next += len(piece)
            if not self._order or self._order[0] > self.next:
                return pieces
            at = heapq.heappop(self._order)
            data = self._ahead.pop(at)
            self.waiting -= len(data) + _PIECE_BYTES

    @staticmethod
    def _position(near: int, sequence: int) -> int:
        return near + ((sequence - near + (1 << 31)) & _MASK) - (1 << 31)

    def end_at(self, sequence: int) -> None:
        """Takes the end of the stream, once `take` was called."""
        if self.next is not None:
            self.last = self._position(self.next, sequence)

    @property
    def complete(self) -> bool:
        """Whether all bytes up to the end have come."""
        return self.last is not None and self.last == self.next

    def _keep(self, at: int, data: bytes) -> None:
        before = self._ahead.get(at)
        if before is None and data:
            heapq.heappush(self._order, at)
            self.waiting += _PIECE_BYTES
        if len(data) > len(before or b""):
            self._ahead[at] = data
            self.waiting += len(data) - len(before or b"")

    def give_up(self) -> None:
        """Stops reading this direction if it has a gap."""
        if self._ahead:
            self.broken = True
            self.lost += sum(map(len, self._ahead.values()))
            self._ahead.clear()
            self._order.clear()
            self.waiting = 0


def _sides() -> tuple[TcpDirection, TcpDirection]:
    return TcpDirection(), TcpDirection()


@dataclass(slots=True, eq=False)
class _Connection:
    """One TCP connection. number, ts_ns: offset and time of its first packet. known: whether it leads to a store.
    comment: on its first packet. closed_by: the direction that finished first. closing: the comment on the packet that
    finished it.
    """

    client: _End
    number: int
    ts_ns: int
    comment: bytes
    closed_by: Direction | None = None
    closing: bytes = b""
    sides: tuple[TcpDirection, TcpDirection] = field(default_factory=_sides)
    known: bool = False
    other: bool = False
    early: list[tuple[int, int, bytes]] = field(default_factory=list)
    early_bytes: int = 0
    first: bytes = b""

    @property
    def waiting(self) -> int:
        """Memory of all queued data, in bytes."""
        return self.sides[0].waiting + self.sides[1].waiting + self.early_bytes

    def leave_alone(self) -> None:
        """Marks this as not a connection to a store, and drops its data."""
        self.other = True
        self.comment = self.closing = b""
        self.early.clear()
        self.early_bytes = 0
        self.sides = _sides()


def read_packets(piece: FileRange, file: File, ports: tuple[int, ...]) -> Iterator[RecordChunk | Skipped]:
    """Yields the records of a capture's connections in the order of their packets, and skipped parts.

    ports: the stores' ports; empty for all connections that start with a Hello. Raises OSError.
    """
    reassembly = Reassembly(piece.path, ports)
    unread_links: set[int] = set()
    now = 0
    try:
        for packet in packets_of(file, piece.stop):
            now = packet.ts_ns
            line = call_in(packet.link, packet.data)
            if line is not None:
                yield from reassembly.take_call(packet, line)
            elif packet.link in LINKS:
                segment = tcp_in(packet.link, packet.data)
                if segment is not None:
                    yield from reassembly.take(packet, segment)
            elif packet.link not in unread_links:
                reason = f"packets of link type {packet.link} are not read"
                yield Skipped(piece.path, packet.at, len(packet.data), reason)
                unread_links.add(packet.link)
    except BadPackets as error:
        size = piece.stop - error.offset
        yield Skipped(piece.path, error.offset, size, f"not a packet capture from here on: {error}")
    yield from reassembly.finish(now)


class Reassembly:
    """Reassembles the packets of connections into records.

    ports: the stores' ports; empty for all connections that start with a Hello.
    """

    def __init__(self, path: str, ports: tuple[int, ...]) -> None:
        self.path = path
        self.ports = ports
        self.connections: OrderedDict[_Key, _Connection] = OrderedDict()
        self.waiting = 0
        self.now = 0
        self.at = 0
        self.due = False
        self._clear()
        metadata = Metadata(WIRE_VERSION, "pcap", {})
        self.writer = TraceWriter(
            make_mark(bytes(8)), metadata, block_bytes=_CHUNK_BYTES, most_held_bytes=MOST_FRAME_BYTES
        )

    def _clear(self) -> None:
        # The writer's times are indices of these two: the packet and the time of each piece.
        self.packets: list[int] = []
        self.times: list[int] = []

    def _begin(self, packet: Packet) -> Iterator[RecordChunk]:
        """Begins the next packet; yields earlier packets' records, so that a packet's are in one chunk."""
        if self.due or len(self.times) >= PIECES_AT_ONCE:
            yield from self._chunk(self.writer.take())
        self.at, self.now = packet.at, packet.ts_ns

    def take(self, packet: Packet, segment: TcpSegment) -> Iterator[RecordChunk | Skipped]:
        """Takes the next packet; yields records of earlier packets, and skipped parts."""
        yield from self._begin(packet)
        source, target = segment.source, segment.target
        key = (source, target) if source <= target else (target, source)
        if segment.flags & (SYN | ACK) == SYN and key in self.connections:
            yield from self._end(key)
        connection = self.connections.get(key)
        if connection is None:
            if len(self.connections) >= MOST_CONNECTIONS:
                yield from self._evict()
            opened_by_source = segment.flags & (SYN | ACK) != SYN | ACK and segment.source[1] not in self.ports
            client = segment.source if opened_by_source else segment.target
            connection = self.connections[key] = _Connection(client, packet.at, packet.ts_ns, packet.comment)
        else:
            self.connections.move_to_end(key)
        if not connection.other:
            sequence = (segment.sequence + 1) & _MASK if segment.flags & SYN else segment.sequence
            sender = Direction(segment.source != connection.client)
            connection.sides[sender].is_cut |= packet.is_cut
            self._take(connection, key, sender, sequence, bytes(segment.data))
            if segment.flags & (FIN | RST) and connection.closed_by is None:
                connection.closed_by, connection.closing = sender, packet.comment
            if segment.flags & FIN:
                connection.sides[sender].end_at(sequence + len(segment.data))
            if all(side.complete for side in connection.sides):
                yield from self._end(key)
                # Packets that are sent again open no connection.
                self.connections[key] = _Connection(connection.client, packet.at, packet.ts_ns, b"", other=True)
        if segment.flags & RST:
            yield from self._end(key)

    def take_call(self, packet: Packet, line: bytes) -> Iterator[RecordChunk | Skipped]:
        """Takes a controller call, as a line of a fixture, as the next packet."""
        yield from self._begin(packet)
        try:
            record = from_line(decode_line(line, 1), FixtureHeader(Metadata(), 0), 1)
        except FixtureError as error:
            yield Skipped(self.path, packet.at, len(line), f"this is no controller call: {error}")
            return
        call = Call.unpack(record.data) if record.kind is RecordKind.CALL else None
        if call is None:
            yield Skipped(self.path, packet.at, len(line), "this is no controller call")
        else:
            self.due = self.writer.called(self._moment(self.now), record.direction, call) or self.due

    def finish(self, now: int) -> Iterator[RecordChunk | Skipped]:
        """Ends all connections at the end of the capture; yields the remaining records."""
        self.now = now
        for key, connection in list(self.connections.items()):
            yield from self._end(key, closes=connection.closed_by is not None)
        yield from self._chunk(self.writer.finish(self._moment(now)))

    def _take(self, connection: _Connection, key: _Key, direction: int, sequence: int, data: bytes) -> None:
        side = connection.sides[direction]
        before = connection.waiting
        for piece in side.take(sequence, data):
            self._bytes(connection, direction, piece, key)
        self.waiting += connection.waiting - before
        if self.waiting > MOST_WAITING_BYTES and connection.waiting > before:
            self.waiting -= connection.waiting
            if not connection.known:
                connection.leave_alone()
            side.give_up()
            self.waiting += connection.waiting

    def _bytes(self, connection: _Connection, direction: int, data: bytes, key: _Key) -> None:
        if connection.other:
            return
        if not connection.known:
            connection.early.append((self.now, direction, data))
            connection.early_bytes += len(data) + _PIECE_BYTES
            if direction == 0:
                connection.first += data[: len(HELLO_START)]
            wanted = any(port in self.ports for _, port in key)
            if wanted or (not self.ports and connection.first[: len(HELLO_START)] == HELLO_START):
                self._adopt(connection, key)
            elif self.ports or not HELLO_START.startswith(connection.first[: len(HELLO_START)]):
                connection.leave_alone()
            return
        self._add(self.now, connection.number, direction, data)

    def _add(self, now: int, number: int, direction: int, data: bytes) -> None:
        self.due = self.writer.add(self._moment(now), number, direction, data) or self.due

    def _moment(self, now: int) -> int:
        """The writer's time for the next record: with the current packet, but the time `now`."""
        self.packets.append(self.at)
        self.times.append(now)
        return len(self.times) - 1

    def _adopt(self, connection: _Connection, key: _Key) -> None:
        connection.known = True
        store = key[0] if key[1] == connection.client else key[1]
        opened = self._moment(connection.ts_ns)
        facts = {"peer": _named(connection.client), "store": _named(store), **_facts_in(connection.comment)}
        connection.comment = b""
        self.writer.opened(opened, connection.number, **facts)
        for now, direction, data in connection.early:
            self._add(now, connection.number, direction, data)
        connection.early.clear()
        connection.early_bytes = 0

    def _evict(self) -> Iterator[Skipped]:
        """Ends the connection that has been silent longest, to make room for a connection that begins."""
        key, connection = next(iter(self.connections.items()))
        yield from self._end(key)
        if connection.known:
            reason = f"connection {connection.number} is dropped: more than {MOST_CONNECTIONS} connections are open"
            yield Skipped(self.path, self.at, 0, reason)

    def _end(self, key: _Key, *, closes: bool = True) -> Iterator[Skipped]:
        """Ends a connection. closes: whether it is closed; otherwise the capture ends before."""
        connection = self.connections.pop(key)
        self.waiting -= connection.waiting
        if not connection.known:
            if connection.sides[0].is_cut:  # perhaps its Hello, by which it would be known
                reason = f"the first packets of the connection from {_named(connection.client)} are {_CUT}"
                yield Skipped(self.path, connection.number, 0, reason)
            return
        for direction, side in zip(("requests", "replies"), connection.sides, strict=True):
            side.give_up()
            if side.lost or (side.is_cut and not side.complete):
                reason = (
                    f"packets with {direction} of the connection from {_named(connection.client)} are "
                    f"{_CUT if side.is_cut else 'missing'}: {side.lost} bytes after them are not read"
                )
                yield Skipped(self.path, connection.number, side.lost, reason)
        if closes:
            by = Direction.REQUEST if connection.closed_by is None else connection.closed_by
            is_due = self.writer.closed(self._moment(self.now), connection.number, by, **_facts_in(connection.closing))
            self.due = is_due or self.due

    def _chunk(self, block: bytes) -> Iterator[RecordChunk]:
        if block:
            header = read_header(block, 0)
            columns = Columns(read_body(block, 0, header), header.records)
            moments = columns.ts_ns.tolist()
            columns.ts_ns = memoryview(array("q", map(self.times.__getitem__, moments)))
            packets = array("q", map(self.packets.__getitem__, moments))
            yield RecordChunk(self.path, packets[0], columns, packets=packets)
        self.due = False
        self._clear()


def _facts_in(comment: bytes) -> dict[str, str]:
    """The facts of a record in a comment by `segstore trace convert`; {} for any other comment."""
    facts = unpack_data(comment) if comment else None
    return {name: value for name, value in (facts or {}).items() if isinstance(value, str)}


def _named(end: _End) -> str:
    return str(Endpoint(str(ipaddress.ip_address(end[0])), end[1]))
