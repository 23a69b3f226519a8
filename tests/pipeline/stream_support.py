"""A stream, its scaling and its events, for the tests of the pipeline's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import UUID

from segstore.client import StreamEvent, connect
from segstore.client.stream import FramedEvent
from segstore.pipeline.stream.commit import BatchCommitter
from segstore.pipeline.stream.options import StreamOptions, read_stream_options
from segstore.pipeline.stream.segments import Segments, opened
from segstore.pipeline.stream.write import Rows, TaskResult, write_rows
from tests.pipeline.memory_stream import MemorySegments, MemoryStream

__all__ = [
    "QUERY",
    "SCOPE",
    "STREAM",
    "Where",
    "batch_of",
    "every_event",
    "make_stream",
    "options",
    "rows",
    "scale",
    "task",
    "using",
    "write_events",
]

SCOPE, STREAM = "s", "out"
QUERY = UUID("6f1b1f0e-5a3c-4d55-9d0b-6e8a3a1f2c47")
_PATIENCE_S = 90.0


Where = str | MemoryStream
"""A cluster by its controller's URI, or a stream without one. What is done with either is the same."""


def options(uri: Where, **more: str) -> StreamOptions:
    controller = uri if isinstance(uri, str) else "tcp://memory:1"
    return read_stream_options({"controller": controller, "scope": SCOPE, "stream": STREAM, **more})


@asynccontextmanager
async def using(uri: Where, **more: str) -> AsyncIterator[Segments]:
    if isinstance(uri, MemoryStream):
        yield MemorySegments(uri, options(uri, **more))
        return
    async with opened(options(uri, **more), "READ_WRITE") as segments:
        yield segments


async def make_stream(uri: str, segments: int = 1, stream: str = STREAM) -> None:
    async with connect(uri) as pravega:
        await pravega.controller.create_scope(SCOPE)
        await pravega.controller.create_stream(SCOPE, stream, segments=segments)


async def scale(uri: Where, parts: int, stream: str = STREAM) -> None:
    """All segments give way to so many others; returns when they have."""
    if isinstance(uri, MemoryStream):
        uri.scale(parts)
        return
    async with connect(uri) as pravega, asyncio.timeout(_PATIENCE_S):
        now = await pravega.controller.current_segments(SCOPE, stream)
        edges = [number / parts for number in range(parts + 1)]
        old = {each.segment_id for each in now}
        await pravega.controller.scale(SCOPE, stream, sorted(old), list(pairwise(edges)))
        while any(  # noqa: ASYNC110 — the controller has no call that waits for it
            segment.segment_id in old for segment in await pravega.controller.current_segments(SCOPE, stream)
        ):
            await asyncio.sleep(0.005)


async def write_events(uri: Where, events: Iterable[tuple[bytes, str]], stream: str = STREAM) -> None:
    if isinstance(uri, MemoryStream):
        uri.write(events)
        return
    async with connect(uri) as pravega, pravega.event_writer(SCOPE, stream) as writer:
        for event, key in events:
            await writer.submit(event, routing_key=key)
        await writer.flush()


async def every_event(uri: Where, stream: str = STREAM) -> Sequence[StreamEvent | FramedEvent]:
    """Of a stream that nobody writes to any more; it is sealed for that."""
    if isinstance(uri, MemoryStream):
        return uri.events()
    async with connect(uri) as pravega, asyncio.timeout(_PATIENCE_S):
        await pravega.controller.seal_stream(SCOPE, stream)
        async with pravega.event_reader(SCOPE, stream) as reader:
            return [event async for event in reader]


def rows(events: Sequence[bytes], keys: Sequence[str | None] | None = None) -> AsyncIterator[Rows]:
    async def batches() -> AsyncIterator[Rows]:
        for at in range(0, len(events), 3):
            yield list(events[at : at + 3]), None if keys is None else list(keys[at : at + 3])

    return batches()


async def task(
    segments: Segments,
    batch: int,
    partition: int,
    events: Sequence[bytes],
    keys: Sequence[str | None] | None = None,
    query: UUID = QUERY,
) -> TaskResult:
    return await write_rows(segments, query, batch, partition, rows(events, keys))


async def batch_of(uri: Where, batch: int, results: Iterable[TaskResult], query: UUID = QUERY) -> BatchCommitter:
    """Commits as a driver does, with connections of its own."""
    async with using(uri) as segments:
        committer = BatchCommitter(segments, options(uri), query, batch)
        await committer.commit(results)
        return committer
