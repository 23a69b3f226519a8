"""Packet captures: connections are put together again whatever the order of packets, and losses are told."""

from __future__ import annotations

import io
import random
import socket
from pathlib import Path
from typing import Any
from uuid import UUID

import dpkt
import pytest
from dpkt import ethernet, ip, ip6, pcap, pcapng, tcp

from segstore.pipeline import trace_packets
from segstore.wire import DataAppended, Hello, KeepAlive, ReadSegment, encode
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
    assert rows[-1][0] == "close"
    assert [row[:5] for row in rows[1:-1]] == [
        ("frame", 1, side, command, len(data))
        for side, commands, sent in (
            ("request", ("HELLO", "KEEP_ALIVE", "READ_SEGMENT"), REQUESTS),
            ("reply", ("HELLO", "KEEP_ALIVE", "DATA_APPENDED"), REPLIES),
        )
        for command, data in zip(commands, sent, strict=True)
    ]
    assert rows[1][5] == pytest.approx(1_700_000_000_004_000_000, abs=1_000)  # its last byte came in the third packet


@pytest.mark.parametrize("first", [1_000, (1 << 32) - 20])
@pytest.mark.parametrize("seed", range(5))
def test_packets_in_any_order_and_sent_again_give_the_same_frames(tmp_path: Path, seed: int, first: int) -> None:
    chance = random.Random(seed)
    opening, requests, replies = connection(chance.choice((1, 5, 50)), first)
    again = stream(CLIENT, STORE, first, b"".join(REQUESTS), 11)
    packets = requests + replies + again
    chance.shuffle(packets)
    path = written(tmp_path / "a.pcap", opening + packets)
    assert frames(path, "request") == REQUESTS
    assert frames(path, "reply") == REPLIES


def test_a_packet_that_is_missing_costs_what_stands_behind_it_and_is_told(tmp_path: Path) -> None:
    opening, requests, replies = connection(8)
    del requests[3]
    path = written(tmp_path / "a.pcap", opening + requests + replies)
    assert frames(path, "request") == REQUESTS[:2]
    assert frames(path, "reply") == REPLIES
    (lost,) = [row for row in both(path, ["kind", "size", "error"]) if row[0] == "skipped"]
    assert lost[1] == sum(map(len, REQUESTS)) - 32
    assert "requests of connection 1 are missing" in lost[2]


def test_what_waits_for_a_missing_packet_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_packets, "MOST_AHEAD", 20)
    opening, requests, _ = connection(8)
    del requests[0]
    rows = both(written(tmp_path / "a.pcap", opening + requests), ["kind"])
    assert rows == []  # no Hello was seen, so nobody knows that it is one of ours


def test_other_traffic_is_left_alone_unless_its_port_is_named(tmp_path: Path) -> None:
    noise = [packet(CLIENT, STORE, 1, b"GET / HTTP/1.1\r\n"), b"\0" * 14, packet(STORE, CLIENT, 1, b"HTTP/1.1 200")]
    path = written(tmp_path / "a.pcap", noise)
    assert both(path, ["kind"]) == []
    from segstore.pipeline.trace_files import plan, read_piece

    (piece,) = plan([str(path)])
    found = [each.record for chunk in read_piece(piece, ports=(12_345,)) for each in chunk]  # type: ignore[union-attr]
    assert [each.kind.name for each in found] == ["OPEN", "BYTES", "BYTES", "CLOSE"]


def test_ipv6_and_two_connections_of_the_same_ends_are_told_apart(tmp_path: Path) -> None:
    opening, requests, replies = connection(v6=True)
    reset = packet(CLIENT, STORE, 5_000, flags=RST, v6=True)
    again = connection(first=9_000, v6=True)
    path = written(tmp_path / "a.pcap", [*opening, *requests, *replies, reset, *again[0], *again[1]])
    rows = both(path, ["kind", "connection", "fields"])
    assert [row[1] for row in rows if row[0] == "open"] == [1, 2]
    assert '"[::1]:40000"' in rows[0][2]
    assert frames(path, "request") == REQUESTS * 2


def test_a_capture_that_ends_in_the_middle_of_a_packet_is_told(tmp_path: Path) -> None:
    opening, requests, _ = connection()
    path = written(tmp_path / "a.pcap", opening + requests)
    path.write_bytes(path.read_bytes()[:-3])
    assert len(frames(path, "request")) >= 2
    path.write_bytes(bytes.fromhex("d4c3b2a1") + b"\1")
    ((kind, size, error),) = both(path, ["kind", "size", "error"])
    assert (kind, size) == ("skipped", 5)
    assert "no packet capture" in error


def test_without_the_library_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = written(tmp_path / "a.pcap", [])
    monkeypatch.setitem(sys.modules, "dpkt", None)
    with pytest.raises(ImportError, match=r"segstore\[pcap\]"):
        both(path, ["kind"])
    assert dpkt is not None
