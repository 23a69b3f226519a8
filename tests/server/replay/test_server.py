"""A trace that answers clients: in its order, or by what is asked, with ids translated."""

import asyncio
import math
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segstore.server import MockSegmentStore
from segstore.server.replay import Problem, TraceServer, read_script
from segstore.traces import drive, redacted
from segstore.wire import (
    AppendSetup,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    NoSuchSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentRead,
    encode,
)
from segstore.wire.trace import SECRET_CODES, Direction, Record, RecordKind
from tests.looped import looped
from tests.ports import held_port
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, Peer, append, create, set_up, until
from tests.server.tap.test_server import upstream
from tests.server.traffic import WRITER, record, streams, writes
from tests.strategies import framed

OTHER_WRITER = UUID("ffeeddcc-bbaa-9988-7766-554433221100")


@pytest.fixture
async def recorded(tmp_path: Path) -> list[Record]:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        return await record(tmp_path / "recorded.wtrace", writes, mock)


async def test_a_redacted_trace_of_a_newer_version_answers_the_same(recorded: list[Record]) -> None:
    longer = [
        each._replace(data=framed(code, each.data[8:] + b"\0\3new"))
        if each.kind is RecordKind.FRAME and (code := int.from_bytes(each.data[:4], "big")) in SECRET_CODES
        else each
        for each in recorded
    ]
    async with TraceServer(redacted(longer)) as server:
        heard = await writes(server.host, server.port, first_id=1 << 32)
        assert (server.problems, sum(server.unused().values())) == ([], 0)
    assert heard.count("DATA_APPENDED") == 4
    assert heard[-1] == "SEGMENT_READ"


@pytest.mark.parametrize("mode", ["strict", "match"])
async def test_ids_writers_and_transient_names_are_translated(recorded: list[Record], mode: str) -> None:
    async with TraceServer(recorded, mode=mode) as server:  # type: ignore[arg-type]  # one of the two
        heard = await writes(server.host, server.port, writer=OTHER_WRITER, first_id=1 << 32)
        assert (server.problems, sum(server.unused().values())) == ([], 0)
    assert heard.count("SEGMENT_CREATED") == 2
    async with TraceServer(recorded, mode=mode) as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        await peer.ask(HELLO, create(request_id=77), set_up(writer_id=OTHER_WRITER))
        (reply,) = await peer.ask(append(1, b"event1", OTHER_WRITER, 88))
        assert isinstance(reply, DataAppended)
        assert (reply.writer_id, reply.request_id, reply.event_number) == (OTHER_WRITER, 88, 1)


async def test_in_match_mode_the_order_does_not_matter_and_hello_may_come_again(recorded: list[Record]) -> None:
    async with TraceServer(recorded, mode="match") as server:
        for _ in range(4):
            async with await Peer.connect(server) as peer:  # type: ignore[arg-type]  # host and port are all it needs
                assert await peer.ask(HELLO, KeepAlive()) == [Hello(17, 5), KeepAlive()]
        async with await Peer.connect(server) as peer:  # type: ignore[arg-type]  # as above
            (info,) = await peer.ask(GetStreamSegmentInfo(99, SEGMENT, ""))
            assert (info.type_name, info.request_id) == ("STREAM_SEGMENT_INFO", 99)  # type: ignore[attr-defined]
            assert (await peer.ask(create(request_id=5)))[0] == SegmentCreated(5, SEGMENT)
        assert server.problems == []
        assert server.unused()["APPEND_BLOCK_END"] == 4


async def test_a_request_is_answered_once_and_what_is_not_in_the_trace_with_an_error(recorded: list[Record]) -> None:
    async with TraceServer(recorded, mode="match") as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        first, second = await peer.ask(create(request_id=1), create(request_id=2))
        assert first == SegmentCreated(1, SEGMENT)
        assert isinstance(second, ErrorMessage)
        assert second.request_id == 2
        assert str(second.message) == "connection 1: CREATE_SEGMENT was answered before"
        same = "same: request 2 of the trace (connection 1), answered before"
        assert [str(problem) for problem in server.problems] == [f"{second.message}\n  {same}"]


