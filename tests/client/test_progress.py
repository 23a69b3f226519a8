"""Peers that answer but make no progress: the number of requests is bounded, and they end with an error."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from segstore.client.attempts import HELD_S
from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore
from segstore.client.controller import Cluster, Controller, ControllerChannels, name_of
from segstore.client.controller.channels import NodeResponse
from segstore.client.errors import NoSuchTable, PeerRefused, ProtocolViolation, RetriesExhausted
from segstore.client.groups import GroupReader
from segstore.client.groups import reader as group_reader
from segstore.client.groups.positions import lag_of, read_before
from segstore.client.groups.shared import SharedGroup
from segstore.client.groups.state import Draft
from segstore.client.groups.table import GroupTable
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentReader, SegmentWriter, WriterState
from segstore.client.segment import reader as segment_reader
from segstore.client.stream import (
    ByteReader,
    EventReader,
    EventWriter,
    RevisionedStream,
    StateSynchronizer,
    event_reader,
    event_writer,
    frame_event,
    stream_client,
)
from segstore.wire import (
    AppendBlockEnd,
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    ErrorMessage,
    ErrorMessageCode,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    NoSuchSegment,
    ReadSegment,
    ReadTableEntriesDelta,
    SegmentAttribute,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntriesDeltaRead,
    TableEntry,
    TableKey,
    TableValue,
    WrongHost,
)
from segstore.wire.controller_api import messages as m
from segstore.wire.names import segment_id
from segstore.wire.reader_groups import GroupConfig, GroupState, InitialState, encode_key
from segstore.wire.revisioned import encode_initial
from tests.client.segments import stores_all
from tests.client.support import AddedUp, ScriptedPeer, ScriptedStore, settings, until
from tests.looped import looped

ATTEMPTS = 5
FEW = settings(retry=Backoff(initial_ms=1, max_ms=1, jitter=0, max_attempts=ATTEMPTS), read_timeout_ms=60_000)
SEGMENT = "a/s/0.#epoch.0"
HANG_S = 60.0

Follows = Callable[[int], list[int]]
"""Returns the successors of a segment id."""


class LyingController:
    """Channels to a controller that returns the successors given by a test, and counts the calls."""

    def __init__(self, follows: Follows = lambda _: [], pages: Iterator[str] | None = None) -> None:
        self.asked = 0
        self._follows = follows
        self._pages = pages or iter(())

    @property
    def controller(self) -> Controller:
        return Controller(cast("ControllerChannels", self))

    async def ask(self, method: str, request: Any) -> NodeResponse:
        return NodeResponse(await self._message(method, request), Endpoint("liar", 1))

    async def _message(self, method: str, request: Any) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        match method:
            case "getSegmentsImmediatelyFollowing":
                whose = request.segmentId
                entries = m.SuccessorResponse.SegmentEntry
                found = [entries(segment=_range(follow), value=[whose]) for follow in self._follows(whose)]
                return m.SuccessorResponse(segments=found)
            case "getCurrentSegments":
                return m.SegmentRanges(segmentRanges=[_range(0)])
            case "getSegments":
                return m.SegmentsAtTime(segments=[m.SegmentsAtTime.SegmentLocation(segmentId=_id(0), offset=0)])
            case "listScopes":
                return m.ScopesResponse(scopes=["x"], continuationToken=self._token())
            case "listStreamsInScope":
                return m.StreamsInScopeResponse(streams=[m.StreamInfo(stream="x")], continuationToken=self._token())
            case "listKeyValueTablesInScope":
                tables = [m.KeyValueTableInfo(kvtName="x")]
                return m.KVTablesInScopeResponse(kvtables=tables, continuationToken=self._token())
        raise AssertionError(method)

    def _token(self) -> m.ContinuationToken:
        return m.ContinuationToken(token=next(self._pages))


def _id(identifier: int) -> m.SegmentId:
    return m.SegmentId(streamInfo=m.StreamInfo(scope="a", stream="s"), segmentId=identifier)


def _range(identifier: int) -> m.SegmentRange:
    return m.SegmentRange(segmentId=_id(identifier), minKey=0.0, maxKey=1.0)


def ended(peer: ScriptedPeer, command: Command) -> None:
    """A store whose segments are all sealed and empty."""
    match command:
        case SetupAppend(request_id=request_id, segment=segment):
            peer.send(SegmentIsSealed(request_id, segment, "", 0))
        case ReadSegment(segment=segment, offset=offset, request_id=request_id):
            peer.send(SegmentRead(segment, offset, False, True, b"", request_id))
        case GetStreamSegmentInfo(request_id=request_id, segment_name=segment):
            peer.send(StreamSegmentInfo(request_id, segment, True, True, False, 1, 0, 0))


@asynccontextmanager
async def store_of(
    script: Callable[[ScriptedPeer, Command], None], config: ClientSettings = FEW
) -> AsyncIterator[tuple[ScriptedStore, ConnectionPool, FixedStore]]:
    async with ScriptedStore(script) as store, ConnectionPool(config) as pool, asyncio.timeout(HANG_S):
        yield store, pool, FixedStore(store.endpoint)


def got(store: ScriptedStore, kind: type[Command]) -> int:
    """The number of commands of a type that a store received."""
    return sum(isinstance(each, kind) for peer in store.peers for each in peer.got)


User = Callable[[ConnectionPool, Controller, FixedStore], Awaitable[None]]


async def write(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    writer = EventWriter(Cluster(pool, controller, store), "a", "s", lazy_start=True)
    try:
        await writer.open()
        await writer.write(b"x")
    finally:
        await writer.abort()


async def read(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    async with EventReader(Cluster(pool, controller, store), "a", "s") as reader:
        await reader.read()


class Group:
    """The state of a reader group of one reader, in memory."""

    group = "a/g"
    facts: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.state = GroupState()
        self.state.apply(InitialState(GroupConfig({"a/s": {}}, refresh_ms=1), {SEGMENT: 0}, {}))

    async def fetch(self) -> GroupState:
        return self.state

    async def change(self, decide: Callable[[Draft], Any]) -> Any:
        await asyncio.sleep(0)
        draft = Draft(self.group, self.state)
        decided = decide(draft)
        self.state = draft.state
        return decided

    async def change_or_undo(self, decide: Callable[[Draft], Any], *_: object) -> Any:
        return await self.change(decide)

    async def compact_if_due(self) -> None: ...

    async def aclose(self) -> None: ...


async def read_in_a_group(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    async with GroupReader(Cluster(pool, controller, store), cast("SharedGroup", Group()), "r") as reader:
        await reader.read()


async def measure_the_lag(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    await lag_of(Cluster(pool, controller, store), Group().state)


async def find_read_segments(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    await read_before(Cluster(pool, controller, store), [SEGMENT], {})


USERS = [write, read, read_in_a_group]


def of(epoch: int) -> int:
    return segment_id(epoch, 0)


@looped("user", USERS)
@looped("circle", [[0], [0, 1], [0, 1, 2, 3], [0, 2, 1, 3]])
async def test_successors_in_a_circle_are_an_error(circle: list[int], user: User) -> None:
    ids = [of(epoch) for epoch in circle]
    liar = LyingController(lambda each: [ids[(ids.index(each) + 1) % len(ids)]])
    async with store_of(ended) as (_, pool, store):
        with pytest.raises(ProtocolViolation, match=r"says that a/s/0\.#epoch\.\d follows .* not of an earlier epoch"):
            await user(pool, liar.controller, store)
    assert liar.asked <= 2 * len(circle) + 1


def missing(peer: ScriptedPeer, command: Command) -> None:
    """A store without segments."""
    if isinstance(command, SetupAppend | ReadSegment):
        peer.send(NoSuchSegment(command.request_id, command.segment, "", 0))


def sealed_before_an_event(peer: ScriptedPeer, command: Command) -> None:
    """A store whose segments are sealed as soon as an event comes."""
    match command:
        case SetupAppend(request_id=request_id, segment=segment, writer_id=writer_id):
            peer.send(AppendSetup(request_id, segment, writer_id, -(2**63)))
        case AppendBlockEnd(request_id=request_id):
            peer.send(SegmentIsSealed(request_id, "", "", 0))


@looped(
    ("user", "script"),
    [
        (write, ended),
        (write, missing),
        (write, sealed_before_an_event),
        (read, ended),
        (read_in_a_group, ended),
        (read_in_a_group, missing),
        (measure_the_lag, ended),
        (find_read_segments, ended),
    ],
)
async def test_successors_without_end_are_followed_until_the_recovery_deadline(
    user: User, script: Callable[[ScriptedPeer, Command], None]
) -> None:
    followed: list[int] = []

    def follows(each: int) -> list[int]:
        followed.append(each)
        return [each + of(1)]

    liar = LyingController(follows)
    async with store_of(script, settings(recovery_timeout_ms=500)) as (_, pool, store):
        with pytest.raises(RetriesExhausted, match="nothing was read from or stored in any of them") as caught:
            await user(pool, liar.controller, store)
    assert caught.value.details["bounded_by"] == "recovery_timeout_ms"
    assert followed == [of(epoch) for epoch in range(len(followed))]
    assert caught.value.segment == name_of("a", "s", of(len(followed)))


@looped("user", USERS)
async def test_many_empty_segments_lead_to_the_event_behind_them(user: User) -> None:
    last = of(300)

    def script(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend | ReadSegment) and command.segment != name_of("a", "s", last):
            ended(peer, command)
        elif isinstance(command, ReadSegment) and command.offset == 0:
            peer.send(SegmentRead(command.segment, 0, False, False, frame_event(b"x"), command.request_id))
        else:
            stores_all(peer, command)

    liar = LyingController(lambda each: [each + of(1)])
    async with store_of(script) as (_, pool, store):
        await user(pool, liar.controller, store)
    assert liar.asked >= 300


class Hops(LyingController):
    """A controller whose segments all have a successor, and a clock that each search for it advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(self._next)
        self.now_s = 1_000.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, time=time.time)
        for module in (stream_client, segment_reader, event_reader, event_writer, group_reader):
            monkeypatch.setattr(module, "time", clock)

    def _next(self, segment: int) -> list[int]:
        self.now_s += 50
        return [segment + of(1)]


