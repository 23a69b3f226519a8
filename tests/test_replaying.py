"""A trace that drives a store: the replies are compared, and what differs is told by field."""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest

from segstore.server import MockSegmentStore
from segstore.traces import Access, drive, report
from segstore.traces.replay import diff_stores
from segstore.wire import AppendBlock, SegmentCreated, SegmentRead, StreamSegmentInfo, decode, encode
from segstore.wire.trace import Direction, Record, RecordKind
from tests.looped import looped
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up
from tests.server.tap.test_server import upstream
from tests.server.traffic import Port, record, streams, writes


@pytest.fixture
async def recorded(tmp_path: Path) -> list[Record]:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        return await record(tmp_path / "recorded.wtrace", writes, mock)


def edited(records: list[Record], kind: type, **changes: object) -> list[Record]:
    """The trace with other fields in the replies of a kind."""
    found = []
    for old in records:
        if old.kind is RecordKind.FRAME and old.direction is Direction.REPLY:
            command = decode(old.data)
            if isinstance(command, kind):
                old = old._replace(data=encode(msgspec.structs.replace(command, **changes)))
        found.append(old)
    return found


async def test_the_requests_that_are_made_are_those_of_the_trace(recorded: list[Record], tmp_path: Path) -> None:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        again = await record(tmp_path / "again.wtrace", lambda host, port: drive(recorded, host, port), mock)
    first, second = streams(recorded), streams(again)
    assert len(first) == len(second) == 4
    assert second[2, Direction.REQUEST] == first[2, Direction.REQUEST]
    # The first has the name of a transient segment, which the store makes up: as long, but another.
    assert len(second[1, Direction.REQUEST]) == len(first[1, Direction.REQUEST])


async def test_the_first_difference_is_reported_by_field_with_the_bytes_of_both(recorded: list[Record]) -> None:
    trace = edited(recorded, StreamSegmentInfo, write_offset=999, is_sealed=True, last_modified=1)
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        found = await drive(trace, mock.host, mock.port)
    (difference,) = found.differences
    assert [(field.field, field.left, field.right) for field in difference.fields] == [
        ("is_sealed", True, False),
        ("write_offset", 999, 18),
    ]
    text = list(report(difference))
    assert text[0].endswith(
        "connection 1, the reply to GET_STREAM_SEGMENT_INFO, STREAM_SEGMENT_INFO: "
        "is_sealed is false instead of true, write_offset is 18 instead of 999"
    )
    assert [line for line in text if line in ("expected:", "actual:")] == ["expected:", "actual:"]
    assert any("write_offset" in line and "00 00 03 e7" in line for line in text)


async def test_all_differences_are_reported_on_request(recorded: list[Record]) -> None:
    trace = edited(edited(recorded, StreamSegmentInfo, write_offset=999), type(HELLO), high_version=9)
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        found = await drive(trace, mock.host, mock.port, all_differences=True)
    assert [difference.fields[0].field for difference in found.differences] == [
        "high_version",
        "write_offset",
        "high_version",
    ]


async def test_the_wait_for_a_missing_reply_is_limited(recorded: list[Record]) -> None:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="drop")
        found = await drive(recorded, mock.host, mock.port, timeout_s=0.05)
    assert "STREAM_SEGMENT_INFO was expected, but none came within 0.05 s" in str(found.differences[0])


async def test_a_read_that_waits_for_data_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        (0, create()),
        (1, SegmentCreated(1, SEGMENT)),
        (0, read(0)),
        (1, SegmentRead(SEGMENT, 0, True, False, b"", 4)),
    ]
    trace = [
        Record(at, 1, Direction(direction), RecordKind.FRAME, encode(command))
        for at, (direction, command) in enumerate(said)
    ]
    async with MockSegmentStore(long_poll_s=0.2) as mock:
        found = await drive(trace, mock.host, mock.port, timeout_s=0.05)
    assert [str(difference) for difference in found.differences] == []
    monkeypatch.setattr("segstore.traces.replay.LONG_POLL_S", 0.0)
    longer = [*trace[:3], trace[3]._replace(ts_ns=int(0.3e9))]
    async with MockSegmentStore(long_poll_s=0.2) as mock:  # as long as in the trace, at most
        assert not (await drive(longer, mock.host, mock.port, timeout_s=0.05)).differences
        mock.faults.add("type = READ_SEGMENT", do="drop")
        found = await drive(longer, mock.host, mock.port, timeout_s=0.05, all_differences=True)
        assert "none came within 0.35 s" in str(found.differences[-1])
        monkeypatch.setattr("segstore.traces.replay._LONGEST_READ_S", 0.1)
        found = await drive(longer, mock.host, mock.port, timeout_s=0.05, all_differences=True)
    assert "none came within 0.15 s" in str(found.differences[-1])