async def test_in_strict_mode_a_request_that_differs_is_named_with_its_fields(recorded: list[Record]) -> None:
    async with TraceServer(recorded, missing="close") as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        await peer.ask(HELLO)
        peer.send(create("scope/stream/9.#epoch.0"))
        assert await peer.closed() == b""
        (problem,) = server.problems
        assert str(problem) == (
            "connection 1: CREATE_SEGMENT differs from the trace: "
            f"segment: 'scope/stream/9.#epoch.0' here, '{SEGMENT}' in the trace"
        )


async def test_what_the_trace_does_not_answer_can_be_forwarded(recorded: list[Record]) -> None:
    async with MockSegmentStore() as mock, await Peer.connect(mock) as helper:
        await helper.ask(HELLO, create())
        upstream = (mock.host, mock.port)
        async with (
            TraceServer(recorded, mode="match", missing="pass", upstream=upstream) as server,
            await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
        ):
            await peer.ask(HELLO, set_up(writer_id=WRITER))
            (reply,) = await peer.ask(append(7, b"not in the trace", WRITER, 5))
            assert isinstance(reply, DataAppended)
            assert (reply.event_number, mock.segments[SEGMENT].length) == (7, 16)
            assert await peer.ask(DeleteSegment(9, SEGMENT, "")) == [SegmentDeleted(9, SEGMENT)]
            assert len(server.problems) == 2


async def test_a_set_up_that_the_other_store_refuses_is_a_problem_and_the_answer_to_the_appends(
    recorded: list[Record],
) -> None:
    async with (
        MockSegmentStore() as mock,
        TraceServer(recorded, mode="match", missing="pass", upstream=(mock.host, mock.port)) as server,
        await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
    ):
        await peer.ask(HELLO, set_up(writer_id=WRITER))
        replies = await peer.ask(*(append(number, b"unknown", WRITER, 90 + number) for number in (7, 8)))
        assert replies == [NoSuchSegment(97, SEGMENT, "", -1), NoSuchSegment(98, SEGMENT, "", -1)]
        assert await peer.ask(append(9, b"unknown", WRITER, 99)) == [NoSuchSegment(99, SEGMENT, "", -1)]
        (found,) = (problem for problem in server.problems if problem.refusal)
        refusal = f"the store at {mock.host}:{mock.port} answers NO_SUCH_SEGMENT for {SEGMENT}"
        assert str(found) == f"connection 1: SETUP_APPEND was forwarded: {refusal}"
        assert len(mock.requests("type = SETUP_APPEND")) == 1
        assert mock.requests("type = APPEND_BLOCK_END") == []


async def test_appends_wait_for_the_set_up_at_the_other_store_in_order(recorded: list[Record]) -> None:
    async with MockSegmentStore() as mock, await Peer.connect(mock) as helper:
        await helper.ask(HELLO, create())
        mock.faults.add("type = SETUP_APPEND", do="hold after", name="slow")
        async with (
            TraceServer(recorded, mode="match", missing="pass", upstream=(mock.host, mock.port)) as server,
            await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
        ):
            await peer.ask(HELLO, set_up(writer_id=WRITER))
            peer.send(*(append(number, b"late%d" % number, WRITER, number) for number in (7, 8)))
            await mock.faults.wait_held("slow")
            assert mock.requests("type = APPEND_BLOCK_END") == []
            mock.faults.release("slow")
            await mock.wait_for("type = APPEND_BLOCK_END", count=2)
            assert mock.segments[SEGMENT].read_bytes(0, 10) == b"late7late8"


