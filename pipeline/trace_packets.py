"""Packet captures (pcap, pcapng) as traces: TCP connections put together again, frames found in them.

The library `dpkt` takes packets apart; their order is put right here. What counts is the bytes between two hosts: the
one that opens a connection, or is seen first, is the client. Without ports being named, a connection is taken if its
first bytes are those of a Hello, and others are left alone.

Invariant: bytes are in order and once, whatever was sent again or overtook; from the first gap on, a direction is not
read, for nobody knows where its next frame starts, and that is told with the bytes that are lost. A direction holds at
most `MOST_AHEAD` bytes, in `MOST_PIECES`, that wait for those before them. Times are those of the packets. Not read:
fragments of IP, and what TLS hides.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from segstore.pipeline.trace_files import Chunk, Skipped
from segstore.wire import WIRE_VERSION
from segstore.wire.trace import Direction, Metadata, TraceWriter, make_mark
from segstore.wire.trace_blocks import Columns, read_body, read_header

__all__ = ["MOST_AHEAD", "MOST_PIECES", "read_packets"]

MOST_AHEAD: Final = 16 * 1024 * 1024
MOST_PIECES: Final = 16_384

_HELLO: Final = struct.pack(">ii", -127, 8)
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_ETHERNET, _NULL, _LOOP, _SLL, _SLL2 = 1, 0, 108, 113, 276
_RAW: Final = (12, 14, 101, 228, 229)
_MASK: Final = 0xFFFFFFFF


class _Side:
    """One direction of a connection: bytes in order."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.ahead: dict[int, bytes] = {}
        self.waiting = 0
        self.lost = 0
        self.broken = False

    def take(self, sequence: int, data: bytes) -> list[bytes]:
        """What is next in order, now that this has come."""
        if self.next is None:
            self.next = sequence
        if self.broken:
            self.lost += len(data)
            return []
        late = -_behind(sequence, self.next)
        if late > 0:
            sequence, data = self.next, data[late:]
        before = len(self.ahead.get(sequence, b""))
        if len(data) > before:
            self.ahead[sequence] = data
            self.waiting += len(data) - before
        found = []
        while self.next in self.ahead or self._overlapped():
            piece = self.ahead.pop(self.next)
            self.waiting -= len(piece)
            found.append(piece)
            self.next = (self.next + len(piece)) & _MASK
        if self.waiting > MOST_AHEAD or len(self.ahead) > MOST_PIECES:
            self.give_up()
        return found

    def _overlapped(self) -> bool:
        """Cuts what begins before the byte that is next, as segments do that were sent again with others."""
        assert self.next is not None
        for at in [at for at in self.ahead if _behind(at, self.next) < 0]:
            piece = self.ahead.pop(at)
            rest = piece[-_behind(at, self.next) :]
            before = self.ahead.get(self.next, b"")
            self.waiting -= len(piece) + len(before)
            kept = max(rest, before, key=len)
            if kept:
                self.ahead[self.next] = kept
                self.waiting += len(kept)
        return self.next in self.ahead

    def give_up(self) -> None:
        """Something before what waits will not come."""
        if self.ahead:
            self.broken = True
            self.lost += self.waiting
            self.ahead.clear()
            self.waiting = 0


def _behind(sequence: int, wanted: int) -> int:
    """How far a sequence number lies beyond the one that is wanted; below 0 before it. Numbers go round at 2^32."""
    return ((sequence - wanted + (1 << 31)) & _MASK) - (1 << 31)


class _Connection:
    """One TCP connection; `number` is its place in the trace, None while it is not known to be one of a store."""

    def __init__(self, client: tuple[Any, ...], place: int) -> None:
        self.client = client
        self.place = place
        self.sides = (_Side(), _Side())
        self.number: int | None = None
        self.other = False
        self.early: list[tuple[int, int, bytes]] = []
        self.first = b""


def read_packets(path: str, ports: tuple[int, ...] = ()) -> Iterator[Chunk | Skipped]:
    """The records of a packet capture; in their place, what is skipped.

    ports: of stores; none for all connections that begin with a Hello. Raises ImportError without dpkt.
    """
    try:
        import dpkt
    except ImportError as cause:
        raise ImportError(f"{path}: packet captures need dpkt: pip install 'segstore[pcap]'") from cause
    try:
        with open(path, "rb") as file:  # noqa: PTH123 — as it is named
            yield from _Reassembly(path, ports).read(file, dpkt)
    except OSError as error:
        yield Skipped(path, 0, 0, f"the file cannot be read: {error.strerror or error}")


