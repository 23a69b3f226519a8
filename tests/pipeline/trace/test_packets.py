"""Packet captures: connections are put together again whatever the order of packets, and losses are told."""

from __future__ import annotations

import io
import random
import socket
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from dpkt import ethernet, ip, ip6, pcap, pcapng, tcp
from hypothesis import given
from hypothesis import strategies as st

from segstore.pipeline.trace import packets as trace_packets
from segstore.pipeline.trace.batches import BatchMaker
from segstore.pipeline.trace.columns import select
from segstore.pipeline.trace.files import FileRange, Skipped, plan
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import Row, RowMaker
from segstore.wire import DataAppended, Hello, KeepAlive, ReadSegment, encode
from segstore.wire.trace import Record, RecordKind
from tests.pipeline.support import both

CLIENT, STORE = ("10.0.0.1", 40_000), ("10.0.0.2", 12_345)
SYN, ACK, RST, FIN = tcp.TH_SYN, tcp.TH_ACK, tcp.TH_RST, tcp.TH_FIN
REQUESTS = [encode(Hello(17, 5)), encode(KeepAlive()), encode(ReadSegment("scope/stream/0", 0, 100, "", 5))]
REPLIES = [encode(Hello(17, 5)), encode(KeepAlive()), encode(DataAppended(5, UUID(int=1), 1, 0, 9))]
COLUMNS = ["kind", "connection", "direction", "command", "size"]
Packet = tuple[float, bytes]


def packet(source: Any, target: Any, sequence: int, data: bytes = b"", flags: int = ACK, *, v6: bool = False) -> bytes:
    segment = tcp.TCP(sport=source[1], dport=target[1], seq=sequence & 0xFFFFFFFF, flags=flags, data=data)
    if v6:
        host = ["::1", "::2"]
        ends = [socket.inet_pton(socket.AF_INET6, host[end is STORE]) for end in (source, target)]
        inner: Any = ip6.IP6(src=ends[0], dst=ends[1], nxt=ip.IP_PROTO_TCP, plen=len(segment), data=segment)
        return bytes(ethernet.Ethernet(type=ethernet.ETH_TYPE_IP6, data=inner))
    ends = [socket.inet_aton(end[0]) for end in (source, target)]
    inner = ip.IP(src=ends[0], dst=ends[1], p=ip.IP_PROTO_TCP, data=segment)
    inner.len = len(inner)
    return bytes(ethernet.Ethernet(type=ethernet.ETH_TYPE_IP, data=inner))


def stream(source: Any, target: Any, first: int, data: bytes, size: int, **how: Any) -> list[bytes]:
    return [packet(source, target, first + at, data[at : at + size], **how) for at in range(0, len(data), size)]


