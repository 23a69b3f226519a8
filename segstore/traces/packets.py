"""Traces as packet captures: writes pcapng, and reads pcap and pcapng, as records.

A trace holds no packets, so synthetic packets carry its bytes: raw IP, one or more TCP segments a record, at the
record's time. The addresses come from the record that opened the connection; a connection without addresses gets
addresses of 127.0.0.0/8. A connection ends with FINs, first from the side that closed it. Other facts (beside the
addresses, and the trace's metadata) are written as comments, for readers only.

Controller calls are lines of a fixture, on an interface of their own for Wireshark's exported PDUs, which Wireshark
shows as JSON. If a message would make a packet too long for Wireshark, only its size is kept.

Invariant: reading a written file gives the same calls, and the same records of each connection that starts with a
Hello, apart from those facts. They are in the order of their packets, except that an open record comes with the
connection's first bytes. Connections are numbered from 1.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Final

from msgspec.structs import replace

from segstore.pipeline.storage import File
from segstore.pipeline.trace.files import FileRange, Skipped
from segstore.pipeline.trace.packet_files import ACK, CALL_START, FIN, RAW_IP, SYN, UPPER_PDU
from segstore.pipeline.trace.packets import HELLO_START, read_packets
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import CONTROLLER, Call, Damage, Direction, Metadata, Record, RecordKind, to_line, unpack_data

log = logging.getLogger(__name__)

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_COMMENT, _APPLICATION, _RESOLUTION = 1, 4, 9
_MOST_DATA: Final = 65_000
"""Bytes of a record in one packet; IP allows 65,535 with its headers."""
_MOST_LINE: Final = 200_000
"""Longest line of a call; Wireshark refuses packets above 262,144 bytes."""
_TCP_INTERFACE, _CALL_INTERFACE = 0, 1
_PUSH: Final = 0x08
_MASK: Final = 0xFFFFFFFF

_End = tuple[bytes, int]


def read_capture(file: File, path: str, damages: list[Damage]) -> Iterator[Record]:
    """Yields the records of all connections that start with a Hello, in order. Unreadable parts are added to `damages`.
    Raises OSError.
    """
    numbers: dict[int, int] = {}
    for found in read_packets(FileRange(path, "packets", 0, file.size), file, ()):
        if isinstance(found, Skipped):
            damages.append(Damage(found.offset, found.size, False, found.reason))
            continue
        for record in found.columns or ():
            if record.kind is RecordKind.OPEN:
                numbers[record.connection] = len(numbers) + 1
            number = CONTROLLER if record.kind is RecordKind.CALL else numbers[record.connection]
            yield record._replace(connection=number)


def write_capture(records: Iterable[Record], metadata: Metadata) -> Iterator[bytes]:
    """Yields the blocks of a pcapng file.

    Connections that `read_capture` will not find in it, as they do not start with a Hello, are counted in a warning.
    """
    connections: dict[int, _Connection] = {}
    used: set[tuple[_End, _End]] = set()
    port = 49_151
    unread = 0
    with_calls = False
    yield _start(metadata)
    for record in records:
        if record.kind is RecordKind.CALL:
            if not with_calls:
                yield _interface(UPPER_PDU)
                with_calls = True
            yield _call(record)
            continue
        connection = connections.get(record.connection)
        if connection is None or record.kind is RecordKind.OPEN:
            if connection is not None:
                yield from connection.close(record.ts_ns, Direction.REQUEST, "")
                used.discard(connection.ends)
            facts = (unpack_data(record.data) if record.kind is RecordKind.OPEN else None) or {}
            ends = _ends(facts)
            while ends is None or ends in used:
                port = port + 1 if port < 65_535 else 49_152
                host = bytes((127, 0, 0, 1)) if len(used) < 8192 else bytes((127, *len(used).to_bytes(3, "big")))
                ends = (host, port), (bytes((127, 0, 0, 1)), 12_345)
            used.add(ends)
            connection = connections[record.connection] = _Connection(ends)
            unread += 1
            yield from connection.open(record.ts_ns, _comment(record) if record.kind is RecordKind.OPEN else "")
        if record.kind is RecordKind.CLOSE:
            yield from connection.close(record.ts_ns, record.direction, _comment(record))
            used.discard(connections.pop(record.connection).ends)
        elif record.kind in (RecordKind.FRAME, RecordKind.BYTES):
            unread -= connection.see_hello(record)
            yield from connection.data(record.ts_ns, record.direction, record.data)
    if unread:
        log.warning("connections without a Hello, which are not found when the capture is read as a trace: %d", unread)


def _comment(record: Record) -> str:
    return record.data.decode("utf-8", "replace") if record.data not in (b"", b"{}") else ""


def _ends(facts: dict[str, object]) -> tuple[_End, _End] | None:
    """The addresses of client and store in the facts of a connection; None unless there are two of one family."""
    try:
        peer, store = (Endpoint.parse(str(facts[name])) for name in ("peer", "store"))
        ends = (ip_address(peer.host).packed, peer.port), (ip_address(store.host).packed, store.port)
    except (KeyError, ValueError):
        return None
    return ends if len(ends[0][0]) == len(ends[1][0]) else None


class _Connection:
    """The TCP side of a connection. ends: client and store. Each side's next sequence number starts at 0."""

    def __init__(self, ends: tuple[_End, _End]) -> None:
        self.ends = ends
        self._next = [0, 0]
        self._first = b""

    def open(self, ts_ns: int, comment: str) -> Iterator[bytes]:
        yield self._packet(ts_ns, 0, SYN, comment=comment)
        yield self._packet(ts_ns, 1, SYN | ACK)
        yield self._packet(ts_ns, 0, ACK)

    def see_hello(self, record: Record) -> bool:
        """Takes the next record; returns whether it completes the start of a Hello in the client's first bytes."""
        before = self._first
        if record.direction is Direction.REQUEST:
            self._first += record.data[: len(HELLO_START) - len(before)]
        return before != self._first == HELLO_START

    def data(self, ts_ns: int, side: int, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _MOST_DATA):
            yield self._packet(ts_ns, side, ACK | _PUSH, data[at : at + _MOST_DATA])

    def close(self, ts_ns: int, side: int, comment: str) -> Iterator[bytes]:
        yield self._packet(ts_ns, side, FIN | ACK, comment=comment)
        yield self._packet(ts_ns, 1 - side, FIN | ACK)
        yield self._packet(ts_ns, side, ACK)

    def _packet(self, ts_ns: int, side: int, flags: int, data: bytes = b"", comment: str = "") -> bytes:
        (source, source_port), (target, target_port) = self.ends[side], self.ends[1 - side]
        answered = self._next[1 - side] if flags & ACK else 0
        numbers = (source_port, target_port, self._next[side], answered, 5 << 4, flags, 65_535)
        self._next[side] = (self._next[side] + len(data) + bool(flags & (SYN | FIN))) & _MASK
        tcp = struct.pack(">HHIIBBHHH", *numbers, 0, 0)
        size = len(tcp) + len(data)
        digest = _checksum(source + target + struct.pack(">II", 6, size) + tcp + data)
        tcp = tcp[:16] + digest + tcp[18:] + data
        if len(source) == 16:
            ip = struct.pack(">IHBB16s16s", 6 << 28, size, 6, 64, source, target)
        else:
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + size, 0, 0x4000, 64, 6, 0, source, target)
            ip = ip[:10] + _checksum(ip) + ip[12:]
        return _enhanced(_TCP_INTERFACE, ts_ns, ip + tcp, comment)


