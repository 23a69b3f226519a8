"""Reads packet capture files (pcap, pcapng) and extracts their TCP segments, and controller calls of our own captures.

Invariants: at most `MOST_PACKET_BYTES` are held at a time; every length is checked before anything is read; the work
is linear in the size of the file and of each packet. A malformed file raises `BadPackets` with the
offset of the first byte that cannot be read. IP fragments, tunnels, MPLS and packets without a time are not read.
Follows the specifications of the IETF's opsawg: `draft-ietf-opsawg-pcap`, `draft-ietf-opsawg-pcapng`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from segstore.pipeline.storage import File

MOST_PACKET_BYTES: Final = 1 << 20
"""Four times the maximum of tcpdump. Small packets are read together, up to this size."""
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

_ETHERNET, _NULL, _LOOP, _SLL, _SLL2 = 1, 0, 108, 113, 276
RAW_IP: Final = 101
"""The link type of packets that start with an IP header."""
_RAW: Final = (12, 14, RAW_IP, 228, 229)
UPPER_PDU: Final = 252
"""The link type of Wireshark's exported PDUs: tags, which name a dissector, then the data for it."""
CALL_START: Final = struct.pack(">HH4sHH", 12, 4, b"json", 0, 0) + b'{"at_ns": 0, "conn": 0, "dir": "re'
"""The first bytes of an exported PDU that holds a controller call, as a line of a fixture."""
_TAGS_BYTES: Final = 12
LINKS: Final = frozenset((_ETHERNET, _NULL, _LOOP, _SLL, _SLL2, *_RAW))
"""Link types whose packets `tcp_in` reads."""
_PCAP: Final = {  # magic → byte order, nanoseconds per unit of the fraction
    bytes.fromhex("a1b2c3d4"): (">", 1000),
    bytes.fromhex("d4c3b2a1"): ("<", 1000),
    bytes.fromhex("a1b23c4d"): (">", 1),
    bytes.fromhex("4d3cb2a1"): ("<", 1),
}
_SECTION, _INTERFACE, _OLD_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 6
_ORDERS: Final = {bytes.fromhex("1a2b3c4d"): ">", bytes.fromhex("4d3c2b1a"): "<"}
_END, _COMMENT, _RESOLUTION, _OFFSET = 0, 1, 9, 14
_SECOND_NS: Final = 1_000_000_000
_INT64: Final = 1 << 63
_IP, _IP6, _VLANS = 0x0800, 0x86DD, (0x8100, 0x88A8, 0x9100, 0x9200)
_TCP, _AUTHENTICATION, _FRAGMENT, _OPTIONS = 6, 51, 44, (0, 43, 60)


class BadPackets(ValueError):
    """A file is not a valid packet capture from the byte `offset` on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


class Packet(NamedTuple):
    """A packet: offset of its header, time (ns since 1970), link type, a view of its bytes, the comment on it.

    is_cut: whether the capture has its beginning only, up to a snap length.
    """

    at: int
    ts_ns: int
    link: int
    data: memoryview
    comment: bytes = b""
    is_cut: bool = False


class TcpSegment(NamedTuple):
    """A TCP segment. source, target: an address of 4 or 16 bytes, and a port. data: a view of the packet's."""

    source: tuple[bytes, int]
    target: tuple[bytes, int]
    sequence: int
    flags: int
    data: memoryview


class _Interface(NamedTuple):
    """An interface description. Times are `offset_s` plus a number of ticks, `ticks_per_s` per second."""

    link: int
    ticks_per_s: int
    offset_s: int


# --- files ----------------------------------------------------------------------------------------------------------


def packets_of(file: File, stop: int) -> Iterator[Packet]:
    """The packets in the first `stop` bytes of a file, in order. Raises BadPackets."""
    source = _Window(file, stop)
    magic = bytes(source.read(0, 4, 0))
    return _pcap(source, *_PCAP[magic]) if magic in _PCAP else _pcapng(source)


class _Window:
    """The first `stop` bytes of a file; holds the last bytes read."""

    def __init__(self, file: File, stop: int) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")
        self.stop = stop

    def read(self, at: int, size: int, start: int) -> memoryview:
        """Exactly these bytes of the packet or block that starts at `start`. Raises BadPackets."""
        first = at - self._start
        if first < 0 or first + size > len(self._data):
            length = max(min(max(size, MOST_PACKET_BYTES), self.stop - at), 0)
            self._data, self._start, first = memoryview(self._file.read_at(at, length)), at, 0
            if size > len(self._data):
                raise BadPackets(start, "the file ends in the middle of a packet")
        return self._data[first : first + size]


def _pcap(source: _Window, order: str, unit_ns: int) -> Iterator[Packet]:
    link = struct.unpack(order + "I", source.read(20, 4, 0))[0] & 0xFFFF
    header = struct.Struct(order + "IIII")
    at = 24
    while at < source.stop:
        seconds, fraction, size, whole = header.unpack(source.read(at, 16, at))
        if size > MOST_PACKET_BYTES:
            raise BadPackets(at, f"a packet of {size} bytes exceeds {MOST_PACKET_BYTES}")
        ts_ns = seconds * _SECOND_NS + fraction * unit_ns
        yield Packet(at, ts_ns, link, source.read(at + 16, size, at), is_cut=size < whole)
        at += 16 + size


