"""A stream, its scaling and its events, for the tests of the pipeline's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import UUID

from segstore.client import StreamEvent, connect
from segstore.pipeline.segments import Segments, opened
from segstore.pipeline.stream_commit import Committer
from segstore.pipeline.stream_options import StreamOptions, read_stream_options
from segstore.pipeline.stream_write import Rows, TaskResult, write_rows

__all__ = [
    "QUERY",
    "SCOPE",
    "STREAM",
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


def options(uri: str, **more: str) -> StreamOptions:
    return read_stream_options({"controller": uri, "scope": SCOPE, "stream": STREAM, **more})


@asynccontextmanager
async def using(uri: str, **more: str) -> AsyncIterator[Segments]:
    async with opened(options(uri, **more), "READ_WRITE") as segments:
        yield segments


async def make_stream(uri: str, segments: int = 1, stream: str = STREAM) -> None:
    async with connect(uri) as pravega:
        await pravega.controller.create_scope(SCOPE)
        await pravega.controller.create_stream(SCOPE, stream, segments=segments)


async def scale(uri: str, parts: int, stream: str = STREAM) -> None:
    """All segments give way to so many others; returns when they have."""
    async with connect(uri) as pravega, asyncio.timeout(_PATIENCE_S):
        now = await pravega.controller.current_segments(SCOPE, stream)
        edges = [number / parts for number in range(parts + 1)]
        old = {each.segment_id for each in now}
        await pravega.controller.scale(SCOPE, stream, sorted(old), list(pairwise(edges)))
        while any(  # noqa: ASYNC110 — the controller has no call that waits for it
            each.segment_id in old for each in await pravega.controller.current_segments(SCOPE, stream)
        ):
            await asyncio.sleep(0.005)


async def write_events(uri: str, events: Iterable[tuple[bytes, str]], stream: str = STREAM) -> None:
    async with connect(uri) as pravega, pravega.event_writer(SCOPE, stream) as writer:
        for event, key in events:
            await writer.submit(event, routing_key=key)
        await writer.flush()


async def every_event(uri: str, stream: str = STREAM) -> list[StreamEvent]:
    """Of a stream that nobody writes to any more; it is sealed for that."""
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


async def batch_of(uri: str, batch: int, results: Iterable[TaskResult], query: UUID = QUERY) -> Committer:
    """Commits as a driver does, with connections of its own."""
    async with using(uri) as segments:
        committer = Committer(segments, options(uri), query, batch)
        await committer.commit(results)
        return committer