async def test_after_the_first_problem_a_failed_server_refuses_everything_with_what_ends_clients(
    recorded: list[Record],
) -> None:
    async with (
        TraceServer(recorded, mode="match", missing="fail") as server,
        await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
    ):
        failed = asyncio.create_task(server.wait_failed())
        await peer.ask(HELLO, set_up(writer_id=WRITER))
        assert server.failure == ""
        assert await peer.ask(append(1, b"other", WRITER, 88)) == [NoSuchSegment(88, SEGMENT, "", -1)]
        assert await failed == str(server.problems[0])
        assert await peer.ask(create(request_id=5)) == [NoSuchSegment(5, SEGMENT, "", -1)], "though it is in the trace"
        async with await Peer.connect(server) as other:  # type: ignore[arg-type]  # as above
            assert await other.ask(HELLO, KeepAlive()) == [Hello(17, 5), KeepAlive()]
            (again,) = await other.ask(set_up(writer_id=OTHER_WRITER))
            assert isinstance(again, AppendSetup)
            assert await other.ask(append(1, b"event1", OTHER_WRITER, 7)) == [NoSuchSegment(7, SEGMENT, "", -1)]
        assert len(server.problems) == 1


async def test_after_its_deadline_a_server_closes_its_connections_and_has_failed(recorded: list[Record]) -> None:
    async with (
        TraceServer(recorded, mode="match", timeout_s=60) as server,
        await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
    ):
        assert await peer.ask(HELLO) == [Hello(17, 5)]  # a connection accepted after the deadline is served
        assert server._deadline.when() <= asyncio.get_running_loop().time() + 60
        server._too_late()  # as its timer does
        assert await server.wait_failed() == "the trace was still answering clients after 60 s"
        assert await peer.closed() == b""
        async with await Peer.connect(server) as other:  # type: ignore[arg-type]  # as above
            assert await other.ask(HELLO, create(request_id=5)) == [Hello(17, 5), NoSuchSegment(5, SEGMENT, "", -1)]
    assert server.problems == []
    async with TraceServer(recorded, timeout_s=60) as stopped:
        waiting = asyncio.create_task(stopped.wait_failed())
    assert await waiting == ""


async def test_replies_of_another_store_are_read_no_faster_than_by_the_client() -> None:
    frame = encode(SegmentRead(SEGMENT, 0, False, False, bytes(1 << 20), 5))
    sent: list[int] = []

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        with suppress(ConnectionError):
            for number in range(64):
                writer.write(frame)
                await writer.drain()
                sent.append(number)

    async with (
        upstream(floods) as store,
        TraceServer([], mode="match", missing="pass", upstream=store) as server,
        await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
    ):
        peer.send(HELLO, DeleteSegment(9, SEGMENT, ""))
        await until(lambda: sent)
        for _ in range(40):
            await asyncio.sleep(0.002)  # in which what is not bounded would grow
        assert len(sent) < 48
        async with asyncio.timeout(PATIENCE_S):
            await peer.reader.readexactly(64 * len(frame))


async def test_an_upstream_that_is_not_there_ends_the_connection(recorded: list[Record]) -> None:
    with held_port() as port:
        async with (
            TraceServer(recorded, mode="match", missing="pass", upstream=("127.0.0.1", port)) as server,
            await Peer.connect(server) as peer,  # type: ignore[arg-type]  # as above
        ):
            peer.send(DeleteSegment(9, SEGMENT, ""))
            assert await peer.closed() == b""
            missing, refused = server.problems
            assert (missing.refusal, refused.request) == ("", "DELETE_SEGMENT")
            assert refused.refusal.startswith(f"no connection to the store at 127.0.0.1:{port}: ")


async def test_the_times_of_a_trace_are_kept_and_scaled() -> None:
    def frame(at_ms: int, direction: Direction, data: bytes) -> Record:
        return Record(at_ms * 1_000_000, 1, direction, RecordKind.FRAME, data)

    trace = [frame(0, Direction.REQUEST, encode(HELLO)), frame(60_000, Direction.REPLY, encode(HELLO))]
    async with TraceServer(trace, pace=10_000.0) as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        started = asyncio.get_running_loop().time()
        await peer.ask(HELLO)
        assert asyncio.get_running_loop().time() - started >= 0.005
    async with TraceServer(trace, pace=1.0) as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        peer.send(HELLO)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.reader.read(1), 0.02)


