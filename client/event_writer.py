"""Writes events to a stream: each to the segment of its routing key, in order, through scaling and whatever else.

When a segment is sealed its writer's unacknowledged events, and what is written for its range meanwhile, go to its
successors, in order; what routes elsewhere goes on. So each routing key's events are stored in the order in which they
were written, once.

Invariants: what was accepted by `submit` is stored, or its future has the error; a rerouting ends, by its own retries,
in successors or in a failure; after `aclose`, which can be called twice, no task is left. Follows
`EventStreamWriterImpl` and `SegmentSelector` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from random import Random
from types import TracebackType
from typing import Final, Self

from segstore.client.controller import Controller
from segstore.client.errors import (
    ClientError,
    Closed,
    EventTooLarge,
    NoSuchStream,
    RequestTimedOut,
    SegmentOver,
    StreamSealed,
)
from segstore.client.events import frame_event
from segstore.client.in_flight import Pending
from segstore.client.locations import Locations
from segstore.client.pool import ConnectionPool
from segstore.client.routing import RangeRouter, SegmentRange, position_of
from segstore.client.segment_writer import SegmentWriter, WriterState

__all__ = ["EventWriter"]


class EventWriter:
    """A writer of one stream. Use with `async with`, or `open` and `aclose`.

    Attributes:
        scope, stream: whose.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        controller: Controller,
        locations: Locations,
        scope: str,
        stream: str,
        *,
        random: Random | None = None,
    ) -> None:
        self.scope: Final = scope
        self.stream: Final = stream
        self._pool = pool
        self._settings = pool.settings
        self._controller = controller
        self._locations = locations
        self._random = random or Random()
        self._router: RangeRouter | None = None
        self._writers: dict[int, SegmentWriter] = {}
        self._reroutes: set[asyncio.Task[None]] = set()
        self._rerouted = 0
        self._error: ClientError | None = None
        self._closed = False

    async def open(self) -> None:
        """Asks for the stream's segments. Raises NoSuchStream, StreamSealed, and what calls to the controller raise."""
        segments = await self._controller.current_segments(self.scope, self.stream)
        if not segments:
            raise StreamSealed(f"stream {self.scope}/{self.stream} is sealed", stream=f"{self.scope}/{self.stream}")
        self._router = RangeRouter(segments)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Returns when the event is stored. Cancelling the wait does not take the event back.

        Raises EventTooLarge, StreamSealed, NoSuchStream, TokenRefused, RetriesExhausted, Closed.
        """
        await asyncio.shield(await self.submit(event, routing_key=routing_key))

    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """Returns when there is room for the event; the future is done when it is stored, or has the error.

        Who does not look at futures hears of errors from `flush` and `aclose`. Without a routing key the event goes to
        any segment.
        """
        if len(event) > self._settings.max_event_bytes:
            limit = self._settings.max_event_bytes
            raise EventTooLarge(
                f"an event of {len(event)} bytes for {self.scope}/{self.stream}, {limit} are allowed",
                stream=f"{self.scope}/{self.stream}",
                limit=limit,
                actual=len(event),
            )
        position = self._random.random() if routing_key is None else position_of(routing_key)
        writer = self._writer_at(position)
        while not writer.has_room:
            await writer.room()
            writer = self._writer_at(position)
        return writer.write(frame_event(event), tag=position)

    def _writer_at(self, position: float) -> SegmentWriter:
        if self._closed:
            raise Closed(f"the writer of {self.scope}/{self.stream} was closed")
        if self._router is None:
            raise Closed(f"the writer of {self.scope}/{self.stream} is not open")
        return self._writer_of(self._router.route(position))

    def _writer_of(self, segment: SegmentRange) -> SegmentWriter:
        writer = self._writers.get(segment.segment_id)
        if writer is None:
            writer = self._writers[segment.segment_id] = SegmentWriter(
                self._pool, self._locations, segment.name, on_over=lambda w, e: self._on_over(segment, w, e)
            )
        return writer

    # --- successors -------------------------------------------------------------------------------------------------

    def _on_over(self, segment: SegmentRange, writer: SegmentWriter, error: SegmentOver) -> None:
        task = asyncio.get_running_loop().create_task(
            self._reroute(segment, writer, error), name=f"finding the successors of {segment.name}"
        )
        self._reroutes.add(task)
        task.add_done_callback(self._reroutes.discard)

    async def _reroute(self, segment: SegmentRange, writer: SegmentWriter, error: SegmentOver) -> None:
        try:
            successors = await self._controller.following(
                self.scope, self.stream, segment.segment_id, self._settings.retry, self._random
            )
            if not successors:
                name = f"{self.scope}/{self.stream}"
                raise StreamSealed(f"stream {name} is sealed", stream=name) from error
            router = self._router
            assert router is not None
            router.replace(segment.segment_id, [each.segment for each in successors])
            # From here to the end nothing waits: what is written later comes after what is handed over.
            by_target: dict[int, tuple[SegmentRange, list[Pending]]] = {}
            for item in writer.take_pending():
                target = router.route(item.tag)
                by_target.setdefault(target.segment_id, (target, []))[1].append(item)
            for target, items in by_target.values():
                self._writer_of(target).adopt(items)
        except ClientError as problem:
            self._error = problem
            writer.fail(problem)
        except ValueError as problem:
            failed = NoSuchStream(f"the successors of {segment.name} do not cover it: {problem}", segment=segment.name)
            failed.__cause__ = problem
            self._error = failed
            writer.fail(failed)
        else:
            self._rerouted += 1
            del self._writers[segment.segment_id]
            await writer.abort()

    # --- flush and end ----------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when everything written before is stored. Raises the error of what could not be."""
        while True:
            rerouted = self._rerouted
            for writer in list(self._writers.values()):
                if writer.state is not WriterState.CLOSED:
                    await writer.flush()
            if self._error is not None:
                raise self._error
            if self._reroutes:
                await asyncio.wait(tuple(self._reroutes))
            elif rerouted == self._rerouted:
                return

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then frees all. Can be called twice. Raises what `flush` does."""
        if self._closed:
            return
        limit = self._settings.close_timeout_ms
        try:
            async with asyncio.timeout(limit / 1000):
                await self.flush()
        except TimeoutError as cause:
            raise RequestTimedOut(
                f"events for {self.scope}/{self.stream} were not stored within {limit:.0f} ms",
                stream=f"{self.scope}/{self.stream}",
                limit=limit,
            ) from cause
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Frees everything at once; what is not stored yet may or may not be."""
        self._closed = True
        reroutes = tuple(self._reroutes)
        for task in reroutes:
            task.cancel()
        await asyncio.gather(*reroutes, return_exceptions=True)
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            await writer.abort()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            await self.abort()
