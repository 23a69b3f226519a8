"""Writes events to one segment, exactly once and in order, across reconnects.

This module holds the methods for users; `WriterMachine` does the work and documents the guarantees for events and
buffers. Statistics are aggregated by writer name (seed 79.8): writers with the same name may have started different
segment writers, so statistics are matched by name and segment, never by position.

Invariant: `aclose` returns within its deadline and leaves no task, timer or flow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from segstore.client.connection import InFlight, Pending
from segstore.client.errors import ClientError, Closed
from segstore.client.lifecycle import FlushedAfter, within
from segstore.client.segment.machine import WriterMachine
from segstore.client.segment.states import WriterEvent, WriterState, after
from segstore.wire import Buffer


class SegmentWriter(FlushedAfter, WriterMachine):
    """A writer of one segment; its arguments and attributes are `WriterMachine`'s."""

    __slots__ = ()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: Buffer, *, events: int = 1, tag: Any = None) -> asyncio.Future[None]:
        """Queues one append; returns a future that completes when it is stored, or has the error.

        Never waits: see `room`. Raises EventTooLarge, and the error that ended the writer.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self.append(data, done, events, tag)
        return done

    def adopt(self, pending: Iterable[Pending]) -> None:
        """Queues another segment writer's unacknowledged items, including their futures."""
        for item in pending:
            if self._error is not None:
                self._reject(item.done, self._again())
            else:
                self._events.add(item.data, item.done, item.events, item.tag)
        self._ask_turn()

    # --- state and waiting --------------------------------------------------------------------------------------------

    @property
    def queue(self) -> InFlight:
        """Its events. `add_behind` adds to them without a call of the writer."""
        return self._events

    @property
    def accepted(self) -> tuple[int, int]:
        """Number and total size of all items that were ever queued here."""
        events = self._events
        count = events.settled + events.unsettled
        return count, events.added_bytes - count * events.overhead

    @property
    def held_bytes(self) -> int:
        """Total size of queued and in-flight events."""
        return self._events.held_bytes

    @property
    def last_number(self) -> int:
        """Number of the last event known to be stored, or -1."""
        return self._events.last_stored

    @property
    def in_flight(self) -> int:
        """Number of events sent but not acknowledged."""
        return sum(append.last - append.first + 1 for append in self._events.sent)

    async def room(self) -> None:
        """Waits until less than `max_in_flight_bytes` is held, or the writer has failed."""
        while not self.has_room:
            await self._change()

    async def started(self) -> None:
        """Waits until the writer is set up for the first time. Raises the error if it ended before that.

        Concurrent callers share one start (seed 79.3).
        """
        while not self.set_ups:
            if self._error is not None:
                raise self._again()
            if self.state is WriterState.OVER:
                return
            await self._change()

    async def flush(self) -> None:
        """Waits until everything written before is acknowledged or taken over by another writer.

        Raises the error that ended the writer.
        """
        if self._error is not None and not isinstance(self._error, Closed):
            raise self._again()
        count = self._events.settled + self.unsettled
        while self._events.settled < count:
            self._flushed_at = min(self._flushed_at, count)
            await self._change()
            if self._error is not None and self._failed_from < count:
                raise self._again()

    async def _change(self) -> None:
        """Waits for the next change of the writer: events were settled, it was set up, or it has ended."""
        if self._changed is None:
            self._changed = self._loop.create_future()
        await asyncio.shield(self._changed)

    # --- shutdown -----------------------------------------------------------------------------------------------------

    def fail(self, error: ClientError) -> None:
        """Ends the writer and fails all waiters with the owner's error."""
        self._fail(error)

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then releases all resources; unstored events fail. Can be called twice.

        Raises what `flush` raises, and RequestTimedOut if the flush did not finish in time.
        """
        if self.state is WriterState.CLOSED:
            return
        limit = self._pool.settings.close_timeout_ms
        facts = {"segment": self.segment, "endpoint": None if self.endpoint is None else str(self.endpoint)}
        try:
            async with within(
                limit, lambda: f"{self.unsettled} appends to {self.segment} were not acknowledged", **facts
            ):
                await self.flush()
        finally:
            await self.abort()

    def end(self) -> None:
        """The synchronous part of `abort`, which must still be called."""
        if self.state is not WriterState.CLOSED:
            self._fail(Closed(f"the writer of {self.segment} was closed", segment=self.segment), WriterEvent.CLOSED)
            if self.state is WriterState.FAILED:
                self.state = after(self.state, WriterEvent.CLOSED)
            self._pool.release(self._flow_id)
            if self._setting_up is not None and self._setting_up is not asyncio.current_task():
                self._setting_up.cancel()

    async def abort(self) -> None:
        """Releases all resources immediately; unacknowledged events fail."""
        self.end()
        tasks = {self._setting_up, self._carrying} - {None, asyncio.current_task()}
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


# --- statistics -------------------------------------------------------------------------------------------------------


class SegmentWriterStats(msgspec.Struct, frozen=True):
    """Statistics for one segment: writers currently set up, set-ups so far, unacknowledged appends and bytes, and the
    highest event number known to be stored, or -1."""

    connected: int
    set_ups: int
    unsettled: int
    held_bytes: int
    last_sequence: int


class WriterStats(msgspec.Struct, frozen=True):
    """Statistics for one name: accepted events and bytes, and statistics by segment."""

    name: str
    events: int
    bytes: int
    segments: Mapping[str, SegmentWriterStats]

    @property
    def connected(self) -> int:
        """Number of segment writers currently set up."""
        return sum(segment.connected for segment in self.segments.values())

    @property
    def unsettled(self) -> int:
        """Number of unacknowledged appends."""
        return sum(segment.unsettled for segment in self.segments.values())

    @property
    def last_sequence(self) -> int:
        """The highest stored event number over all segments, or -1."""
        return max((segment.last_sequence for segment in self.segments.values()), default=-1)


def add_up(stats: Iterable[WriterStats]) -> dict[str, WriterStats]:
    """Aggregates statistics by name: adds counts and takes the maximum of event numbers."""
    totals: dict[str, WriterStats] = {}
    for stat in stats:
        before = totals.get(stat.name)
        totals[stat.name] = stat if before is None else _both(before, stat)
    return totals


def _both(one: WriterStats, other: WriterStats) -> WriterStats:
    segments = dict(one.segments)
    for name, more in other.segments.items():
        known = segments.get(name)
        segments[name] = (
            more
            if known is None
            else SegmentWriterStats(
                known.connected + more.connected,
                known.set_ups + more.set_ups,
                known.unsettled + more.unsettled,
                known.held_bytes + more.held_bytes,
                max(known.last_sequence, more.last_sequence),
            )
        )
    return WriterStats(one.name, one.events + other.events, one.bytes + other.bytes, segments)