def _call(record: Record) -> bytes:
    """A packet with a controller call."""
    line = to_line(record, record.ts_ns)
    call = Call.unpack(record.data)
    if len(line) > _MOST_LINE and call is not None:
        short = replace(call, message=b"", omitted=call.omitted or len(call.message))
        line = to_line(record._replace(data=short.pack()), record.ts_ns)
    data = CALL_START[: CALL_START.index(b"{")] + line.encode()
    return _enhanced(_CALL_INTERFACE, record.ts_ns, data)


def _enhanced(interface: int, ts_ns: int, packet: bytes, comment: str = "") -> bytes:
    at = max(ts_ns, 0)
    head = struct.pack("<IIIII", interface, at >> 32, at & _MASK, len(packet), len(packet))
    return _block(_PACKET, head + _padded(packet), *_options(_COMMENT, comment))


def _checksum(data: bytes) -> bytes:
    """Returns the ones' complement of the sum of 16-bit words, from the remainder of the whole number."""
    return (0xFFFF - int.from_bytes(data + bytes(len(data) % 2)) % 0xFFFF).to_bytes(2)


def _start(metadata: Metadata) -> bytes:
    text = "; ".join(f"{name}: {value}" for name, value in metadata.values.items())
    section = struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)
    options = (*_options(_COMMENT, text), *_options(_APPLICATION, metadata.recorder))
    return _block(_SECTION, section, *options) + _interface(RAW_IP)


def _interface(link: int) -> bytes:
    """An interface, whose times are in nanoseconds."""
    return _block(_INTERFACE, struct.pack("<HHI", link, 0, 0), struct.pack("<HHB3x", _RESOLUTION, 1, 9))


def _options(code: int, text: str) -> tuple[bytes, ...]:
    data = text.encode("utf-8", "replace")[:0xFFFF]
    return (struct.pack("<HH", code, len(data)) + _padded(data),) if data else ()


def _block(kind: int, body: bytes, *options: bytes) -> bytes:
    joined = b"".join((body, *options, bytes(4) if options else b""))
    size = struct.pack("<I", len(joined) + 12)
    return b"".join((struct.pack("<I", kind), size, joined, size))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