READERS: list[Callable[[Cluster], EventReader | GroupReader]] = [
    lambda cluster: EventReader(cluster, "a", "s"),
    lambda cluster: GroupReader(cluster, cast("SharedGroup", Group()), "r"),
]


@looped("reader_of", READERS)
async def test_events_and_open_segments_are_progress_of_a_reader(
    reader_of: Callable[[Cluster], EventReader | GroupReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = Hops(monkeypatch)

    def script(peer: ScriptedPeer, command: Command) -> None:
        """Of four segments in a row, one has an event, one stays open for a while, and two are empty."""
        assert isinstance(command, ReadSegment)
        kind = hops.asked % 4
        if kind == 3:
            hops.now_s += HELD_S
        has_event = kind == 1 and command.offset == 0
        data = frame_event(b"x") if has_event else b""
        peer.send(SegmentRead(command.segment, command.offset, False, not has_event, data, command.request_id))

    async with (
        store_of(script, settings(recovery_timeout_ms=120_000)) as (_, pool, store),
        reader_of(Cluster(pool, hops.controller, store)) as reader,
    ):
        for _ in range(10):
            assert await reader.read() is not None


@looped(
    "truncated",
    [
        lambda read: NoSuchSegment(read.request_id, read.segment, "", read.offset),
        lambda read: SegmentIsTruncated(read.request_id, read.segment, 100, "", read.offset),
    ],
)
async def test_events_before_a_truncation_are_progress_of_a_reader_in_a_group(
    truncated: Callable[[ReadSegment], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = Hops(monkeypatch)

    def script(peer: ScriptedPeer, command: Command) -> None:
        """Each segment has an event. While the user handles it, the segment is truncated to its end, or deleted."""
        assert isinstance(command, ReadSegment)
        request_id, segment, offset = command.request_id, command.segment, command.offset
        if offset in (0, 100):
            data = b"" if offset else frame_event(b"x")
            peer.send(SegmentRead(segment, offset, False, not data, data, request_id))
        else:
            hops.now_s += 500
            peer.send(truncated(command))

    async with (
        store_of(script, settings(recovery_timeout_ms=120_000)) as (_, pool, store),
        READERS[1](Cluster(pool, hops.controller, store)) as reader,
    ):
        for _ in range(3):
            assert await reader.read() is not None


@looped("lazy_start", [False, True])
async def test_stored_events_are_progress_of_a_writer(lazy_start: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hops = Hops(monkeypatch)

    def script(peer: ScriptedPeer, command: Command) -> None:
        """Every other segment is sealed before it is set up, the other segments once they have an event."""
        if isinstance(command, SetupAppend) and hops.asked % 2 == 0:
            ended(peer, command)
        elif isinstance(command, AppendBlockEnd) and command.last_event_number > 1:
            peer.send(SegmentIsSealed(command.request_id, "", "", 0))
        else:
            stores_all(peer, command)

    async with (
        store_of(script, settings(recovery_timeout_ms=120_000)) as (_, pool, store),
        EventWriter(Cluster(pool, hops.controller, store), "a", "s", lazy_start=lazy_start) as writer,
    ):
        for _ in range(10):
            hops.now_s += 1_000  # nothing is written for a while
            await writer.write(b"x")
    assert hops.asked > 10


def empty(*, at_tail: bool, length: int = 0, sealed: bool = False) -> Callable[[ScriptedPeer, Command], None]:
    """A store that answers reads at once, without data."""

    def script(peer: ScriptedPeer, command: Command) -> None:
        match command:
            case ReadSegment(segment=segment, offset=offset, request_id=request_id):
                peer.send(SegmentRead(segment, offset, at_tail, sealed, b"", request_id))
            case GetStreamSegmentInfo(request_id=request_id, segment_name=segment):
                peer.send(StreamSegmentInfo(request_id, segment, True, sealed, False, 1, length, 0))

    return script


async def read_a_segment(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    async with SegmentReader(pool, store, SEGMENT) as reader:
        await reader.read()


async def read_bytes(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    async with ByteReader(Cluster(pool, controller, store), "a", "s") as reader:
        await reader.read()


async def read_bytes_at(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    async with ByteReader(Cluster(pool, controller, store), "a", "s") as reader:
        await reader.read_at(0, 10)


async def read_revisions(pool: ConnectionPool, controller: Controller, store: FixedStore) -> None:
    stream = RevisionedStream(pool, store, SEGMENT)
    async for _ in stream.read(await stream.oldest()):
        pass


@looped("user", [read_a_segment, read, read_in_a_group, read_bytes, read_bytes_at, read_revisions])
async def test_a_read_that_brings_nothing_where_data_is_counts_as_failed(user: User) -> None:
    async with store_of(empty(at_tail=False, length=10)) as (peer, pool, store):
        with pytest.raises(RetriesExhausted) as caught:
            await user(pool, LyingController().controller, store)
        assert isinstance(caught.value.__cause__, PeerRefused)
        assert "returned nothing for a read of" in caught.value.message
        assert got(peer, ReadSegment) == ATTEMPTS


@looped("user", [read_bytes_at, read_revisions])
@looped("sealed", [False, True])
async def test_reads_from_a_store_that_denies_its_data_are_bounded(user: User, sealed: bool) -> None:
    async with store_of(empty(at_tail=True, length=10, sealed=sealed)) as (peer, pool, store):
        with pytest.raises(ProtocolViolation if sealed else RetriesExhausted):
            await user(pool, LyingController().controller, store)
        assert got(peer, ReadSegment) == (1 if sealed else ATTEMPTS)


async def test_reads_that_do_not_wait_at_the_tail_are_repeated_with_growing_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)

    async with store_of(empty(at_tail=True)) as (peer, pool, store):
        reader = SegmentReader(pool, store, SEGMENT)
        await reader.read()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: reader._asked_s)  # answers take no time
        monkeypatch.setattr(asyncio, "sleep", sleep)
        for _ in range(20):
            chunk = await reader.read()
            assert chunk.at_tail
            assert not chunk.data
        monkeypatch.undo()
        reader.close()
        assert got(peer, ReadSegment) == 21, "there is no read-ahead"
    assert [0.8 * 0.005 * 2**failed <= pause_s <= 0.5 for failed, pause_s in enumerate(pauses[:6])] == [True] * 6
    assert min(pauses[8:]) >= 0.4


async def test_a_segment_that_starts_later_with_each_read_is_no_progress() -> None:
    starts = count(1)

    def script(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, ReadSegment):
            start = next(starts)
            peer.send(SegmentIsTruncated(command.request_id, command.segment, start, "", command.offset))

    async with store_of(script) as (peer, pool, store):
        with pytest.raises(RetriesExhausted, match=f"reading {SEGMENT} failed {ATTEMPTS} times"):
            await read_in_a_group(pool, LyingController().controller, store)
        assert got(peer, ReadSegment) == ATTEMPTS


LISTS: list[Callable[[Controller], AsyncIterator[str]]] = [
    lambda controller: controller.list_scopes(),
    lambda controller: controller.list_streams("a"),
    lambda controller: controller.list_tables("a"),
]


@looped("names", LISTS)
@looped("tokens", [[""], ["1", "1"], ["1", "2", ""], ["1", "2", "3", "2"]])
async def test_a_page_token_that_was_requested_before_is_an_error(
    names: Callable[[Controller], AsyncIterator[str]], tokens: list[str]
) -> None:
    liar = LyingController(pages=iter(tokens))
    with pytest.raises(ProtocolViolation, match=rf"repeats token '{tokens[-1]}' of list"):
        async for _ in names(liar.controller):
            pass
    assert liar.asked == len(tokens)


async def no_table(scope: str, table: str) -> None:
    raise NoSuchTable(f"table {scope}/{table}: none")


@looped("goes", ["nowhere", "back", "to the beginning"])
async def test_a_table_whose_log_goes_on_from_where_it_was_is_an_error(goes: str) -> None:
    entries = TableEntries([TableEntry(TableKey(encode_key("x", None), 1), TableValue(b""))])

    def script(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, ReadTableEntriesDelta)
        request_id, segment, at = command.request_id, command.segment, command.from_position
        if goes == "to the beginning" and at:
            code = ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION
            peer.send(ErrorMessage(request_id, segment, "that is no position", code))
            return
        position = {"nowhere": at, "back": at - 1}.get(goes, 100) if at else 100
        peer.send(TableEntriesDeltaRead(request_id, segment, entries, False, False, position))

    async with store_of(script) as (peer, pool, store):
        controller = SimpleNamespace(table_config=no_table)
        cluster = Cluster(pool, cast("Controller", controller), store)
        table = GroupTable(cluster, store, "a", "g", recovers=False)
        with pytest.raises(PeerRefused if goes == "to the beginning" else ProtocolViolation):
            await table.fetch()
        await table.aclose()
        assert got(peer, ReadTableEntriesDelta) <= 4


async def test_an_idle_writer_whose_set_ups_are_always_revoked_gives_up() -> None:
    def script(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(
                AppendSetup(command.request_id, command.segment, command.writer_id, -(2**63)),
                WrongHost(command.request_id, command.segment, "", ""),
            )

    async with store_of(script) as (peer, pool, store):
        writer = SegmentWriter(pool, store, SEGMENT)
        try:
            await until(lambda: writer.state is WriterState.FAILED)
            with pytest.raises(RetriesExhausted):
                await writer.write(b"x")
        finally:
            await writer.abort()
        assert got(peer, SetupAppend) == ATTEMPTS


Sync = StateSynchronizer[bytes]
CHANGES: list[Callable[[Sync], Awaitable[object]]] = [
    lambda shared: shared.update(lambda _: [b"+"]),
    lambda shared: shared.compact(),
]


@looped("change", CHANGES)
async def test_a_state_that_cannot_be_changed_and_has_not_changed_is_no_progress(
    change: Callable[[Sync], Awaitable[object]],
) -> None:
    record = encode_initial(b"begin")
    event = len(record).to_bytes(8) + record

    def script(peer: ScriptedPeer, command: Command) -> None:
        match command:
            case GetStreamSegmentInfo(request_id=request_id, segment_name=segment):
                peer.send(StreamSegmentInfo(request_id, segment, True, False, False, 1, len(event), 0))
            case GetSegmentAttribute(request_id=request_id):
                peer.send(SegmentAttribute(request_id, -(2**63)))
            case ReadSegment(segment=segment, offset=offset, request_id=request_id):
                peer.send(SegmentRead(segment, offset, False, False, event[offset:], request_id))
            case SetupAppend(request_id=request_id, segment=segment, writer_id=writer_id):
                peer.send(AppendSetup(request_id, segment, writer_id, -(2**63)))
            case ConditionalAppend(writer_id=writer_id, event_number=number, request_id=request_id):
                peer.send(ConditionalCheckFailed(writer_id, number, request_id))

    async with store_of(script) as (peer, pool, store):
        async with StateSynchronizer(RevisionedStream(pool, store, SEGMENT), AddedUp()) as shared:
            with pytest.raises(RetriesExhausted, match="the state in a/s"):
                await change(shared)
        assert got(peer, ConditionalAppend) == ATTEMPTS


async def test_a_state_whose_stream_starts_later_each_time_is_no_progress() -> None:
    starts = count()

    def script(peer: ScriptedPeer, command: Command) -> None:
        match command:
            case GetStreamSegmentInfo(request_id=request_id, segment_name=segment):
                peer.send(StreamSegmentInfo(request_id, segment, True, False, False, 1, 1_000, next(starts)))
            case GetSegmentAttribute(request_id=request_id):
                peer.send(SegmentAttribute(request_id, -(2**63)))

    async with (
        store_of(script) as (_, pool, store),
        StateSynchronizer(RevisionedStream(pool, store, SEGMENT), AddedUp()) as shared,
    ):
        with pytest.raises(RetriesExhausted, match=f"reading the state in {SEGMENT} failed {ATTEMPTS} times"):
            await shared.fetch()
