"""Every part of the client against stores that lie, mumble, fall silent or hang up at any point.

A `HostileStore` stands between the client and a good store and spoils what that says, as a plan with a seed has it. No
part may hang, raise anything but a ClientError, keep a future pending, or be unable to close; each error says where.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest

from segstore.client import Client, TableConfig, connect
from segstore.client.connection import Endpoint
from segstore.client.errors import ClientError, ConnectFailed, NoSuchStream, RetriesExhausted, TransactionOver
from segstore.client.retry import Backoff
from segstore.client.stream import StateSynchronizer
from segstore.server.cluster import MockCluster
from segstore.wire import (
    AppendSetup,
    AuthTokenCheckFailed,
    AuthTokenErrorCode,
    Command,
    ConditionalCheckFailed,
    DataAppended,
    ErrorMessage,
    ErrorMessageCode,
    GetStreamSegmentInfo,
    Hello,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SegmentsMerged,
    StreamSegmentInfo,
    TableEntries,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableValue,
    WrongHost,
    decode,
    encode,
)
from tests.client.support import FAST, AddedUp, Listener, settings
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")

HANG_S: Final = 60.0
"""Nothing takes this long: all waits are set to a fraction of a second, and there are few attempts."""
READ_S: Final = 0.6
"""How long a reader waits for what may never come: a store that says that nothing is there is believed."""
SHORT: Final = {
    "request_timeout_ms": 60,
    "read_timeout_ms": 60,
    "close_timeout_ms": 150,
    "socket_connection_setup_timeout_ms": 300,
    "socket_connection_setup_timeout_max_ms": 300,
    "transaction_commit_timeout_ms": 500,
    "max_event_bytes": 2_000,
    "large_event_chunk_bytes": 1_500,
    "retry": Backoff(initial_ms=1, max_ms=3, jitter=0, max_attempts=3),
    "reconnect_backoff": FAST,
}
W: Final = UUID(int=7)
ENTRIES: Final = TableEntries([TableEntry(TableKey(b"kk", 9), TableValue(b"v"))])


def lies(request_id: int, segment: str, number: int, other: int) -> list[Command]:
    """Replies of all sorts to one request: some fit it in part, none is the store's."""
    return [
        AppendSetup(request_id, segment, W, number),
        DataAppended(request_id, W, number, other, number),
        ConditionalCheckFailed(W, number, request_id),
        SegmentAttribute(request_id, number),
        SegmentAttributeUpdated(request_id, True),
        WrongHost(request_id, segment, "nowhere:1"),
        SegmentIsSealed(request_id, segment, "", number),
        NoSuchSegment(request_id, segment),
        InvalidEventNumber(W, request_id),
        SegmentIsTruncated(request_id, segment, number, "", other),
        OperationUnsupported(request_id, "all of it"),
        AuthTokenCheckFailed(request_id, "", AuthTokenErrorCode.TOKEN_EXPIRED),
        AuthTokenCheckFailed(request_id, "", AuthTokenErrorCode.TOKEN_CHECK_FAILED),
        ErrorMessage(request_id, segment, "no", ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION),
        ErrorMessage(request_id, segment, "no", ErrorMessageCode.UNSPECIFIED),
        SegmentRead(segment, number, False, False, b"\0\0\0\0\0\0\0\1x", request_id),
        SegmentRead(segment, number, True, True, b"", request_id),
        SegmentRead("a/other/0", other, False, False, b"\xff" * 20, request_id),
        StreamSegmentInfo(request_id, segment, True, False, False, 0, number, other),
        SegmentCreated(request_id, segment),
        SegmentsMerged(request_id, segment, segment, number),
        TableEntriesUpdated(request_id, [number, other]),
        TableKeysRemoved(request_id, segment),
        TableRead(request_id, segment, ENTRIES),
        TableKeysRead(request_id, segment, [TableKey(b"kk", number)], b"t"),
        TableEntriesRead(request_id, segment, ENTRIES, b"t"),
        TableEntriesDeltaRead(request_id, segment, ENTRIES, False, False, number),
        TableKeyBadVersion(request_id, segment),
        TableKeyDoesNotExist(request_id, segment),
        GetStreamSegmentInfo(request_id, segment, ""),
        Hello(99, 98),
    ]


