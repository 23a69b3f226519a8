"""Writes events to one segment, exactly once and in order, across reconnects.

Here is what its users call; what happens then is `WriterMachine`'s.

Invariants: who waits for an event hears of it exactly once; cancelling who waits never takes back an event; `aclose`
returns within its deadline, and after it no task, timer or flow is left. Buffers: payloads are the caller's and must
not change until they are stored. Follows `SegmentOutputStream` (Pravega's client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from segstore.client.connection import Pending, Then
from segstore.client.errors import ClientError, Closed, EventTooLarge
from segstore.client.lifecycle import FlushedAfter, within
from segstore.client.segment.machine import WriterMachine, WriterState
from segstore.wire import Buffer

_OPEN: Final = WriterState.OPEN


class SegmentWriter(FlushedAfter, WriterMachine):
    """A writer of one segment; its arguments and attributes are those of `WriterMachine`."""

    __slots__ = ()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: Buffer, *, events: int = 1, tag: Any = None) -> asyncio.Future[None]:
        """Queues one append; its future is done when it is stored, or has the error.

        Never waits: see `room`. Raises EventTooLarge, and the error with which the writer ended.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self.append(data, done, events, tag)
        return done

    def append(
        self, data: Buffer, done: asyncio.Future[None] | Then, events: int = 1, tag: Any = None, now: bool = False
    ) -> None:
        """As `write`, for a future of the caller's, or a function: cheaper where there are many.

        done: the function is called once, inside the event loop's read: with None when it is stored, else with the
        error. It may append again. What it raises goes to the loop's exception handler. now: nothing follows before it
        is stored, so it leaves at once if nothing else is on its way on the connection.
        """
        size = len(data)
        if size > self._largest and self._carry is None:
            raise EventTooLarge(
                f"{size} bytes for {self.segment}, {self._largest} are allowed",
                segment=self.segment,
                limit=self._largest,
                actual=size,
            )
        if self._error is not None:
            raise self._again()
        in_flight = self._events
        if in_flight.first_queued is None:
            in_flight.first_queued = Pending(data, events, tag, done)
        else:
            in_flight.queued_behind.append(Pending(data, events, tag, done))
        in_flight.added += 1
        in_flight.held_bytes += size
        flow = self._flow
        if flow is not None and not flow.asked and self.state is _OPEN:
            if now:
                flow.turn_now()
            else:
                flow.ask_turn()

    def adopt(self, pending: Iterable[Pending]) -> None:
        """Queues what another segment's writer did not get acknowledged, futures and all."""
        for item in pending:
            if self._error is not None:
                self._tell(item.done, self._again())
            else:
                self._events.add(item)
        self._ask_turn()

    # --- looking and waiting ------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Of events that are queued or in flight."""
        return self._events.held_bytes

    @property
    def last_number(self) -> int:
        """Of the last event that is known to be stored, -1 if none."""
        return self._events.last_stored

    @property
    def in_flight(self) -> int:
        """Events that were sent and not acknowledged."""
        return sum(append.last - append.first + 1 for append in self._events.sent)

    async def room(self) -> None:
        """Returns when less than `max_in_flight_bytes` is held, or the writer has failed."""
        while not self.has_room:
            await self._waiting().for_room()

    async def started(self) -> None:
        """Returns when it was set up for the first time, or is over before that. Raises the error with which it ended.

        Those who wait together wait for one start (seed 79.3).
        """
        while not self.set_ups:
            if self._error is not None:
                raise self._again()
            if self.state is WriterState.OVER:
                return
            await self._waiting().for_start()

    async def flush(self) -> None:
        """Returns when everything written before is acknowledged or was handed over.

        Raises the error with which the writer ended.
        """
        if self._error is not None:
            if not isinstance(self._error, Closed) or self.unsettled:
                raise self._again()
        elif self.unsettled:
            await self._waiting().until_settled(self._events.added)

    # --- end ----------------------------------------------------------------------------------------------------------

    def fail(self, error: ClientError) -> None:
        """Ends the writer and everything that waits for it, as its owner says."""
        self._fail(error)

    async def aclose(self) -> None:
        """Flushes for up to `close_timeout_ms`, then frees everything; what is left by then fails. Can be called twice.

        Raises what `flush` raises, RequestTimedOut if the time was not enough.
        """
        if self.state is WriterState.CLOSED:
            return
        limit = self._pool.settings.close_timeout_ms
        endpoint = self._setup.endpoint
        facts = {"segment": self.segment, "endpoint": None if endpoint is None else str(endpoint)}
        try:
            async with within(limit, self._late, **facts):
                await self.flush()
        finally:
            await self.abort()

    def _late(self) -> str:
        return f"{self.unsettled} appends to {self.segment} were not acknowledged"

    def end(self) -> None:
        """What of `abort` does not wait; `abort` is still to be called."""
        if self.state is not WriterState.CLOSED:
            self._fail(Closed(f"the writer of {self.segment} was closed", segment=self.segment), WriterState.CLOSED)
            self.state = WriterState.CLOSED
            self._setup.release()
            self._setup.cancel()

    async def abort(self) -> None:
        """Frees everything at once; what is not acknowledged fails."""
        self.end()
        await self._setup.aclose()
        if self._carrying is not None:
            await asyncio.gather(self._carrying, return_exceptions=True)