def connection(size: int = 7, first: int = 1_000, **how: Any) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The packets that open a connection, those of the client, those of the store."""
    opening = [
        packet(CLIENT, STORE, first - 1, flags=SYN, **how),
        packet(STORE, CLIENT, first - 1, flags=SYN | ACK, **how),
    ]
    requests = stream(CLIENT, STORE, first, b"".join(REQUESTS), size, **how)
    return opening, requests, stream(STORE, CLIENT, first, b"".join(REPLIES), size, **how)


def written(path: Path, packets: list[bytes], writer: Any = pcap.Writer) -> Path:
    out = io.BytesIO()
    made = writer(out)
    for at, each in enumerate(packets):
        made.writepkt(each, ts=1_700_000_000 + at / 1000)
    path.write_bytes(out.getvalue())
    return path


def frames(path: Path, direction: str, **how: Any) -> list[bytes]:
    return [row[2] for row in both(path, ["kind", "direction", "frame"], **how) if row[:2] == ("frame", direction)]


@pytest.mark.parametrize(("writer", "name"), [(pcap.Writer, "a.pcap"), (pcapng.Writer, "a.pcapng")])
def test_a_connection_becomes_records(tmp_path: Path, writer: Any, name: str) -> None:
    opening, requests, replies = connection()
    rows = both(written(tmp_path / name, opening + requests + replies, writer), [*COLUMNS, "ts_ns", "fields"])
    assert rows[0][0] == "open"
    assert rows[0][-1] == '{"peer": "10.0.0.1:40000", "store": "10.0.0.2:12345"}'
    assert [row[:5] for row in rows[1:]] == [  # no close: the connection was open when the capture ended
        ("frame", rows[0][1], side, command, len(data))
        for side, commands, sent in (
            ("request", ("HELLO", "KEEP_ALIVE", "READ_SEGMENT"), REQUESTS),
            ("reply", ("HELLO", "KEEP_ALIVE", "DATA_APPENDED"), REPLIES),
        )
        for command, data in zip(commands, sent, strict=True)
    ]
    assert rows[1][5] == pytest.approx(1_700_000_000_004_000_000, abs=1_000)  # its last byte came in the third packet


def test_a_packet_that_is_missing_costs_what_stands_behind_it_and_is_told(tmp_path: Path) -> None:
    opening, requests, replies = connection(8)
    del requests[3]
    path = written(tmp_path / "a.pcap", opening + requests + replies)
    assert frames(path, "request") == REQUESTS[:2]
    assert frames(path, "reply") == REPLIES
    (lost,) = [row for row in both(path, ["kind", "size", "error"]) if row[0] == "skipped"]
    assert lost[1] == sum(map(len, REQUESTS)) - 32
    assert "packets with requests of the connection from 10.0.0.1:40000 are missing" in lost[2]


def cut_short(packets: list[bytes], snap_bytes: int) -> dict[str, bytes]:
    """The same packets in both formats, as a capture with a snap length has them."""
    old = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snap_bytes, 1)
    new = SECTION + block(1, struct.pack("<HHI", 1, 0, snap_bytes))
    for at, whole in enumerate(packets):
        kept = whole[:snap_bytes]
        old += struct.pack("<IIII", at, 0, len(kept), len(whole)) + kept
        new += block(6, struct.pack("<IIIII", 0, 0, at, len(kept), len(whole)) + kept)
    return {"a.pcap": old, "a.pcapng": new}


@pytest.mark.parametrize(
    ("snap_bytes", "says"), [(80, "requests of the connection"), (56, "first packets of the connection")]
)
def test_packets_that_the_capture_cut_short_are_named_as_such(tmp_path: Path, snap_bytes: int, says: str) -> None:
    opening, requests, replies = connection(32)
    for name, content in cut_short(opening + requests + replies, snap_bytes).items():
        path = tmp_path / name
        path.write_bytes(content)
        errors = [row[1] for row in both(path, ["kind", "error"]) if row[0] == "skipped"]
        assert any("snap length" in error and says in error for error in errors), (name, errors)


def test_other_traffic_is_left_alone_unless_its_port_is_named(tmp_path: Path) -> None:
    noise = [packet(CLIENT, STORE, 1, b"GET / HTTP/1.1\r\n"), b"\0" * 14, packet(STORE, CLIENT, 1, b"HTTP/1.1 200")]
    path = written(tmp_path / "a.pcap", noise)
    assert both(path, ["kind"]) == []
    (piece,) = plan([str(path)])
    found = [each.record for chunk in read_piece(piece, ports=(12_345,)) for each in chunk]  # type: ignore[union-attr]
    assert [each.kind.name for each in found] == ["OPEN", "BYTES", "BYTES"]


def test_ipv6_and_two_connections_of_the_same_ends_are_told_apart(tmp_path: Path) -> None:
    opening, requests, replies = connection(v6=True)
    reset = packet(CLIENT, STORE, 5_000, flags=RST, v6=True)
    again = connection(first=9_000, v6=True)
    path = written(tmp_path / "a.pcap", [*opening, *requests, *replies, reset, *again[0], *again[1]])
    rows = both(path, ["kind", "connection", "fields"])
    lengths = [len(request) + 16 for request in (*opening, *requests, *replies, reset)]
    assert [row[1] for row in rows if row[0] == "open"] == [24, 24 + sum(lengths)]
    assert '"[::1]:40000"' in rows[0][2]
    assert frames(path, "request") == REQUESTS * 2


def test_a_connection_ends_when_both_sides_have_finished(tmp_path: Path) -> None:
    opening, requests, replies = connection(first=1_000)
    sent, answered = 1_000 + len(b"".join(REQUESTS)), 1_000 + len(b"".join(REPLIES))
    ends = [packet(STORE, CLIENT, answered, flags=FIN | ACK), packet(CLIENT, STORE, sent, flags=FIN | ACK)]
    late, again = packet(CLIENT, STORE, 1_000, REQUESTS[0]), connection(first=9_000)
    path = written(
        tmp_path / "a.pcap", [*opening, *requests[1:], *replies, *ends, requests[0], late, *again[0], *again[1]]
    )
    rows = both(path, ["kind", "direction", "ts_ns"])
    assert [row[0] for row in rows if row[0] in ("open", "close")] == ["open", "close", "open"]
    first_close = next(row for row in rows if row[0] == "close")
    packets_before = len(opening) + len(requests) - 1 + len(replies) + 2
    assert first_close[1] == "reply"
    assert first_close[2] == pytest.approx(1_700_000_000_000_000_000 + packets_before * 1_000_000, abs=1_000)
    assert frames(path, "request") == REQUESTS * 2


def test_a_capture_that_ends_in_the_middle_of_a_packet_is_told(tmp_path: Path) -> None:
    opening, requests, _ = connection()
    path = written(tmp_path / "a.pcap", opening + requests)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(frames(path, "request")) >= 2
    path.write_bytes(bytes.fromhex("d4c3b2a1") + b"\1")
    ((kind, size, error),) = both(path, ["kind", "size", "error"])
    assert (kind, size) == ("skipped", 5)
    assert "not a packet capture" in error


# --- hostile files --------------------------------------------------------------------------------------------------

HELLO = REQUESTS[0]
PCAP = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
SECTION = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)


def record(data: bytes, size: int | None = None) -> bytes:
    size = len(data) if size is None else size
    return struct.pack("<IIII", 1_700_000_000, 0, size, size) + data


def block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def interface(link: int = 1, options: bytes = b"") -> bytes:
    return block(1, struct.pack("<HHI", link, 0, 65_535) + options)


def enhanced(data: bytes, number: int = 0, ticks: int = 0, options: bytes = b"") -> bytes:
    padded = data + bytes(-len(data) % 4)
    return block(
        6, struct.pack("<IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data)) + padded + options
    )


def found_in(path: Path, data: bytes, ports: tuple[int, ...] = ()) -> tuple[list[Record], list[Skipped]]:
    """What a reader finds in a file with these bytes; any bytes are read without an error."""
    path.write_bytes(data)
    records, skipped = [], []
    for piece in plan([str(path)]):
        for found in read_piece(piece, ports=ports):
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                records += [each.record for each in found]
    return records, skipped


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (PCAP[:10], 0, "in the middle"),
        (PCAP + record(b"x", 5), 24, "in the middle"),
        (PCAP + record(b"", 0xFFFFFFFF), 24, "4294967295 bytes exceeds"),
        (PCAP + record(b"x" * 60) + b"\0", 100, "in the middle"),
        (SECTION[:20], 0, "at the end of a block"),
        (SECTION[:8] + b"\0\0\0\0" + SECTION[12:], 0, "no section"),
        (SECTION + struct.pack("<II", 5, 0) + b"x" * 40, 28, "a block of 0 bytes"),
        (SECTION + struct.pack("<III", 5, 1 << 31, 0), 28, "at the end of a block"),
        (SECTION + enhanced(b"x"), 28, "interface 0, but only 0 are described"),
        (SECTION + block(1, b""), 28, "too short"),
        (SECTION + interface() + block(6, b"x" * 8), 48, "too short"),
        (SECTION + interface() + block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99)), 48, "a packet of 99 bytes"),
        (SECTION + interface() + block(6, bytes(1 << 20)), 48, "exceeds"),
        (SECTION + interface(options=struct.pack("<HHq", 14, 8, 1 << 62)) + enhanced(b"x"), 60, "64 bits"),
        (SECTION + interface(options=struct.pack("<HHBxxx", 9, 1, 0)) + enhanced(b"x", 0, 1 << 63), 56, "64 bits"),
        (SECTION + interface(options=struct.pack("<HH", 5, 0) * 200_000 + struct.pack("<HH", 14, 8)), 28, "too short"),
        (PCAP[:20] + struct.pack("<I", 105) + record(b"x" * 60), 24, "link type 105"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_file_that_breaks_its_format_is_named_with_the_byte(
    tmp_path: Path, data: bytes, offset: int, reason: str
) -> None:
    records, (skipped,) = found_in(tmp_path / "a.pcap", data)
    assert records == []
    assert skipped.offset == offset
    assert reason in skipped.reason


def test_resolution_and_offset_of_an_interface_count_and_so_do_further_sections(tmp_path: Path) -> None:
    fine = interface(options=struct.pack("<HHBxxxHHq", 9, 1, 9, 14, 8, 100))
    halves = interface(options=struct.pack("<HHBxxx", 9, 1, 0x81))
    first = packet(CLIENT, STORE, 1, HELLO)
    second = packet(CLIENT, STORE, 1 + len(HELLO), REQUESTS[1])
    third = packet(CLIENT, STORE, 1 + len(HELLO) + len(REQUESTS[1]), REQUESTS[1])
    data = SECTION + fine + halves + enhanced(first, 0, 7) + enhanced(second, 1, 401, struct.pack("<HH", 1, 0) * 50_000)
    data += SECTION + interface() + enhanced(third, 0, 300_000_001)
    records, skipped = found_in(tmp_path / "a.pcapng", data)
    assert not skipped
    times = [record.ts_ns for record in records if record.kind is RecordKind.FRAME]
    assert times == [100_000_000_007, 200_500_000_000, 300_000_001_000]


def test_packets_inside_of_packets_and_fragments_are_left_alone(tmp_path: Path) -> None:
    nested = b""
    while len(nested) < 60_000:
        nested = bytes(ip.IP(p=4, len=20 + len(nested), data=nested))
    tail = bytes(tcp.TCP(sport=40_000, dport=12_345, seq=1, data=HELLO))
    options = struct.pack(">BB6x", 0, 0) * 5_000
    packets = [bytes(12) + b"\x08\0" + nested]
    for first, body in (
        (44, struct.pack(">BBHI", 6, 0, 1, 7) + tail),  # the first fragment of several
        (0, struct.pack(">BB6x", 44, 0) + struct.pack(">BBHI", 6, 0, 8, 7) + tail),  # a later one, behind options
        (0, options),  # nothing but extension headers
        (51, b"\x33"),
    ):
        head = struct.pack(">IHBB16s16s", 0x60000000, len(body), first, 64, b"\1" * 16, b"\2" * 16)
        packets.append(bytes(12) + b"\x86\xdd" + head + body)
    whole = struct.pack(">BB6x", 60, 0) + struct.pack(">BB6x", 44, 0) + struct.pack(">BBHI", 6, 0, 0, 7) + tail
    head = struct.pack(">IHBB16s16s", 0x60000000, len(whole), 0, 64, b"\1" * 16, b"\2" * 16)
    data = PCAP + b"".join(map(record, packets))
    assert found_in(tmp_path / "a.pcap", data) == ([], [])
    records, _ = found_in(tmp_path / "a.pcap", data + record(bytes(12) + b"\x86\xdd" + head + whole))
    assert [each.data for each in records if each.kind is RecordKind.FRAME] == [HELLO]


@given(st.data())
def test_any_bytes_of_a_packet_capture_give_records_and_skips_only(data: st.DataObject) -> None:
    opening, requests, replies = connection(50)
    packets = opening + requests + replies
    good = PCAP + b"".join(map(record, packets))
    if data.draw(st.booleans()):
        good = SECTION + interface() + b"".join(map(enhanced, packets))
    hostile = bytearray(good)
    places = data.draw(st.lists(st.integers(0, len(good) - 1), max_size=8))
    for place in places:
        width = data.draw(st.sampled_from([1, 2, 4]))
        hostile[place : place + width] = data.draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80"])) * width
    cut = data.draw(st.integers(0, len(hostile))) if data.draw(st.booleans()) else len(hostile)
    with TemporaryDirectory() as folder:
        records, skipped = found_in(Path(folder) / "a.pcap", bytes(hostile[:cut]), (12_345,))
    assert all(0 <= each.offset <= cut for each in skipped)
    if not places and cut == len(good):
        assert [each.data for each in records if each.kind is RecordKind.FRAME] == REQUESTS + REPLIES


@given(st.data())
def test_pieces_of_a_stream_in_any_order_give_a_beginning_of_it(data: st.DataObject) -> None:
    first = data.draw(st.sampled_from([0, 5, (1 << 32) - 20, (1 << 31) - 20]))
    stream = bytes(range(64))
    side = trace_packets.TcpDirection()
    assert side.take(first, b"") == []
    found, seen = b"", [False] * len(stream)
    for start, size in data.draw(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 64)), max_size=30)):
        piece = stream[start : start + size]
        for at in range(start, start + len(piece)):
            seen[at] = True
        found += b"".join(side.take((first + start) & 0xFFFFFFFF, piece))
        assert found == stream[: [*seen, False].index(False)]
    late = sum(seen) > len(found)
    assert (side.waiting > 0) is late
    side.give_up()
    assert (side.broken, side.waiting) == (late, 0)


class _Counted(trace_packets.Reassembly):
    """Checks at each packet that memory is bounded."""

    most_connections = most_waiting = 0

    def take(self, *packet: Any) -> Any:
        yield from super().take(*packet)
        cls = type(self)
        cls.most_connections = max(self.most_connections, len(self.connections))
        cls.most_waiting = max(self.most_waiting, self.waiting)
        assert self.waiting == sum(connection.waiting for connection in self.connections.values())


def counted(
    path: Path, packets: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> tuple[type[_Counted], list[Record], list[Skipped]]:
    """What a reader finds, and the most that it held."""
    reader = type("_CountedHere", (_Counted,), {})
    monkeypatch.setattr(trace_packets, "Reassembly", reader)
    return reader, *found_in(path, PCAP + b"".join(map(record, packets)))


def test_connections_that_are_only_opened_push_out_those_that_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_packets, "MOST_CONNECTIONS", 10)
    opening, requests, replies = connection()
    half_open = [packet(("10.9.9.9", port), STORE, 1, flags=SYN) for port in range(1, 501)]
    talking = [each for pair in zip(half_open, [*requests, *replies], strict=False) for each in pair]
    reader, records, skipped = counted(tmp_path / "a.pcap", [*opening, *talking, *half_open], monkeypatch)
    assert reader.most_connections == 10
    assert len([record for record in records if record.kind is RecordKind.FRAME]) == len(REQUESTS + REPLIES)
    assert [each.reason for each in skipped] == ["connection 24 is dropped: more than 10 connections are open"]


@pytest.mark.parametrize("known", [True, False])
def test_gaps_and_early_replies_of_many_connections_share_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(trace_packets, "MOST_WAITING_BYTES", 20_000)
    packets = []
    for port in range(100):
        client = (CLIENT[0], 30_000 + port)
        packets += [packet(client, STORE, 0, flags=SYN), packet(STORE, client, 0, flags=SYN | ACK)]
        packets += [packet(client, STORE, 1, HELLO)] if known else []
        packets += [packet(client, STORE, 100 + 3 * at, b"xx") for at in range(50)]
        packets += [packet(STORE, client, 1 + at, b"y") for at in range(50)]
    reader, records, skipped = counted(tmp_path / "a.pcap", packets, monkeypatch)
    assert 19_000 < reader.most_waiting <= 20_000
    assert len([record for record in records if record.kind is RecordKind.FRAME]) == (100 if known else 0)
    assert len([each for each in skipped if "requests" in each.reason]) == (100 if known else 0)


def test_half_frames_of_many_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_packets, "MOST_FRAME_BYTES", 20_000)
    monkeypatch.setattr(trace_packets, "PIECES_AT_ONCE", 16)
    half = struct.pack(">ii", 1, 1 << 23) + bytes(500)
    clients = [(CLIENT[0], 30_000 + port) for port in range(100)]
    packets = []
    for each in clients:
        packets += [packet(each, STORE, 1, HELLO), packet(each, STORE, 1 + len(HELLO), half)]
    packets += [packet(client, STORE, 1 + len(HELLO) + len(half), half[:100]) for client in clients]
    _, records, _ = counted(tmp_path / "a.pcap", packets, monkeypatch)
    assert len([record for record in records if record.kind is RecordKind.FRAME]) == 100
    of_one: dict[int, list[bytes]] = {}
    for each in records:
        if each.kind is RecordKind.BYTES:
            of_one.setdefault(each.connection, []).append(each.data)
    assert {b"".join(pieces) for pieces in of_one.values()} == {half + half[:100]}
    assert [half, half[:100]] in of_one.values()


# --- rows -----------------------------------------------------------------------------------------------------------

ROW_COLUMNS = ("block", "record", "kind", "ts_ns", "connection", "direction", "size", "fields", "frame", "error")


def rows_of(path: Path, *, batches: bool = False) -> list[Row]:
    rows = RowMaker(select(ROW_COLUMNS))
    found = read_piece(FileRange(str(path), "packets", 0, path.stat().st_size))
    if batches:
        maker = BatchMaker(rows)
        return [tuple(row.values()) for each in found for batch in maker.batches(each) for row in batch.to_pylist()]
    return [row for each in found for row in rows.rows(each)]


def mixed(chance: random.Random) -> list[bytes]:
    """The packets of up to 12 connections: interleaved, some sent again, lost or late, some connections broken off,
    opened again or of another protocol.
    """
    streams = []
    for port in range(chance.randint(1, 12)):
        client, v6 = (CLIENT[0], 40_000 + port), chance.random() < 0.2
        packets = []
        for life in range(chance.choice((1, 1, 2))):
            first, size = chance.choice((1_000, (1 << 32) - 30)) + life * 5_000, chance.choice((3, 20, 200))
            hello = REQUESTS if chance.random() < 0.8 else [b"GET / HTTP/1.1"]
            packets += [packet(client, STORE, first - 1, flags=SYN, v6=v6)] * chance.choice((0, 1, 1))
            talk = stream(client, STORE, first, b"".join(hello) + REQUESTS[1] * chance.randint(0, 5), size, v6=v6)
            talk += stream(STORE, client, first, b"".join(REPLIES)[: chance.randint(1, 200)], size, v6=v6)
            for _ in range(chance.randint(0, 4)):
                at = chance.randrange(len(talk))
                match chance.choice(("again", "lost", "late", "in the middle")):
                    case "again":
                        talk.insert(chance.randint(at, len(talk)), talk[at])
                    case "lost" if len(talk) > 1:
                        del talk[at]
                    case "late":
                        talk.insert(chance.randint(at, len(talk) - 1), talk.pop(at))
                    case _:
                        talk[at:] = chance.sample(talk[at:], len(talk) - at)
            packets += talk
            packets += [packet(client, STORE, first, flags=RST, v6=v6)] * chance.choice((0, 0, 1))
        streams.append(packets)
    turns = [number for number, packets in enumerate(streams) for _ in packets]
    chance.shuffle(turns)
    rests = [iter(packets) for packets in streams]
    return [next(rests[number]) for number in turns]


@given(st.data())
def test_batches_have_the_rows_of_any_capture_in_order(data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers(0, 1 << 32)))
    packets = mixed(chance)
    is_pcap = data.draw(st.booleans())
    start, made = (PCAP, record) if is_pcap else (SECTION + interface() + interface(105), enhanced)
    whole = start + b"".join(
        made(packet) if is_pcap or chance.random() < 0.97 else enhanced(packet, 1) for packet in packets
    )
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        damaged[at] ^= 1 << chance.randrange(8)
    cut = data.draw(st.integers(len(start), len(whole))) if data.draw(st.booleans()) else len(whole)
    limits = {
        "MOST_CONNECTIONS": (1, 2, 8_192),
        "MOST_WAITING_BYTES": (300, 1_000, 1 << 24),
        "MOST_FRAME_BYTES": (20, 100, 1 << 25),
        "PIECES_AT_ONCE": (1, 7, 1 << 14),
    }
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        for name, values in limits.items():
            patch.setattr(trace_packets, name, data.draw(st.sampled_from(values), label=name))
        path = Path(folder) / "a.pcap"
        path.write_bytes(damaged[:cut])
        expected = rows_of(path)
        assert rows_of(path, batches=True) == expected
    rows = [row for row in expected if row[2] != "skipped"]
    places = [row[:2] for row in rows]
    assert places == sorted(set(places))
    connections = [row[ROW_COLUMNS.index("connection")] for row in rows]
    opened = [row[ROW_COLUMNS.index("connection")] for row in rows if row[2] == "open"]
    assert opened == list(dict.fromkeys(connections))


def test_records_of_all_connections_are_in_the_order_of_their_packets(tmp_path: Path) -> None:
    clients = [(CLIENT[0], 40_000 + number) for number in range(30)]
    packets = [packet(client, STORE, 1, HELLO) for client in clients]
    packets += [packet(client, STORE, 1 + len(HELLO), REQUESTS[1]) for client in reversed(clients)]
    path = written(tmp_path / "a.pcap", packets)
    starts = [24 + at * (16 + len(packets[0])) for at in range(30)]
    starts += [starts[-1] + 16 + len(packets[0]) + at * (16 + len(packets[-1])) for at in range(30)]
    frames = [row for row in rows_of(path) if row[2] == "frame"]
    assert [row[0] for row in frames] == starts
    assert [row[4] for row in frames] == starts[:30] + starts[:30][::-1]
    assert [row[3] for row in frames] == sorted(row[3] for row in frames)