class Spoiler:
    """What becomes of the good store's frames on one connection."""

    def __init__(self, how: str, random: Random) -> None:
        self.how = how
        self.random = random
        self.good = random.choice([0, 1, 1, 2, 2, 3, 5])
        self.over = False

    def frame(self, data: bytes) -> tuple[bytes, bool]:
        """What is sent in place of a frame, and whether the connection ends then."""
        if self.over:
            return b"", False
        if self.good > 0:
            self.good -= 1
            return data, False
        spoilt: tuple[bytes, bool] = getattr(self, f"_{self.how}")(data)
        return spoilt

    def _garbage(self, data: bytes) -> tuple[bytes, bool]:
        self.over = True
        return self.random.randbytes(self.random.randrange(1, 60)), False

    def _long(self, data: bytes) -> tuple[bytes, bool]:
        self.over = True
        return data[:4] + self.random.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\xff\xff\xff"]), False

    def _half(self, data: bytes) -> tuple[bytes, bool]:
        self.over = True
        return data[: self.random.randrange(1, len(data))], False

    def _silence(self, data: bytes) -> tuple[bytes, bool]:
        self.over = True
        return b"", False

    def _close(self, data: bytes) -> tuple[bytes, bool]:
        return data[: self.random.randrange(len(data))], True

    def _flipped(self, data: bytes) -> tuple[bytes, bool]:
        spoilt = bytearray(data)
        for _ in range(self.random.choice([1, 1, 3, 10])):
            spoilt[self.random.randrange(8, len(data)) if len(data) > 8 else 3] ^= 1 << self.random.randrange(8)
        return bytes(spoilt), False

    def _twice(self, data: bytes) -> tuple[bytes, bool]:
        return data * 2, False

    def _lies(self, data: bytes) -> tuple[bytes, bool]:
        random = self.random
        if random.random() < 0.3:
            return data, False
        command = decode(data)
        request_id = getattr(command, "request_id", 0)
        if random.random() < 0.2:
            request_id = random.choice([0, -1, 1 << 32, request_id + 1, request_id ^ 1 << 32])
        number, other = random.choice([-(2**63), -1, 0, 1, 5, 2**63 - 1]), random.choice([-1, 0, 3])
        told = random.choice(lies(request_id, getattr(command, "segment", "a/s/0.#epoch.0"), number, other))
        if "writer_id" in told.__struct_fields__ and hasattr(command, "writer_id"):
            told = type(told).from_dict(told.to_dict() | {"writer_id": str(command.writer_id)})
        return encode(told), False


MODES: Final = ["garbage", "long", "half", "silence", "close", "flipped", "twice", "lies"]


class HostileStore(Listener):
    """Between a client and a good store."""

    def __init__(self, upstream: Endpoint, how: str, seed: int) -> None:
        super().__init__()
        self.connections = 0
        self._upstream = upstream
        self._how = how
        self._seed = seed

    def take_over(self, pravega: Client) -> None:
        """Has the client find all segments here."""

        async def endpoint_of(scope: str, stream: str, segment_id: int) -> Endpoint:
            return self.endpoint

        pravega.controller.endpoint_of = endpoint_of  # type: ignore[method-assign]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        spoiler = Spoiler(self._how, Random(f"{self._seed} {self._how} {self.connections}"))
        up: asyncio.Task[None] | None = None
        writers = [writer]
        try:
            good_reader, good_writer = await asyncio.open_connection(*self._upstream)
            writers.append(good_writer)
            up = self.start(self._pass_on(reader, good_writer))
            while True:
                head = await good_reader.readexactly(8)
                body = await good_reader.readexactly(int.from_bytes(head[4:]))
                data, ends = spoiler.frame(head + body)
                writer.write(data)
                if ends:
                    await writer.drain()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # either side may hang up
        finally:
            if up is not None:
                up.cancel()
            for each in writers:
                each.transport.abort()

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except ConnectionError:
            return  # either side may hang up
        finally:
            writer.transport.abort()


