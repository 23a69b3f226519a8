"""Opens and closes clients for Spark's tasks and driver.

Spark pickles the objects that it sends to executors, so readers and writers hold no clients: a task calls
`asyncio.run(…)` once and uses `opened(options)` inside it.

Invariant: a request that may be applied twice, because its reply was lost, is either idempotent or its repetition is
recognised. It raises the errors of `segstore.client`, which name the segment and the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from segstore.client import Client, connect
from segstore.client.connection import Locations, SegmentRequests
from segstore.client.controller import Access, Successor, name_of
from segstore.client.errors import NotSupported, PeerRefused, SegmentExists, SegmentMissing, SegmentTruncated
from segstore.client.routing import SegmentRange
from segstore.client.segment import SegmentReader, SegmentWriter
from segstore.client.stream import check_cut_with
from segstore.pipeline.stream.options import StreamOptions
from segstore.wire import (
    Command,
    ConditionalAttributeUpdate,
    CreateSegment,
    DeleteSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    LocateOffset,
    MergeSegments,
    OffsetLocated,
    ReadSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentRead,
    SegmentsMerged,
    StreamSegmentInfo,
)
from segstore.wire.names import index_name

NO_VALUE: Final = -(1 << 63)
"""The value of a missing attribute."""
_REPLACE_IF_EQUALS: Final = 4
_AT_ONCE: Final = 64
_INDEX_ENTRY: Final = Struct(">qqq")
A = TypeVar("A")
T = TypeVar("T")


class DeadlinePassed(RuntimeError):
    """An operation missed its deadline. Attributes: option, which sets the deadline; timeout_ms."""

    def __init__(self, message: str, option: str, timeout_ms: int) -> None:
        super().__init__(message)
        self.option = option
        self.timeout_ms = timeout_ms


class IndexEntry(NamedTuple):
    """An entry of a segment's index: its length and number of events at a time, in Unix ms."""

    length: int
    events: int
    time_ms: int


