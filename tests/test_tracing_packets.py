"""Traces as packets: the same records again, for Wireshark as well, with the addresses that the trace names."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from segstore.traces import TraceFile, write_trace
from segstore.wire import Hello, ReadSegment, SegmentRead, encode
from segstore.wire.controller_api import messages
from segstore.wire.trace import Call, Direction, Metadata, Record, RecordKind, event_data, unpack_data

HELLO = encode(Hello(17, 5))
FIXTURES = Path(__file__).parent.parent / "fixtures" / "traces"
METADATA = Metadata(17, "tests", {"scenario": "packets"})
ENDS = [("10.0.0.1:40000", "10.0.0.2:12345"), ("10.0.0.1:40001", "10.0.0.2:12345"), ("[::1]:40000", "[::2]:12345")]


def read(path: Path) -> list[Record]:
    with TraceFile(path) as opened:
        found = list(opened.records())
    assert (opened.form, opened.damages) == ("packets", [])
    return found


def opened(connection: int, at: int = 0) -> Record:
    peer, store = ENDS[connection - 1]
    return Record(at, connection, Direction.REQUEST, RecordKind.OPEN, event_data(peer=peer, store=store))


def by_connection(records: list[Record]) -> list[list[Record]]:
    """The records of each connection that has frames. Bytes that form no frame have the time of its end."""
    found: dict[int, list[Record]] = {}
    for each in sorted(records, key=lambda each: each.ts_ns):
        found.setdefault(each.connection, []).append(each._replace(connection=0))
    for several in found.values():
        several[:] = [e._replace(ts_ns=several[-1].ts_ns) if e.kind is RecordKind.BYTES else e for e in several]
    return [each for each in found.values() if any(one.kind is RecordKind.FRAME for one in each)]


@st.composite
def traces(draw: st.DrawFn) -> list[Record]:
    """Connections at once; a time may be that of the record before."""
    records = [opened(number + 1) for number in range(draw(st.integers(1, len(ENDS))))]
    many = len(records)
    now = 0
    records += [Record(now, number, Direction.REQUEST, RecordKind.FRAME, HELLO) for number in range(1, many + 1)]
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.integers(0, 5_000_000_000))
        data = bytes(draw(st.sampled_from([0, 1, 100, 64_999, 65_000, 200_000])))
        command = draw(st.sampled_from([ReadSegment("s", 0, 9, "", 1), SegmentRead("s", 0, False, False, data, 1)]))
        number, direction = draw(st.integers(1, many)), draw(st.sampled_from(Direction))
        records.append(Record(now, number, direction, RecordKind.FRAME, encode(command)))
    if draw(st.booleans()):
        records.append(Record(now, 1, draw(st.sampled_from(Direction)), RecordKind.BYTES, HELLO[:5]))
    closed_by = draw(st.lists(st.sampled_from(Direction), min_size=many, max_size=many))
    order = draw(st.permutations(range(1, many + 1)))
    return records + [
        Record(now, number, by, RecordKind.CLOSE, b"{}") for number, by in zip(order, closed_by, strict=True)
    ]


@given(records=traces())
@settings(max_examples=40)
def test_what_was_written_as_packets_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.pcapng"
    assert write_trace(path, records, lambda: METADATA) == len(records)
    found = read(path)
    assert by_connection(found) == by_connection(records)
    times = [each.ts_ns for each in found if each.kind is not RecordKind.OPEN]  # its time is that of the first packet
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["write", "java", "read_group"])
def test_frames_times_and_ends_of_a_fixture_are_kept(tmp_path: Path, name: str) -> None:
    with TraceFile(FIXTURES / f"{name}.jsonl") as fixture:
        records = list(fixture.records())
        write_trace(tmp_path / "a.pcapng", records, lambda: fixture.metadata)
    found = read(tmp_path / "a.pcapng")
    assert [each[1:] for each in by_connection(found)] == [each[1:] for each in by_connection(records)]
    write_trace(tmp_path / "b.pcapng", found, lambda: fixture.metadata)
    assert by_connection(read(tmp_path / "b.pcapng")) == by_connection(found)


def test_connections_without_addresses_or_of_the_same_ones_are_told_apart(tmp_path: Path) -> None:
    records = []
    for number, facts in enumerate([{"peer": "controller"}, {}, {"peer": "a:1", "store": "b:2"}], 1):
        records.append(Record(0, number, Direction.REQUEST, RecordKind.OPEN, event_data(**facts)))
    records += [opened(1)._replace(connection=number) for number in (4, 5)]
    for number in range(1, 7):  # the sixth has no open record
        records.append(Record(7, number, Direction.REQUEST, RecordKind.FRAME, HELLO))
    write_trace(tmp_path / "a.pcapng", records, lambda: METADATA)
    found = read(tmp_path / "a.pcapng")
    assert [each.connection for each in found if each.kind is RecordKind.FRAME] == [1, 2, 3, 4, 5, 6]
    first, second, *named, without = [unpack_data(each.data) or {} for each in found if each.kind is RecordKind.OPEN]
    assert first == {"peer": "controller", "store": "127.0.0.1:12345"}
    assert named == [{"peer": "a:1", "store": "b:2"}, *[{"peer": ENDS[0][0], "store": ENDS[0][1]}] * 2]
    assert second != without
    assert [each["store"] for each in (second, without)] == ["127.0.0.1:12345"] * 2


def test_facts_about_connections_are_kept(tmp_path: Path) -> None:
    facts = {"peer": "controller", "role": "controller", "store": "pravega:12345", "ts_ns": "1", "self": "2", "by": "3"}
    records = [
        Record(0, 1, Direction.REQUEST, RecordKind.OPEN, event_data(**facts)),
        Record(0, 1, Direction.REQUEST, RecordKind.FRAME, HELLO),
        Record(1, 1, Direction.REPLY, RecordKind.CLOSE, event_data(reason="fault rule 'cut'", connection="4")),
    ]
    write_trace(tmp_path / "a.pcapng", records, lambda: METADATA)
    assert read(tmp_path / "a.pcapng") == records


@pytest.mark.parametrize("comment", ["[1]", "{", '{"peer": 7}', '"text"', "{" * 60_000])
def test_comments_of_others_are_no_facts(tmp_path: Path, comment: str) -> None:
    records = [opened(1)._replace(data=comment.encode()), Record(0, 1, Direction.REQUEST, RecordKind.FRAME, HELLO)]
    write_trace(tmp_path / "a.pcapng", records, lambda: METADATA)
    (found, _) = read(tmp_path / "a.pcapng")
    assert unpack_data(found.data) == {"peer": "127.0.0.1:49152", "store": "127.0.0.1:12345"}


def calls_of(records: list[Record]) -> list[Record]:
    return [record for record in records if record.kind is RecordKind.CALL]


def test_controller_calls_are_packets_that_are_read_again(tmp_path: Path) -> None:
    with TraceFile(FIXTURES / "controller_calls.jsonl") as fixture:
        records = list(fixture.records())
    assert len(calls_of(records)) > 10
    write_trace(tmp_path / "a.pcapng", records, lambda: METADATA)
    found = read(tmp_path / "a.pcapng")
    assert calls_of(found) == calls_of(records)
    assert [each[1:] for each in by_connection(found)] == [each[1:] for each in by_connection(records)]
    order = [record.kind for record in records if record.kind in (RecordKind.CALL, RecordKind.FRAME)]
    assert [each.kind for each in found if each.kind in (RecordKind.CALL, RecordKind.FRAME)] == order


def test_of_a_long_message_of_a_call_the_size_is_kept(tmp_path: Path) -> None:
    call = Call(1, "unknownMethod", bytes(150_000), {"key": "value"}, "peer")
    write_trace(tmp_path / "a.pcapng", [called(call.pack())], lambda: METADATA)
    (found,) = read(tmp_path / "a.pcapng")
    assert Call.unpack(found.data) == replace(call, message=b"", omitted=150_000)


def called(data: bytes) -> Record:
    return Record(5, 0, Direction.REQUEST, RecordKind.CALL, data)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('quest", "rpc": "createScope", "call": "one"}', "no controller call: line 1: call: a whole number"),
        ('quest", "rpc": ', "no controller call: line 1"),
        ('quest", "hex": ""}', "no controller call"),
        ('quest", "rpc": "x", "call": 1, "peer": "\udcff"}', "no controller call: line 1"),
    ],
)
def test_a_packet_that_is_no_call_is_reported_and_the_others_are_read(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "a.pcapng"
    call = Call(1, "createScope", peer="a" * 40).pack()
    write_trace(path, [called(call)] * 3, lambda: METADATA)
    data, start = path.read_bytes(), b'quest", "rpc"'
    at = data.index(start, data.index(start) + 1)
    end = data.index(b"}", at) + 1
    lying = line.encode(errors="surrogateescape")
    assert len(lying) <= end - at
    path.write_bytes(data[:at] + lying.ljust(end - at) + data[end:])
    with TraceFile(path) as opened:
        assert [record.data for record in opened.records()] == [call] * 2
    (damage,) = opened.damages
    assert why in damage.reason


@pytest.mark.needs("tshark")
def test_wireshark_reads_the_packets_and_their_checksums(tmp_path: Path) -> None:
    tshark = shutil.which("tshark") or ""
    path = tmp_path / "a.pcapng"
    records = [
        opened(1),
        opened(3),
        *(Record(5, n, Direction.REQUEST, RecordKind.FRAME, HELLO * 9_000) for n in (1, 3)),
    ]
    write_trace(path, records, lambda: METADATA)
    fields = ["frame.time_epoch", "frame.comment", "ip.checksum.status", "tcp.checksum.status", "_ws.expert.severity"]
    options = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=|"]
    command = [tshark, "-n", "-r", str(path), *options, *(part for field in fields for part in ("-e", field))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert len(rows) == 3 + 3 + 3 + 3  # two connections of three packets, and two records of three
    assert rows[0][:2] == ["0.000000000", '{"peer":"10.0.0.1:40000","store":"10.0.0.2:12345"}']
    assert {row[0] for row in rows[6:]} == {"0.000000005"}
    assert {(row[2], row[3]) for row in rows} == {("1", "1"), ("", "1")}  # good; IPv6 has none of its own


@pytest.mark.needs("tshark")
def test_wireshark_shows_calls_as_json(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    message = messages.ScopeInfo(scope="orders").SerializeToString()
    calls = [Call(1, "createScope", message), Call(1, "createScope", status="OK")]
    records = [called(calls[0].pack()), called(calls[1].pack())._replace(direction=Direction.REPLY, ts_ns=9)]
    write_trace(path, [opened(1), *records], lambda: METADATA)
    command = [shutil.which("tshark") or "", "-n", "-r", str(path), "-Y", "json", "-T", "fields"]
    fields = ["frame.time_epoch", "json.key", "json.value.string"]
    command += [part for field in fields for part in ("-e", field)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["0.000000005", "at_ns,conn,dir,rpc,call,scope,fields", "request,createScope,orders"],
        ["0.000000009", "at_ns,conn,dir,rpc,call,status", "reply,createScope,OK"],
    ]