def _pcapng(source: _Window) -> Iterator[Packet]:
    order = ""
    interfaces: list[_Interface] = []
    at = 0
    while at < source.stop:
        head = source.read(at, 12, at)
        if bytes(head[:4]) == b"\n\r\r\n":
            order, interfaces = _ORDERS.get(bytes(head[8:]), ""), []
        if not order:
            raise BadPackets(at, "no section of a packet capture starts here")
        kind, size = struct.unpack_from(order + "II", head)
        is_whole = size >= 12 and size % 4 == 0 and at + size <= source.stop
        body = source.read(at + 8, size - 8, at) if is_whole and size <= MOST_PACKET_BYTES else memoryview(b"")
        if not is_whole or (body[-4:] or source.read(at + size - 4, 4, at)) != head[4:8]:
            raise BadPackets(at, f"the length at the end of a block of {size} bytes does not match")
        if kind in (_INTERFACE, _PACKET, _OLD_PACKET):
            if size > MOST_PACKET_BYTES:
                raise BadPackets(at, f"a block of {size} bytes exceeds {MOST_PACKET_BYTES}")
            body = body[:-4]
            try:
                if kind == _INTERFACE:
                    interfaces.append(_interface(body, order))
                else:
                    yield _packet(at, body, order, interfaces, old=kind == _OLD_PACKET)
            except struct.error as cause:
                raise BadPackets(at, f"a block of {size} bytes is too short for its fields") from cause
        at += size


def _interface(body: memoryview, order: str) -> _Interface:
    link, _, _ = struct.unpack_from(order + "HHI", body)
    ticks_per_s, offset_s = 1_000_000, 0
    for code, value in _options(body[8:], order):
        if code == _RESOLUTION:
            (power,) = struct.unpack_from("B", value)
            ticks_per_s = (2 if power & 0x80 else 10) ** (power & 0x7F)
        elif code == _OFFSET:
            (offset_s,) = struct.unpack_from(order + "q", value)
    return _Interface(link, ticks_per_s, offset_s)


def _packet(at: int, body: memoryview, order: str, interfaces: list[_Interface], *, old: bool) -> Packet:
    number, high, low, size, whole = struct.unpack_from(order + ("HxxIIII" if old else "IIIII"), body)
    if number >= len(interfaces):
        raise BadPackets(at, f"a packet names interface {number}, but only {len(interfaces)} are described")
    if size > len(body) - 20:
        raise BadPackets(at, f"a packet of {size} bytes is in a block with room for {len(body) - 20}")
    link, ticks_per_s, offset_s = interfaces[number]
    ts_ns = (high << 32 | low) * _SECOND_NS // ticks_per_s + offset_s * _SECOND_NS
    if not -_INT64 <= ts_ns < _INT64:
        raise BadPackets(at, f"a time of {ts_ns // _SECOND_NS} s since 1970 exceeds 64 bits in nanoseconds")
    end = 20 + size + -size % 4
    options = () if old else _options(body[end:], order)
    comment = next((bytes(value) for code, value in options if code == _COMMENT), b"")
    return Packet(at, ts_ns, link, body[20 : 20 + size], comment, size < whole)


def _options(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yields the codes and values of the options of a block."""
    at = 0
    while at + 4 <= len(data):
        code, size = struct.unpack_from(order + "HH", data, at)
        if code == _END:
            break
        yield code, data[at + 4 : at + 4 + size]
        at += 4 + size + -size % 4


# --- packets --------------------------------------------------------------------------------------------------------


def tcp_in(link: int, packet: memoryview) -> TcpSegment | None:
    """The TCP segment of a packet; None for other packets, fragments and truncated packets."""
    try:
        return _network(link, packet)
    except (struct.error, IndexError):
        return None


def call_in(link: int, packet: memoryview) -> bytes | None:
    """Returns the controller call in a packet as the line of a fixture; None if the packet has no call."""
    if link != UPPER_PDU or packet[: len(CALL_START)] != CALL_START:
        return None
    return bytes(packet[_TAGS_BYTES:])


def _network(link: int, packet: memoryview) -> TcpSegment | None:
    if link in _RAW or link in (_NULL, _LOOP):
        at = 0 if link in _RAW else 4
        kind = _IP6 if packet[at] >> 4 == 6 else _IP
    else:
        place, at = {_ETHERNET: (12, 14), _SLL: (14, 16), _SLL2: (0, 20)}[link]
        (kind,) = struct.unpack_from(">H", packet, place)
        while kind in _VLANS:
            (kind,) = struct.unpack_from(">H", packet, at + 2)
            at += 4
    return _ip(packet, at) if kind == _IP else _ip6(packet, at) if kind == _IP6 else None


def _ip(packet: memoryview, at: int) -> TcpSegment | None:
    first, size, fragment, protocol, source, target = struct.unpack_from(">BxHxxHxBxx4s4s", packet, at)
    header = (first & 15) * 4
    if protocol != _TCP or fragment & 0x3FFF or header < 20:
        return None
    # Packets that the network card splits into segments (TSO) have length 0.
    return _segment(packet[: at + size] if size else packet, at + header, source, target)


def _ip6(packet: memoryview, at: int) -> TcpSegment | None:
    size, kind, source, target = struct.unpack_from(">xxxxHBx16s16s", packet, at)
    at += 40
    if size:
        packet = packet[: at + size]
    while kind != _TCP:
        if kind == _FRAGMENT:
            if struct.unpack_from(">H", packet, at + 2)[0] & 0xFFF9:
                return None
            size = 8
        elif kind in _OPTIONS:
            size = (packet[at + 1] + 1) * 8
        elif kind == _AUTHENTICATION:
            size = (packet[at + 1] + 2) * 4
        else:
            return None
        kind, at = packet[at], at + size
    return _segment(packet, at, source, target)


def _segment(packet: memoryview, at: int, source: bytes, target: bytes) -> TcpSegment | None:
    source_port, target_port, sequence, header, flags = struct.unpack_from(">HHIxxxxBB6x", packet, at)
    data = at + (header >> 4) * 4
    if data < at + 20 or data > len(packet):
        return None
    return TcpSegment((source, source_port), (target, target_port), sequence, flags, packet[data:])