class Segments:
    """Requests about one stream's segments. Created by `opened`."""

    def __init__(self, client: Client, locations: Locations, requests: SegmentRequests, options: StreamOptions) -> None:
        self.client = client
        self.locations = locations
        self.requests = requests
        self.scope: Final = options.scope
        self.stream: Final = options.stream

    def name_of(self, segment_id: int) -> str:
        """Returns a segment's qualified name."""
        return name_of(self.scope, self.stream, segment_id)

    # --- the controller ---------------------------------------------------------------------------------------------

    async def current(self) -> list[SegmentRange]:
        """Returns the open segments in order of their ranges, [] for a sealed stream. Raises NoSuchStream."""
        segments = await self.client.controller.current_segments(self.scope, self.stream)
        return sorted(segments, key=lambda segment: segment.low)

    async def tail(self) -> dict[int, int]:
        """Returns the stream's tail: open segment id → length; {} for a sealed stream."""
        current = await self.current()
        infos = await gather_bounded(self.info, [segment.name for segment in current])
        return {segment.segment_id: info.write_offset for segment, info in zip(current, infos, strict=True)}

    async def head(self) -> dict[int, int]:
        return await self.client.controller.head(self.scope, self.stream)

    async def successors(self, segment_id: int) -> list[Successor]:
        return await self.client.controller.successors(self.scope, self.stream, segment_id)

    async def check(self, cut: Mapping[int, int]) -> None:
        """Raises CutError for a cut behind the end of a segment, or whose segments leave out keys or share them."""
        await check_cut_with(self.requests, self.client.controller, self.scope, self.stream, cut)

    async def epoch(self, number: int) -> list[SegmentRange]:
        return await self.client.controller.epoch_segments(self.scope, self.stream, number)

    # --- queries ----------------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> StreamSegmentInfo:
        """Returns a segment's properties. Raises SegmentMissing."""
        return await self.requests.ask(segment, StreamSegmentInfo, lambda i, t: GetStreamSegmentInfo(i, segment, t))

    async def find(self, segment: str) -> StreamSegmentInfo | None:
        """Returns a segment's properties, None for a missing segment."""
        try:
            return await self.info(segment)
        except SegmentMissing:
            return None

    async def infos(self, segment_ids: Iterable[int]) -> dict[int, StreamSegmentInfo | None]:
        """Returns the properties of each segment, None for a missing segment."""
        wanted = list(segment_ids)
        return dict(zip(wanted, await gather_bounded(self.find, map(self.name_of, wanted)), strict=True))

    async def locate(self, segment: str, target: int) -> int | None:
        """Returns the first index offset at or after `target`, where an event starts; None without an index."""
        try:
            located = await self.requests.ask(segment, OffsetLocated, lambda i, t: LocateOffset(i, segment, target, t))
        except (SegmentMissing, NotSupported, PeerRefused):
            return None
        return located.offset

    async def index_numbers(self, segment: str) -> tuple[int, int] | None:
        """Returns the numbers of the first entry in a segment's index and behind the last; None without an index."""
        try:
            info = await self.info(index_name(segment))
        except (SegmentMissing, NotSupported, PeerRefused):
            return None
        return -(-info.start_offset // _INDEX_ENTRY.size), info.write_offset // _INDEX_ENTRY.size

    async def index_entries(self, segment: str, number: int, most: int) -> list[IndexEntry]:
        """Returns at least one existing entry of a segment's index, from `number` on; [] if they were truncated."""
        data, size = b"", _INDEX_ENTRY.size
        while len(data) < size:
            try:
                data += await self.read(index_name(segment), number * size + len(data), most * size - len(data))
            except (SegmentMissing, SegmentTruncated, PeerRefused):
                return []
        return [IndexEntry(*entry) for entry in _INDEX_ENTRY.iter_unpack(data[: len(data) // size * size])]

    async def attribute(self, segment: str, attribute: UUID) -> int:
        """Returns an attribute, NO_VALUE if it is missing. Raises SegmentMissing."""
        reply = await self.requests.ask(
            segment, SegmentAttribute, lambda i, t: GetSegmentAttribute(i, segment, attribute, t)
        )
        return reply.value

    # --- changes ----------------------------------------------------------------------------------------------------

    async def create(self, segment: str) -> None:
        """Creates a task segment, which is not part of the stream. An existing segment, from a retry, is kept."""
        try:
            await self.requests.ask(segment, SegmentCreated, lambda i, t: CreateSegment(i, segment, 0, 0, t))
        except SegmentExists as error:
            if not error.details.get("retried"):
                raise

    async def delete(self, segment: str) -> bool:
        """Deletes a segment; returns whether it existed."""
        try:
            await self.requests.ask(segment, SegmentDeleted, lambda i, t: DeleteSegment(i, segment, t))
        except SegmentMissing:
            return False
        return True

    async def merge(self, target: str, source: str) -> None:
        """Merges `source` into the target and deletes it. A missing source is not an error: check the length."""
        try:
            await self.requests.ask(target, SegmentsMerged, lambda i, t: MergeSegments(i, target, source, t))
        except SegmentMissing as error:
            if not error.details.get("retried"):
                raise

    async def merge_if(self, target: str, source: str, attribute: UUID, was: int, becomes: int) -> bool:
        """Atomically merges and sets an attribute of the target; returns whether it did.

        Raises SegmentSealed and SegmentMissing.
        """
        update = ConditionalAttributeUpdate(attribute, _REPLACE_IF_EQUALS, becomes, was)

        def ask(request_id: int, token: str) -> MergeSegments:
            return MergeSegments(request_id, target, source, token, (update,))

        answers: tuple[type[Command], ...] = (SegmentsMerged, SegmentAttributeUpdated)
        reply = await self.requests.ask(target, answers, ask)
        return isinstance(reply, SegmentsMerged)

    # --- bytes ------------------------------------------------------------------------------------------------------

    async def read(self, segment: str, offset: int, size: int) -> bytes:
        """Returns existing data, at most `size` bytes. Raises SegmentMissing and SegmentTruncated."""

        def ask(request_id: int, token: str) -> ReadSegment:
            return ReadSegment(segment, offset, size, token, request_id)

        return bytes((await self.requests.ask(segment, SegmentRead, ask)).data)[:size]

    def reader(self, segment: str, offset: int = 0, *, read_ahead: bool = True, known_to: int = 0) -> SegmentReader:
        """Reads a segment from `offset` on. read_ahead, known_to: see `SegmentReader`."""
        pool, locations = self.client.pool, self.locations
        return SegmentReader(pool, locations, segment, offset, read_ahead=read_ahead, known_to=known_to)

    def writer(self, segment: str) -> SegmentWriter:
        return SegmentWriter(self.client.pool, self.locations, segment)


async def gather_bounded(ask: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Returns the results in order, with bounded concurrency, because a stream may have many segments."""
    waiting = list(items)
    answers: list[T] = []
    while waiting:
        some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        answers += await asyncio.gather(*[ask(item) for item in some])
    return answers


@asynccontextmanager
async def opened(options: StreamOptions, access: Access) -> AsyncIterator[Segments]:
    """Yields requests with tokens for `access`, which are renewed, and closes them on exit.

    Raises ValueError for an invalid address.
    """
    async with connect(options.controller, options.client_settings()) as client:
        locations = client.locations(access)
        async with SegmentRequests(client.pool, locations) as requests:
            yield Segments(client, locations, requests, options)


@asynccontextmanager
async def opened_for(options: StreamOptions, doing: str, option: str, timeout_ms: int) -> AsyncIterator[Segments]:
    """Like `opened`, for writing, with a deadline for the whole block, because a driver waits for it.

    Raises DeadlinePassed, which names the operation (`doing`) and the option that sets the deadline.
    """
    deadline = asyncio.timeout(timeout_ms / 1000)
    try:
        async with deadline, opened(options, "WRITE") as segments:
            yield segments
    except TimeoutError as cause:
        if not deadline.expired():
            raise
        raise DeadlinePassed(
            f"{doing} did not end within the {timeout_ms} ms of {option}: does {options.controller} answer, and the "
            f"stores of {options.name}?",
            option,
            timeout_ms,
        ) from cause