@looped("data", [b"", b"\0\0\0\x09\xff\xff\xff\xff"])
async def test_replies_that_take_their_time_are_sent_behind_the_end_of_a_client(data: bytes) -> None:
    records = [
        Record(0, 1, Direction.REQUEST, RecordKind.FRAME, encode(HELLO)),
        Record(20_000_000, 1, Direction.REPLY, RecordKind.FRAME, encode(HELLO)),
    ]
    async with TraceServer(records, mode="match", pace=1) as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        peer.send_bytes(3 * encode(HELLO) + data)
        if not data:
            peer.writer.write_eof()
        assert await peer.closed() == 3 * encode(HELLO)
        await until(lambda: not server._open)


@pytest.mark.parametrize("missing", ["error", "fail"])
async def test_bytes_that_break_the_protocol_are_a_problem(recorded: list[Record], missing: str) -> None:
    reported: list[Problem] = []
    options: Any = {"missing": missing, "tell": reported.append}
    async with (
        TraceServer(recorded, **options) as server,
        await Peer.connect(server) as peer,  # type: ignore[arg-type]  # host and port are all it needs
        await Peer.connect(server) as other,  # type: ignore[arg-type]  # as above
    ):
        peer.send_bytes(encode(HELLO) + b"\xff" * 1000)
        assert await peer.closed() == encode(HELLO)
        (found,) = server.problems
        assert reported == [found]
        assert str(found).startswith("connection 1: the client broke the protocol: ")
        assert server.failure == (str(found) if missing == "fail" else "")
        other.send_bytes(encode(HELLO) + encode(append(1)))
        await other.closed()
        assert [problem.request for problem in server.problems] == ["PADDING", "APPEND_BLOCK_END"][
            : 1 if server.failure else 2
        ]


