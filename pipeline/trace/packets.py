"""Turns packet captures (pcap, pcapng) into traces: reassembles TCP connections and finds the frames in them.

The client is the host that opens a connection, or whose packets are seen first. Without ports, connections that start
with a Hello are read and others ignored.

Invariants: bytes are in order and appear once, also after retransmission or reordering. After a gap a direction is not
read any further, because the start of its next frame is unknown; the lost bytes are reported. Memory is bounded: data
that waits for earlier packets, or for the first bytes of a client, takes at most `MOST_WAITING_BYTES`; at most
`MOST_CONNECTIONS` are open, and one more ends the one that has been silent longest. Times are those of the packets.
Not read: TLS, and whatever `segstore.pipeline.trace.packet_files` does not read.
"""

from __future__ import annotations

import heapq
import ipaddress
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from segstore.pipeline.storage import File
from segstore.pipeline.trace.files import Chunk, Skipped
from segstore.pipeline.trace.packet_files import ACK, LINKS, RST, SYN, BadPackets, Packet, packets_of, tcp_in
from segstore.wire import WIRE_VERSION
from segstore.wire.trace import Columns, Direction, Metadata, TraceWriter, make_mark, read_body, read_header

MOST_WAITING_BYTES: Final = 128 * 1024 * 1024
MOST_CONNECTIONS: Final = 65_536

_PIECE_BYTES: Final = 128
"""Estimated overhead of a queued piece, in addition to its data."""
PIECES_AT_ONCE: Final = 65_536
"""A chunk ends after this many pieces, however short they are."""
_HELLO: Final = struct.pack(">ii", -127, 8)
_MASK: Final = 0xFFFFFFFF

_End = tuple[bytes, int]
_Key = tuple[_End, _End]


class Side:
    """One direction of a connection: bytes in order.

    next: position of the next byte; unlike a sequence number it never wraps. waiting: memory, in bytes, of pieces that
    came too early. lost: number of bytes after a gap.
    """

    __slots__ = ("_ahead", "_order", "broken", "lost", "next", "waiting")

    def __init__(self) -> None:
        self.next: int | None = None
        self._ahead: dict[int, bytes] = {}
        self._order: list[int] = []
        self.waiting = 0
        self.lost = 0
        self.broken = False

    def take(self, sequence: int, data: bytes) -> list[bytes]:
        """Adds a piece; returns the pieces that are now in order."""
        if self.next is None:
            self.next = sequence
        if self.broken:
            self.lost += len(data)
            return []
        at = self.next + ((sequence - self.next + (1 << 31)) & _MASK) - (1 << 31)
        if at > self.next:
            self._keep(at, data)
            return []
        found = []
        while True:
            piece = data[self.next - at :]
            if piece:
                found.append(piece)
                self.next += len(piece)
            if not self._order or self._order[0] > self.next:
                return found
            at = heapq.heappop(self._order)
            data = self._ahead.pop(at)
            self.waiting -= len(data) + _PIECE_BYTES

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


class _Connection:
    """One TCP connection. number: its number in the trace; None until it is recognised as a connection to a store."""

    __slots__ = ("client", "early", "early_bytes", "first", "number", "other", "place", "sides")

    def __init__(self, client: _End, place: int) -> None:
        self.client = client
        self.place = place
        self.sides = (Side(), Side())
        self.number: int | None = None
        self.other = False
        self.early: list[tuple[int, int, bytes]] = []
        self.early_bytes = 0
        self.first = b""

    @property
    def waiting(self) -> int:
        """Memory of all queued data, in bytes."""
        return self.sides[0].waiting + self.sides[1].waiting + self.early_bytes

    def leave_alone(self) -> None:
        """Marks this as not a connection to a store, and drops its data."""
        self.other = True
        self.early.clear()
        self.early_bytes = 0
        self.sides = (Side(), Side())