class _Reassembly:
    """Packets → records."""

    def __init__(self, path: str, ports: tuple[int, ...]) -> None:
        self.path = path
        self.ports = ports
        self.connections: dict[tuple[Any, ...], _Connection] = {}
        self.count = 0
        self.block = 0
        self.now = 0
        self.due = False
        self.writer = TraceWriter(make_mark(bytes(8)), Metadata(WIRE_VERSION, "pcap", {}))

    def read(self, file: BinaryIO, dpkt: Any) -> Iterator[Chunk | Skipped]:
        at = 0
        try:
            packets = dpkt.pcap.UniversalReader(file)
            link = packets.datalink()
            while True:
                at = file.tell()
                try:
                    seconds, packet = next(packets)
                except StopIteration:
                    break
                self.now = round(seconds * 1_000_000_000)
                yield from self._packet(dpkt, link, packet, at)
        except (dpkt.Error, ValueError, struct.error, OSError) as error:
            end = file.seek(0, 2)
            yield Skipped(self.path, at, end - at, f"no packet capture from here on: {error}")
        for key in list(self.connections):
            yield from self._end(key)
        yield from self._chunk(self.writer.finish(self.now), 0)

    def _packet(self, dpkt: Any, link: int, packet: bytes, at: int) -> Iterator[Chunk | Skipped]:
        found = _tcp(dpkt, link, packet)
        if found is None:
            return
        source, target, tcp = found
        key = (source, target) if source <= target else (target, source)
        opens = tcp.flags & (_SYN | _ACK) == _SYN
        if opens and key in self.connections:
            yield from self._end(key)
        connection = self.connections.get(key)
        if connection is None:
            client = target if tcp.flags & (_SYN | _ACK) == _SYN | _ACK or source[1] in self.ports else source
            connection = self.connections[key] = _Connection(client, at)
        direction = int(source != connection.client)
        side = connection.sides[direction]
        sequence = (tcp.seq + 1) & _MASK if tcp.flags & _SYN else tcp.seq
        if not connection.other:
            for data in side.take(sequence, bytes(tcp.data)):
                self._bytes(connection, direction, data, key)
        if tcp.flags & _RST:
            yield from self._end(key)
        if self.due:
            self.due = False
            yield from self._chunk(self.writer.take(), at)

    def _bytes(self, connection: _Connection, direction: int, data: bytes, key: tuple[Any, ...]) -> None:
        if connection.number is None:
            connection.early.append((self.now, direction, data))
            if direction == 0:
                connection.first += data[: len(_HELLO)]
            wanted = any(port in self.ports for _, port in key)
            if self.ports and not wanted:
                connection.other = True
            elif wanted or connection.first[: len(_HELLO)] == _HELLO:
                self._adopt(connection, key)
            elif not _HELLO.startswith(connection.first[: len(_HELLO)]):
                connection.other = True
            if connection.other:
                connection.early.clear()
            return
        self.due = self.writer.add(self.now, connection.number, direction, data) or self.due

    def _adopt(self, connection: _Connection, key: tuple[Any, ...]) -> None:
        self.count += 1
        connection.number = self.count
        store = key[0] if key[1] == connection.client else key[1]
        self.writer.opened(connection.early[0][0], self.count, peer=_said(connection.client), store=_said(store))
        for now, direction, data in connection.early:
            self.due = self.writer.add(now, self.count, direction, data) or self.due
        connection.early.clear()

    def _end(self, key: tuple[Any, ...]) -> Iterator[Skipped]:
        connection = self.connections.pop(key)
        if connection.number is None:
            return
        for direction, side in zip(Direction, connection.sides, strict=True):
            side.give_up()
            if side.lost:
                reason = (
                    f"packets of the {direction.name.lower()}s of connection {connection.number} are missing: "
                    f"{side.lost} bytes behind them cannot be told apart"
                )
                yield Skipped(self.path, connection.place, side.lost, reason)
        self.writer.closed(self.now, connection.number)

    def _chunk(self, block: bytes, at: int) -> Iterator[Chunk]:
        if block:
            header = read_header(block, 0)
            yield Chunk(self.path, self.block, Columns(read_body(block, 0, header), header.records))
            self.block = at


def _said(end: tuple[Any, ...]) -> str:
    host, port = end
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tcp(dpkt: Any, link: int, packet: bytes) -> tuple[tuple[str, int], tuple[str, int], Any] | None:
    """Source, target and segment of a packet of TCP; None for any other, and for one that is cut off."""
    try:
        found = _network(dpkt, link, packet)
        if isinstance(found, dpkt.ip.IP) and (found.mf or found.offset):
            return None
        if not isinstance(found, dpkt.ip.IP | dpkt.ip6.IP6) or not isinstance(found.data, dpkt.tcp.TCP):
            return None
        tcp = found.data
        return (_host(found.src), tcp.sport), (_host(found.dst), tcp.dport), tcp
    except (dpkt.Error, ValueError, IndexError, struct.error):
        return None


def _network(dpkt: Any, link: int, packet: bytes) -> Any:
    if link == _ETHERNET:
        return dpkt.ethernet.Ethernet(packet).data
    if link == _SLL:
        return dpkt.sll.SLL(packet).data
    if link == _SLL2:
        return dpkt.sll2.SLL2(packet).data
    if link in (_NULL, _LOOP):
        packet = packet[4:]
    elif link not in _RAW:
        raise ValueError(f"packets of link type {link} are not read")
    return (dpkt.ip6.IP6 if packet[:1] and packet[0] >> 4 == 6 else dpkt.ip.IP)(packet)


def _host(address: bytes) -> str:
    import ipaddress

    return str(ipaddress.ip_address(address))