async def until_closed(host: str, port: int) -> bytes:
    """A client that makes a segment, and takes what comes until the store closes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(encode(HELLO) + encode(create()))
    async with asyncio.timeout(PATIENCE_S):
        heard = await reader.read(-1)
    writer.close()
    return heard


@pytest.mark.parametrize("length", [10_000, 11])
async def test_the_end_that_a_store_made_of_a_connection_is_replayed(tmp_path: Path, length: int) -> None:
    """Also within a reply: what makes no frame is sent as it was, and recorded again it is the same."""
    async with MockSegmentStore() as mock:
        mock.faults.add("type = CREATE_SEGMENT", do={"close": "after", "reply_bytes": length})
        recorded = await record(tmp_path / "closed.wtrace", until_closed, mock)
    wanted = encode(HELLO) + encode(SegmentCreated(1, SEGMENT))[:length]
    async with TraceServer(recorded) as server:
        assert await until_closed(server.host, server.port) == wanted
        assert server.problems == []
    async with TraceServer(recorded) as server:
        again = await drive(recorded, server.host, server.port)
    assert again.differences == []
    assert streams(again.records) == streams(recorded)
    async with MockSegmentStore() as mock:
        found = await drive(recorded, mock.host, mock.port, timeout_s=0.1)
    assert found.differences == []
    assert [cut.partition("recorded ")[2][:22] for cut in found.cuts] == ["fault 'rule 1': close "]


@looped("mode", ["strict", "match"])
async def test_replies_that_do_not_decode_are_sent_as_they_are(mode: str) -> None:
    malformed = b"\0\0\0\x1e\0\0\0\3abc"
    unknown = b"\0\0\x7f\x7f\0\0\0\2hi"
    spoilt = b"\0\0\0\1\xff\xff\xff\xff and so on"
    pieces = [
        (Direction.REQUEST, RecordKind.FRAME, encode(HELLO)),
        (Direction.REPLY, RecordKind.FRAME, encode(HELLO)),
        (Direction.REQUEST, RecordKind.FRAME, unknown),
        (Direction.REPLY, RecordKind.FRAME, malformed),
        (Direction.REPLY, RecordKind.FRAME, unknown),
        (Direction.REQUEST, RecordKind.FRAME, encode(create())),
        (Direction.REPLY, RecordKind.BYTES, spoilt),
        (Direction.REPLY, RecordKind.CLOSE, b"{}"),
    ]
    trace = [Record(at, 1, *each) for at, each in enumerate(pieces)]
    async with TraceServer(trace, mode=mode) as server:  # type: ignore[arg-type]  # one of the two
        found = await drive(trace, server.host, server.port)
        assert (found.differences, server.problems, sum(server.unused().values())) == ([], [], 0)
    assert streams(found.records) == streams(trace)


async def test_connections_on_which_nothing_is_asked_do_not_count(recorded: list[Record]) -> None:
    empty = [Record(0, 99, Direction.REQUEST, kind, b"{}") for kind in (RecordKind.OPEN, RecordKind.CLOSE)]
    async with TraceServer([*empty, *recorded]) as server:
        _, probing = await asyncio.open_connection(server.host, server.port)
        probing.close()
        await writes(server.host, server.port)
        assert (server.problems, sum(server.unused().values())) == ([], 0)


def test_bytes_that_are_no_frames_are_left_out_of_the_script() -> None:
    records = [
        Record(0, 1, Direction.REQUEST, RecordKind.FRAME, encode(HELLO)),
        Record(1, 1, Direction.REQUEST, RecordKind.BYTES, b"\0\1"),
        Record(2, 1, Direction.REQUEST, RecordKind.FRAME, encode(append(1))),
        Record(3, 1, Direction.REPLY, RecordKind.FRAME, encode(HELLO)),
    ]
    left_out: list[str] = []
    (step,) = read_script(records, left_out)
    assert [each.partition(": ")[0] for each in left_out] == ["on connection 1"] * 2
    assert left_out[0].endswith(": 2 bytes that are not a frame")
    assert "a writer is set up before it appends" in left_out[1]
    assert (step.type_name, [reply.delay_ns for reply in step.replies]) == ("HELLO", [3])


@pytest.mark.parametrize("mode", ["strict", "match"])
@pytest.mark.parametrize("missing", ["error", "close"])
async def test_a_hello_is_answered_where_the_trace_has_none(recorded: list[Record], mode: str, missing: str) -> None:
    cut = [each for each in recorded if each.kind is not RecordKind.FRAME or each.data != encode(HELLO)]
    async with TraceServer(cut, mode=mode, missing=missing) as server:  # type: ignore[arg-type]  # two of these
        async with await Peer.connect(server) as other:  # type: ignore[arg-type]  # host and port are all it needs
            assert await other.ask(HELLO) == [Hello(17, 5)], "and it takes no connection of the trace"
        await writes(server.host, server.port)
        assert (server.problems, sum(server.unused().values())) == ([], 0)


@pytest.mark.parametrize("mode", ["strict", "match"])
async def test_a_hello_that_the_trace_has_otherwise_is_a_problem(recorded: list[Record], mode: str) -> None:
    async with TraceServer(recorded, mode=mode) as server, await Peer.connect(server) as peer:  # type: ignore[arg-type]
        assert isinstance((await peer.ask(Hello(16, 5)))[0], ErrorMessage)
        assert len(server.problems) == 1


@looped(
    ("options", "said"),
    [
        ({"missing": "pass"}, "upstream goes with missing='pass'"),
        ({"upstream": ("localhost", 1)}, "upstream is only asked with missing='pass'"),
        ({"timeout_s": math.nan}, "timeout_s must be above 0 and finite, not nan"),
    ],
)
async def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        TraceServer([], **options)


async def test_a_connection_number_that_comes_again_is_another_connection() -> None:
    kinds = [RecordKind.OPEN, RecordKind.FRAME, RecordKind.FRAME, RecordKind.CLOSE]
    ways = [Direction.REQUEST, Direction.REQUEST, Direction.REPLY, Direction.REPLY]
    one = [b"{}", encode(HELLO), encode(HELLO), b"{}"]
    trace = [Record(at, 1, ways[at % 4], kinds[at % 4], one[at % 4]) for at in range(8)]
    assert [step.connection for step in read_script(trace)] == [1, 2]
    async with TraceServer(trace) as server:
        found = await drive(trace, server.host, server.port)
        assert (found.differences, server.problems) == ([], [])