async def write_events(pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        acks = [await writer.submit(b"%d" % number, routing_key=f"{number}") for number in range(5)]
        await writer.flush()
        assert all(ack.done() for ack in acks)


async def write_large_events(pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        await writer.write(b"small")
        await writer.write(b"large" * 1_000)


async def read_events(pravega: Client) -> None:
    async with pravega.event_reader("a", "s") as events:
        for _ in range(6):
            await soon(events.read())


async def write_and_read_bytes(pravega: Client) -> None:
    async with pravega.byte_writer("a", "b") as writer:
        await writer.append(b"x" * 5_000)
        await writer.flush()
        await writer.truncate(1)
    async with pravega.byte_reader("a", "b") as reader:
        await soon(reader.read(10))
        await reader.seek(2)
        await soon(reader.read(10))


async def use_a_table(pravega: Client) -> None:
    async with pravega.table("a", "t") as table:
        version = await table.put(b"kk", b"v")
        await table.put(b"kk", b"w", version=version)
        await table.get_all([b"kk", b"ll"])
        await table.exists(b"kk")
        async for _ in table.entries(page=1):
            pass
        await table.remove(b"kk")


async def use_a_transaction(pravega: Client) -> None:
    async with pravega.transaction_writer("a", "s") as writer, writer.begin(lease_ms=10_000) as transaction:
        for number in range(4):
            await transaction.write(b"%d" % number, routing_key=f"{number}")


async def use_a_revisioned_stream(pravega: Client) -> None:
    async with pravega.revisioned_stream("a", "r") as stream:
        revision = await stream.latest()
        await stream.write_conditionally(revision, b"entry")
        await stream.write(b"another")
        await stream.compare_and_set_mark(None, revision)
        await stream.mark()
        async for _ in stream.read(await stream.oldest()):
            pass


async def synchronise(pravega: Client) -> None:
    async with StateSynchronizer(pravega.revisioned_stream("a", "r2"), AddedUp()) as shared:
        await shared.initialise(b"begin")
        await shared.update(lambda state: [b"+"])
        await shared.compact()


async def use_a_reader_group(pravega: Client) -> None:
    async with pravega.reader_group("a", f"g{id(pravega)}", streams=["s"], refresh_ms=20) as group:
        async with group.reader("one") as reader:
            for _ in range(2):
                await soon(reader.read())
        await group.delete()


async def soon(read: Awaitable[Any]) -> None:
    """Waits for what may never come, no longer than a patient user would."""
    try:
        async with asyncio.timeout(READ_S):
            await read
    except TimeoutError:
        pass  # a store that says that nothing is there to read is believed


PARTS: Final = [
    write_events,
    write_large_events,
    read_events,
    write_and_read_bytes,
    use_a_table,
    use_a_transaction,
    use_a_revisioned_stream,
    synchronise,
    use_a_reader_group,
]


@asynccontextmanager
async def good_cluster() -> AsyncIterator[MockCluster]:
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await pravega.controller.create_scope("a")
        for stream, segments in (("s", 2), ("b", 1), ("r", 1), ("r2", 1)):
            await pravega.controller.create_stream("a", stream, segments=segments)
        await pravega.controller.create_table("a", "t", TableConfig(partitions=2, primary_key_bytes=2))
        async with pravega.event_writer("a", "s") as writer:
            for number in range(6):
                await writer.write(b"%d" % number, routing_key=f"{number}")
        yield mock


async def error_of(what: Awaitable[Any]) -> ClientError | None:
    try:
        await what
    except ClientError as error:
        return error
    return None


def says_where(error: BaseException) -> bool:
    """Whether an error, or what caused it, names an endpoint and a segment or stream."""
    facts: dict[str, Any] = {}
    each: BaseException | None = error
    while each is not None:
        facts |= each.facts() if isinstance(each, ClientError) else {}
        each = each.__cause__
    return bool(facts.keys() & {"segment", "stream"}) or "endpoint" in facts


@looped("how", MODES)
@looped("part", PARTS)
async def test_whatever_a_store_says_a_part_ends_with_a_result_or_an_error_that_says_where(
    part: Callable[[Client], Awaitable[None]], how: str
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        # gRPC's poller finds at times that another of its threads has read what woke it, and says so here.
        lambda _, context: None if "PollerCompletionQueue" in context["message"] else complaints.append(context)
    )
    async with good_cluster() as mock, HostileStore(Endpoint(*mock.address), how, 0) as hostile:
        pravega = connect(f"tcp://{mock.controller_uri}", settings(**SHORT, username=None))
        async with asyncio.timeout(HANG_S):
            async with pravega:
                hostile.take_over(pravega)
                pravega._channels._settings = settings()  # the controller is a good one, and has its time
                error = await error_of(part(pravega))
            assert error is None or says_where(error), repr(error)
            assert error is None or error.advice in error.__notes__[0]
            after = pravega.metrics()
        assert (after.connections, after.connecting, after.flows, after.bytes_in_flight) == (0, 0, 0, 0)
        assert hostile.connections > 0
    assert not complaints, complaints


async def test_a_store_that_cannot_be_reached_is_named_with_the_segment() -> None:
    few = Backoff(initial_ms=1, max_ms=1, jitter=0, max_attempts=2)
    async with good_cluster() as mock, connect(f"tcp://{mock.controller_uri}", settings(retry=few)) as pravega:

        async def nowhere(scope: str, stream: str, segment_id: int) -> Endpoint:
            return Endpoint("127.0.0.1", 1)

        pravega.controller.endpoint_of = nowhere  # type: ignore[method-assign]
        async with pravega.table("a", "t") as table:
            with pytest.raises(RetriesExhausted) as caught:
                await table.get(b"kk")
        error = caught.value
        assert (error.endpoint, error.actual) == ("127.0.0.1:1", 2)
        assert error.segment is not None
        assert error.segment in str(error)
        assert "127.0.0.1:1" in str(error)
        assert isinstance(error.__cause__, ConnectFailed)


async def test_a_stream_that_vanishes_ends_its_writer_and_its_reader() -> None:
    few = Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=3)
    async with good_cluster() as mock, connect(f"tcp://{mock.controller_uri}", settings(retry=few)) as pravega:
        writer, events = pravega.event_writer("a", "s"), pravega.event_reader("a", "s", from_="tail")
        await writer.open()
        await events.open()
        transaction = pravega.transaction_writer("a", "s").begin()
        await transaction.open()
        reading = asyncio.ensure_future(events.read())
        await writer.write(b"x", routing_key="k")
        await reading
        reading = asyncio.ensure_future(events.read())
        await pravega.controller.seal_stream("a", "s")
        await pravega.controller.delete_stream("a", "s")
        async with asyncio.timeout(HANG_S):
            problems = await asyncio.gather(
                writer.write(b"y", routing_key="k"), reading, transaction.write(b"z"), return_exceptions=True
            )
            assert isinstance(problems[0], (NoSuchStream, RetriesExhausted)), problems
            assert problems[1] is None or isinstance(problems[1], ClientError), problems
            assert isinstance(problems[2], (TransactionOver, RetriesExhausted)), problems
            await writer.aclose()
            await events.aclose()
            await transaction.leave()
        with pytest.raises(NoSuchStream):
            await pravega.event_writer("a", "s").open()


@looped("how", ["silence", "half"])
async def test_closing_ends_by_its_deadline_although_the_store_says_nothing_more(how: str) -> None:
    async with good_cluster() as mock, HostileStore(Endpoint(*mock.address), how, 4) as hostile:
        patient = SHORT | {"request_timeout_ms": 60_000, "read_timeout_ms": 60_000}
        async with connect(f"tcp://{mock.controller_uri}", settings(**patient)) as pravega:
            hostile.take_over(pravega)
            async with asyncio.timeout(HANG_S):
                writer = pravega.event_writer("a", "s", lazy_start=True)
                await asyncio.wait({opening := asyncio.ensure_future(writer.open())}, timeout=0.05)
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                acks: list[asyncio.Future[None]] = []
                try:
                    acks += [await writer.submit(b"x") for _ in range(3)]
                    await writer.aclose()
                except ClientError:
                    await writer.abort()
                events = pravega.event_reader("a", "s")
                await events.open()
                reading = asyncio.ensure_future(events.read())
                await asyncio.wait({reading}, timeout=0.03)
                await events.aclose()
                await asyncio.gather(reading, return_exceptions=True)
                assert all(ack.done() for ack in (*acks, reading))