class Reassembly:
    """Reassembles the packets of one capture into records.

    ports: the stores' ports; empty for all connections that start with a Hello.
    """

    def __init__(self, path: str, ports: tuple[int, ...]) -> None:
        self.path = path
        self.ports = ports
        self.connections: OrderedDict[_Key, _Connection] = OrderedDict()
        self.unread_links: set[int] = set()
        self.waiting = 0
        self.count = 0
        self.block = 0
        self.now = 0
        self.due = False
        self.pieces = 0
        self.writer = TraceWriter(make_mark(bytes(8)), Metadata(WIRE_VERSION, "pcap", {}))

    def read(self, file: File) -> Iterator[Chunk | Skipped]:
        """Yields the records of the capture, and what is skipped, in order."""
        try:
            for packet in packets_of(file):
                self.now = packet.ts_ns
                yield from self._packet(packet)
        except BadPackets as error:
            size = file.size - error.offset
            yield Skipped(self.path, error.offset, size, f"not a packet capture from here on: {error}")
        for key in list(self.connections):
            yield from self._end(key)
        yield from self._chunk(self.writer.finish(self.now), 0)

    def _packet(self, packet: Packet) -> Iterator[Chunk | Skipped]:
        if packet.link not in LINKS and packet.link not in self.unread_links:
            self.unread_links.add(packet.link)
            yield Skipped(self.path, packet.at, len(packet.data), f"packets of link type {packet.link} are not read")
        found = tcp_in(packet.link, packet.data) if packet.link in LINKS else None
        if found is None:
            return
        source, target = found.source, found.target
        key = (source, target) if source <= target else (target, source)
        if found.flags & (SYN | ACK) == SYN and key in self.connections:
            yield from self._end(key)
        connection = self.connections.get(key)
        if connection is None:
            if len(self.connections) >= MOST_CONNECTIONS:
                yield from self._evict(packet.at)
            client = target if found.flags & (SYN | ACK) == SYN | ACK or source[1] in self.ports else source
            connection = self.connections[key] = _Connection(client, packet.at)
        else:
            self.connections.move_to_end(key)
        if not connection.other:
            sequence = (found.sequence + 1) & _MASK if found.flags & SYN else found.sequence
            self._take(connection, key, int(source != connection.client), sequence, found.data)
        if found.flags & RST:
            yield from self._end(key)
        if self.due or self.pieces >= PIECES_AT_ONCE:
            self.due, self.pieces = False, 0
            yield from self._chunk(self.writer.take(), packet.at)

    def _take(self, connection: _Connection, key: _Key, direction: int, sequence: int, data: bytes) -> None:
        side = connection.sides[direction]
        before = connection.waiting
        for piece in side.take(sequence, data):
            self._bytes(connection, direction, piece, key)
        self.waiting += connection.waiting - before
        if self.waiting > MOST_WAITING_BYTES and connection.waiting > before:
            self.waiting -= connection.waiting
            if connection.number is None:
                connection.leave_alone()
            side.give_up()
            self.waiting += connection.waiting

    def _bytes(self, connection: _Connection, direction: int, data: bytes, key: _Key) -> None:
        if connection.other:
            return
        if connection.number is None:
            connection.early.append((self.now, direction, data))
            connection.early_bytes += len(data) + _PIECE_BYTES
            if direction == 0:
                connection.first += data[: len(_HELLO)]
            wanted = any(port in self.ports for _, port in key)
            if wanted or (not self.ports and connection.first[: len(_HELLO)] == _HELLO):
                self._adopt(connection, key)
            elif self.ports or not _HELLO.startswith(connection.first[: len(_HELLO)]):
                connection.leave_alone()
            return
        self._add(self.now, connection.number, direction, data)

    def _add(self, now: int, number: int, direction: int, data: bytes) -> None:
        self.due = self.writer.add(now, number, direction, data) or self.due
        self.pieces += 1

    def _adopt(self, connection: _Connection, key: _Key) -> None:
        self.count += 1
        connection.number = self.count
        store = key[0] if key[1] == connection.client else key[1]
        self.writer.opened(connection.early[0][0], self.count, peer=_named(connection.client), store=_named(store))
        for now, direction, data in connection.early:
            self._add(now, self.count, direction, data)
        connection.early.clear()
        connection.early_bytes = 0

    def _evict(self, at: int) -> Iterator[Skipped]:
        """Ends the connection that has been silent longest, to make room for one that starts with this packet."""
        key, connection = next(iter(self.connections.items()))
        yield from self._end(key)
        if connection.number is not None:
            reason = f"connection {connection.number} is dropped: more than {MOST_CONNECTIONS} connections are open"
            yield Skipped(self.path, at, 0, reason)

    def _end(self, key: _Key) -> Iterator[Skipped]:
        connection = self.connections.pop(key)
        self.waiting -= connection.waiting
        if connection.number is None:
            return
        for direction, side in zip(Direction, connection.sides, strict=True):
            side.give_up()
            if side.lost:
                reason = (
                    f"packets of the {direction.name.lower()}s of connection {connection.number} are missing: "
                    f"{side.lost} bytes after them are not read"
                )
                yield Skipped(self.path, connection.place, side.lost, reason)
        self.due = self.writer.closed(self.now, connection.number) or self.due

    def _chunk(self, block: bytes, at: int) -> Iterator[Chunk]:
        if block:
            header = read_header(block, 0)
            yield Chunk(self.path, self.block, Columns(read_body(block, 0, header), header.records))
            self.block = at


def _named(end: _End) -> str:
    host, port = ipaddress.ip_address(end[0]), end[1]
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