async def test_a_token_that_is_given_is_that_of_all_requests() -> None:
    trace = [
        Record(at, 1, Direction(direction), RecordKind.FRAME, encode(command))
        for at, (direction, command) in enumerate([(0, create()), (1, SegmentCreated(1, SEGMENT)), (0, set_up())])
    ]
    async with MockSegmentStore() as mock:
        found = await drive(trace, mock.host, mock.port, access=Access(token="another"))
    sent = [
        decode(record.data) for record in found.records if record.direction is Direction.REQUEST and record.kind == 0
    ]
    assert [each.delegation_token for each in sent] == ["another", "another"]  # type: ignore[attr-defined]


async def test_two_stores_that_are_alike_do_not_differ_and_others_do(recorded: list[Record]) -> None:
    async with MockSegmentStore(long_poll_s=0.05) as one, MockSegmentStore(long_poll_s=0.05) as other:
        left, right = (one.host, one.port), (other.host, other.port)
        assert (await diff_stores(recorded, left, right)).differences == []
    async with (
        MockSegmentStore(long_poll_s=0.05) as one,
        MockSegmentStore(long_poll_s=0.05, containers=1, own=[]) as other,
    ):
        left, right = (one.host, one.port), (other.host, other.port)
        found = await diff_stores(recorded, left, right, timeout_s=0.1)
        assert "WRONG_HOST came instead of SEGMENT_CREATED" in str(found.differences[0])


@looped(("between_ms", "pace"), [(20, 1.0), (20_000, 1000.0)])
async def test_requests_are_made_at_the_times_of_the_trace_or_scaled(between_ms: int, pace: float) -> None:
    trace = [
        Record(at * between_ms * 1_000_000, 1, direction, RecordKind.FRAME, encode(HELLO))
        for at in range(3)
        for direction in Direction
    ]
    async with MockSegmentStore() as mock:
        started_s = asyncio.get_running_loop().time()
        found = await drive(trace, mock.host, mock.port, pace=pace)
        took_s = asyncio.get_running_loop().time() - started_s
    # Never earlier; how much later, the machine says.
    assert took_s >= 0.039
    assert (found.requests, found.differences) == (3, [])


async def test_a_reply_that_does_not_decode_is_a_difference_with_its_bytes() -> None:
    trace = [
        Record(0, 1, Direction.REQUEST, RecordKind.FRAME, encode(create())),
        Record(1, 1, Direction.REPLY, RecordKind.FRAME, encode(SegmentCreated(1, SEGMENT))),
    ]
    async with MockSegmentStore() as mock:
        mock.faults.add("type = CREATE_SEGMENT", do={"corrupt": 17})  # in the length of the name
        found = await drive(trace, mock.host, mock.port)
    (difference,) = found.differences
    assert "a malformed frame came instead of SEGMENT_CREATED" in str(difference)
    assert len(difference.actual) == len(trace[1].data)
    assert any("request_id" in line for line in report(difference))


@looped("pace", [-1, 0, 1e-300, float("nan"), float("inf")])
async def test_a_pace_must_be_one_whose_run_ends(pace: float) -> None:
    with pytest.raises(ValueError, match=r"pace must be from 0\.001 to 1,000,000, not"):
        await drive([], "127.0.0.1", 1, pace=pace)


async def test_a_store_that_never_reads_does_not_block_the_replay() -> None:
    done = asyncio.Event()

    async def reads_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await done.wait()

    requests = [HELLO, *(AppendBlock(WRITER, bytes(8_000_000)) for _ in range(4))]
    trace = [Record(0, 1, Direction.REQUEST, RecordKind.FRAME, encode(request)) for request in requests]
    async with upstream(reads_nothing) as store:
        async with asyncio.timeout(PATIENCE_S):
            found = await drive(trace, *store, timeout_s=0.05)
        done.set()
    assert found.requests == 5


async def test_a_connection_that_a_recorded_fault_has_closed_is_no_difference(tmp_path: Path) -> None:
    async def in_flight(host: str, port: int, known: int) -> None:
        """Three appends, of which the second is cut, and the third is made again."""
        where = Port(host, port)
        async with await Peer.connect(where) as peer:  # type: ignore[arg-type]  # it asks for host and port alone
            await peer.ask(HELLO, create(), set_up(), append(1, b"one"))
            peer.send(append(2, b"two"), append(3, b"three"))
            await peer.closed()
        async with await Peer.connect(where) as peer:  # type: ignore[arg-type]  # as above
            await peer.ask(HELLO, set_up())
            for number, event in ((2, b"two"), (3, b"three")):
                if number > known:
                    await peer.ask(append(number, event))

    for do, known in (("close after", 2), ("close before", 1)):
        async with MockSegmentStore() as mock:
            mock.faults.add("type = APPEND_BLOCK_END", nth=2, do=do, name="cut")
            records = await record(tmp_path / f"{do}.wtrace", partial(in_flight, known=known), mock)
        async with MockSegmentStore() as mock:
            found = await drive(records, mock.host, mock.port, all_differences=True)
        assert found.differences == []
        assert [cut.partition(", ")[2] for cut in found.cuts] == [
            f"connection 1: closed by a recorded fault 'cut': {do}"
        ]
