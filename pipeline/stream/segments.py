"""Opens and closes clients for Spark's tasks and driver.

Spark pickles what it sends to its executors, so nothing here is kept in a reader or a writer: a task says
`asyncio.run(…)` once, and inside it `opened(options)` gives what talks to the stores.

Invariant: a request that may be carried out twice, because its reply was lost, is one whose second time is harmless or
recognised. Refused: nothing of its own; errors are those of `segstore.client`, which name the segment and the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from uuid import UUID

from segstore.client import Client, connect
from segstore.client.connection import Locations, SegmentRequests
from segstore.client.controller import Access, Successor, name_of
from segstore.client.errors import NotSupported, PeerRefused, SegmentExists, SegmentMissing
from segstore.client.routing import SegmentRange
from segstore.client.segment import SegmentReader, SegmentWriter
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
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentsMerged,
    StreamSegmentInfo,
)

NO_VALUE: Final = -(1 << 63)
"""Of an attribute that is not there."""
_REPLACE_IF_EQUALS: Final = 4
_AT_ONCE: Final = 64
A = TypeVar("A")
T = TypeVar("T")


class DeadlinePassed(RuntimeError):
    """What was to be done in a time of its own was not. Attributes: option, the one that gives the time; timeout_ms."""

    def __init__(self, message: str, option: str, timeout_ms: int) -> None:
        super().__init__(message)
        self.option = option
        self.timeout_ms = timeout_ms


class Segments:
    """One stream's segments, by the stores' own requests. Made by `opened`."""

    def __init__(self, client: Client, locations: Locations, requests: SegmentRequests, options: StreamOptions) -> None:
        self.client = client
        self.locations = locations
        self.requests = requests
        self.scope: Final = options.scope
        self.stream: Final = options.stream

    def name_of(self, segment_id: int) -> str:
        """A segment's qualified name."""
        return name_of(self.scope, self.stream, segment_id)

    # --- the controller ---------------------------------------------------------------------------------------------

    async def current(self) -> list[SegmentRange]:
        """The segments that take events, in the order of the range; [] for a sealed stream. Raises NoSuchStream."""
        found = await self.client.controller.current_segments(self.scope, self.stream)
        return sorted(found, key=lambda each: each.low)

    async def tail(self) -> dict[int, int]:
        """Where the stream ends: segment id → length of those that take events; {} for a sealed stream."""
        current = await self.current()
        found = await in_turns(self.info, [each.name for each in current])
        return {each.segment_id: info.write_offset for each, info in zip(current, found, strict=True)}

    async def head(self) -> dict[int, int]:
        return await self.client.controller.head(self.scope, self.stream)

    async def successors(self, segment_id: int) -> list[Successor]:
        return await self.client.controller.successors(self.scope, self.stream, segment_id)

    async def epoch(self, number: int) -> list[SegmentRange]:
        return await self.client.controller.epoch_segments(self.scope, self.stream, number)

    # --- looking ----------------------------------------------------------------------------------------------------

    async def info(self, segment: str) -> StreamSegmentInfo:
        """Raises SegmentMissing."""
        return await self.requests.ask(segment, StreamSegmentInfo, lambda i, t: GetStreamSegmentInfo(i, segment, t))

    async def infos(self, segment_ids: Iterable[int]) -> dict[int, StreamSegmentInfo | None]:
        """Of each, None for one that there is not."""

        async def one(segment_id: int) -> StreamSegmentInfo | None:
            try:
                return await self.info(self.name_of(segment_id))
            except SegmentMissing:
                return None

        wanted = list(segment_ids)
        return dict(zip(wanted, await in_turns(one, wanted), strict=True))

    async def locate(self, segment: str, target: int) -> int | None:
        """The first offset of the index at or behind `target`, at which an event begins; None without an index."""
        try:
            found = await self.requests.ask(segment, OffsetLocated, lambda i, t: LocateOffset(i, segment, target, t))
        except (SegmentMissing, NotSupported, PeerRefused):
            return None
        return found.offset

    async def attribute(self, segment: str, attribute: UUID) -> int:
        """NO_VALUE where there is none. Raises SegmentMissing."""
        found = await self.requests.ask(
            segment, SegmentAttribute, lambda i, t: GetSegmentAttribute(i, segment, attribute, t)
        )
        return found.value

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create(self, segment: str) -> None:
        """A segment of its own, not of the stream; one that is there, of a request that was sent twice, is kept."""
        try:
            await self.requests.ask(segment, SegmentCreated, lambda i, t: CreateSegment(i, segment, 0, 0, t))
        except SegmentExists as error:
            if not error.details.get("retried"):
                raise

    async def delete(self, segment: str) -> bool:
        """Returns whether it was there."""
        try:
            await self.requests.ask(segment, SegmentDeleted, lambda i, t: DeleteSegment(i, segment, t))
        except SegmentMissing:
            return False
        return True

    async def merge(self, target: str, source: str) -> None:
        """Appends the whole of `source`, which is gone then. A source that is gone is no error: look at the length."""
        try:
            await self.requests.ask(target, SegmentsMerged, lambda i, t: MergeSegments(i, target, source, t))
        except SegmentMissing as error:
            if not error.details.get("retried"):
                raise

    async def merge_if(self, target: str, source: str, attribute: UUID, was: int, becomes: int) -> bool:
        """Merges and sets an attribute of the target, or neither; whether it did. Raises SegmentOver."""
        update = ConditionalAttributeUpdate(attribute, _REPLACE_IF_EQUALS, becomes, was)

        def ask(request_id: int, token: str) -> MergeSegments:
            return MergeSegments(request_id, target, source, token, (update,))

        answers: tuple[type[Command], ...] = (SegmentsMerged, SegmentAttributeUpdated)
        reply = await self.requests.ask(target, answers, ask)
        return isinstance(reply, SegmentsMerged)

    # --- bytes ------------------------------------------------------------------------------------------------------

    def reader(self, segment: str, offset: int = 0, *, read_ahead: bool = True, known_to: int = 0) -> SegmentReader:
        """Reads a segment from `offset` on. read_ahead, known_to: see `SegmentReader`."""
        pool, locations = self.client.pool, self.locations
        return SegmentReader(pool, locations, segment, offset, read_ahead=read_ahead, known_to=known_to)

    def writer(self, segment: str) -> SegmentWriter:
        return SegmentWriter(self.client.pool, self.locations, segment)


async def in_turns(ask: Callable[[A], Awaitable[T]], given: Iterable[A]) -> list[T]:
    """The answers, in order; not all questions are under way at once, or a stream of many segments would drown."""
    waiting = list(given)
    answers: list[T] = []
    while waiting:
        some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        answers += await asyncio.gather(*[ask(each) for each in some])
    return answers


@asynccontextmanager
async def opened(options: StreamOptions, access: Access) -> AsyncIterator[Segments]:
    """What talks to the stores, with tokens for `access`; closed at the end. Raises ValueError for a wrong address."""
    async with connect(options.controller, options.client_settings()) as client:
        locations = client.locations(access)
        async with SegmentRequests(client.pool, locations) as requests:
            yield Segments(client, locations, requests, options)


@asynccontextmanager
async def opened_for(options: StreamOptions, doing: str, option: str, timeout_ms: int) -> AsyncIterator[Segments]:
    """As `opened`, to write, with a deadline for all that is done in the block: whoever waits for it is a driver.

    Raises DeadlinePassed, which says what was being done (`doing`) and which option gives the time.
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
