"""Transactions: events that become readable together when the transaction commits, or not at all.

    async with pravega.transaction_writer("scope", "stream") as writer:
        async with writer.begin() as transaction:
            await transaction.write(b"…", routing_key="sensor-7")

The block's end commits and returns when the events are in the stream; an exception in it aborts. Meanwhile pings keep
the lease. A transaction is written to the segments beside those of the epoch in which it was begun, so scaling does not
disturb it.

Invariants: nothing is committed before everything written to it is stored; a transaction that its writer left, by
whatever way, is aborted here or by its lease; after `aclose`, which can be called twice, no task is left. Refused: to
commit after a write failed. Follows `TransactionalEventStreamWriterImpl` and `Pinger` (Pravega's client). Deliberate
differences: `commit` waits until the events can be read (the reference returns when the controller has taken the
request); leaving the writer aborts what is open (there the lease does); there are at least two pings a lease.
"""

from __future__ import annotations

import asyncio
from math import sqrt
from random import Random
from types import TracebackType
from typing import Final
from uuid import UUID, uuid4

from segstore.client.connection import ConnectionPool, Locations
from segstore.client.controller import Controller, TransactionStatus
from segstore.client.errors import (
    ClientError,
    Closed,
    EventTooLarge,
    NoSuchStream,
    RequestTimedOut,
    Retriable,
    SegmentOver,
    TransactionOver,
)
from segstore.client.lifecycle import ClosedAfter, OpenedBefore, within
from segstore.client.retry import Backoff
from segstore.client.routing import RangeRouter, SegmentRange, position_of
from segstore.client.segment import SegmentWriter
from segstore.client.stream.events import frame_event
from segstore.wire.names import transaction_name

_POLLS: Final = Backoff(initial_ms=5, multiplier=2, max_ms=500, jitter=0.2)
"""How often a commit that takes time is asked for."""

_GONE: Final = frozenset({"ABORTED", "COMMITTED", "UNKNOWN"})
"""What a ping hears of a transaction that is not open."""

_NO_LONGER: Final = frozenset({"LEASE_TOO_LARGE", "MAX_EXECUTION_TIME_EXCEEDED"})
"""And of one that is not prolonged; it can be committed until its lease ends."""


def ping_interval_ms(lease_ms: float) -> float:
    """How often to ping: twice a short lease, ten times one of 100 s."""
    return lease_ms / max(2.0, sqrt(lease_ms / 1000))


class TransactionWriter(ClosedAfter):
    """Begins transactions of one stream. Use with `async with`, or `aclose`.

    Attributes:
        scope, stream: whose.
        writer_id: names the writer to the controller, for the times that commits note.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        controller: Controller,
        locations: Locations,
        scope: str,
        stream: str,
        *,
        writer_id: str | None = None,
        random: Random | None = None,
    ) -> None:
        self.scope: Final = scope
        self.stream: Final = stream
        self.writer_id: Final = writer_id or str(uuid4())
        self._pool = pool
        self._controller = controller
        self._locations = locations
        self._random = random or Random()
        self._open: set[Transaction] = set()
        self._closed = False

    def begin(self, *, lease_ms: int | None = None) -> Transaction:
        """A new transaction, to be opened. lease_ms: of the settings, if not given."""
        return self._make(None, lease_ms)

    def resume(self, transaction: UUID, *, lease_ms: int | None = None) -> Transaction:
        """One that was begun elsewhere, to be opened."""
        return self._make(transaction, lease_ms)

    def _make(self, identifier: UUID | None, lease_ms: int | None) -> Transaction:
        if self._closed:
            raise Closed(f"the transaction writer of {self.scope}/{self.stream} was closed")
        lease = self._pool.settings.transaction_lease_ms if lease_ms is None else lease_ms
        made = Transaction(
            self._pool, self._controller, self._locations, self, identifier, lease_ms=lease, random=self._random
        )
        self._open.add(made)
        return made

    async def status(self, transaction: UUID) -> TransactionStatus:
        """How any transaction of the stream stands."""
        return await self._controller.transaction_status(self.scope, self.stream, transaction)

    def forget(self, transaction: Transaction) -> None:
        """It has ended."""
        self._open.discard(transaction)

    async def aclose(self) -> None:
        """Aborts what is open. Can be called twice. What the controller did not take the leases will end."""
        self._closed = True
        await asyncio.gather(*(each.leave() for each in tuple(self._open)))


class Transaction(OpenedBefore):
    """One transaction. Made by `TransactionWriter`; use with `async with`, or `open` and `commit` or `abort`.

    Attributes:
        writer: what made it.
        lease_ms: how long it lives after a ping.
        pings: how many were answered.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        controller: Controller,
        locations: Locations,
        writer: TransactionWriter,
        identifier: UUID | None,
        *,
        lease_ms: int,
        random: Random,
    ) -> None:
        self.writer: Final = writer
        self.lease_ms: Final = lease_ms
        self.pings = 0
        self._name = f"{writer.scope}/{writer.stream}"
        self._pool = pool
        self._settings = pool.settings
        self._controller = controller
        self._locations = locations
        self._random = random
        self._id = identifier
        self._router: RangeRouter | None = None
        self._writers: dict[int, SegmentWriter] = {}
        self._pinging: asyncio.Task[None] | None = None
        self._error: ClientError | None = None
        self._ended = False

    @property
    def id(self) -> UUID:
        """Raises Closed before it is open."""
        if self._id is None:
            raise Closed(f"the transaction of {self._name} is not open", stream=self._name)
        return self._id

    async def open(self) -> None:
        """Begins it, or finds it. Raises NoSuchStream, TransactionOver, and what calls to the controller raise."""
        try:
            await self._begin()
        except BaseException:
            self._end()
            raise
        self._pinging = asyncio.get_running_loop().create_task(
            self._ping(), name=f"pinging transaction {self._id} of {self._name}"
        )

    async def _begin(self) -> None:
        scope, stream = self.writer.scope, self.writer.stream
        if self._id is None:
            self._id, segments = await self._controller.create_transaction(scope, stream, self.lease_ms)
        else:
            status = await self.status()
            if status is not TransactionStatus.OPEN:
                raise self._over(f"is {status.value}", status.value)
            segments = await self._controller.epoch_segments(scope, stream, self._id.int >> 96)
        try:
            self._router = RangeRouter(segments)
        except ValueError as problem:
            raise NoSuchStream(f"the segments of {self._name}: {problem}", stream=self._name) from problem

    async def status(self) -> TransactionStatus:
        """How it stands, as the controller says."""
        return await self._controller.transaction_status(self.writer.scope, self.writer.stream, self.id)

    # --- the lease --------------------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """Keeps the lease until the transaction is over; an answer that says so fails what is written."""
        interval_s = ping_interval_ms(self.lease_ms) / 1000
        while self._error is None:
            await asyncio.sleep(interval_s)
            try:
                said = await self._controller.ping_transaction(
                    self.writer.scope, self.writer.stream, self.id, self.lease_ms
                )
            except Retriable:
                continue  # the call itself was tried for long, and the lease may last until the next
            except ClientError as error:
                self._fail(error)
                return
            if said in _GONE:
                self._fail(self._over(f"is over: a ping hears {said}", said))
                return
            if said in _NO_LONGER:
                return
            self.pings += 1

    def _over(self, how: str, status: str) -> TransactionOver:
        return TransactionOver(
            f"transaction {self._id} of {self._name} {how}", stream=self._name, transaction=self._id, status=status
        )

    def _fail(self, error: ClientError) -> None:
        self._error = self._error or error
        for each in self._writers.values():
            each.fail(error)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Returns when the event is stored in the transaction. Raises as `submit`."""
        await (await self.submit(event, routing_key=routing_key))

    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """Queues an event; the future is done when it is stored in the transaction. Waits only for room.

        Without a routing key all events go to one segment, in order. Raises EventTooLarge, TransactionOver, Closed, and
        the error that failed an earlier write.
        """
        limit = self._settings.max_event_bytes
        if len(event) > limit:
            raise EventTooLarge(
                f"an event of {len(event)} bytes for a transaction of {self._name}, which takes {limit} at the most: "
                "larger ones go outside of transactions only",
                stream=self._name,
                limit=limit,
                actual=len(event),
            )
        self._check()
        assert self._router is not None
        writer = self._writer_of(self._router.route(position_of(str(self.id) if routing_key is None else routing_key)))
        while not writer.has_room:
            await writer.room()
            self._check()
        return writer.write(frame_event(event))

    def _check(self) -> None:
        if self._router is None:
            raise Closed(f"the transaction of {self._name} is not open", stream=self._name)
        if self._error is not None:
            again = type(self._error)(self._error.message, **self._error.facts())
            raise again from self._error.__cause__
        if self._ended:
            raise self._over("has ended here", "ENDED")

    def _writer_of(self, segment: SegmentRange) -> SegmentWriter:
        writer = self._writers.get(segment.segment_id)
        if writer is None:
            name = transaction_name(segment.name, self.id)
            writer = self._writers[segment.segment_id] = SegmentWriter(
                self._pool, self._locations, name, on_over=self._on_over, random=self._random
            )
        return writer

    def _on_over(self, writer: SegmentWriter, error: SegmentOver) -> None:
        over = self._over("takes no more events: it was committed, aborted, or its lease ended", "ENDED").located(
            endpoint=error.endpoint, segment=writer.segment, request_id=error.request_id
        )
        over.__cause__ = error
        self._fail(over)

    async def flush(self) -> None:
        """Returns when all that was written before is stored in the transaction. Raises the error of what could not."""
        self._check()
        for writer in tuple(self._writers.values()):
            await writer.flush()

    # --- end --------------------------------------------------------------------------------------------------------

    async def commit(self, *, timestamp: int | None = None, wait: bool = True) -> None:
        """Commits, and waits until the events are in the stream unless told not to.

        timestamp: what the writer's clock says of these events, for watermarks. Raises the error of what could not be
        written; TransactionOver if it was aborted; RequestTimedOut if it is still committing after
        `transaction_commit_timeout_ms`. After a Retriable `status` tells what came of it, and `commit` can be repeated.
        """
        await self.flush()
        await self._release()
        await self._stop_pinging()  # or it may hear of this commit, and take it for another's
        scope, stream = self.writer.scope, self.writer.stream
        await self._controller.commit_transaction(scope, stream, self.id, self.writer.writer_id, timestamp)
        self._end()
        if wait:
            await self._committed()

    async def _committed(self) -> None:
        limit = self._settings.transaction_commit_timeout_ms
        asked = 0
        try:
            async with asyncio.timeout(limit / 1000):
                while (status := await self.status()) is TransactionStatus.COMMITTING or (
                    status is TransactionStatus.OPEN  # it was taken, and does not show yet
                ):
                    asked += 1
                    await asyncio.sleep(_POLLS.delay_ms(asked, self._random) / 1000)
        except TimeoutError as cause:
            raise RequestTimedOut(
                f"transaction {self._id} of {self._name} was taken but is not committed after {limit:.0f} ms",
                stream=self._name,
                limit=limit,
                transaction=self._id,
            ) from cause
        if status is not TransactionStatus.COMMITTED:
            raise self._over(f"was to be committed and is {status.value}", status.value)

    async def abort(self) -> None:
        """Gives up what was written; nothing if it has ended here. Raises TransactionOver if it is committed."""
        if self._ended or self._id is None:
            self._end()
            return
        await self._stop_pinging()
        await self._release()
        await self._controller.abort_transaction(self.writer.scope, self.writer.stream, self.id)
        self._end()

    async def leave(self) -> ClientError | None:
        """Aborts within `close_timeout_ms` and frees everything; returns, not raises, what went wrong."""
        problem: ClientError | None = None
        limit = self._settings.close_timeout_ms
        try:
            async with within(limit, f"no abort of {self._id} of {self._name}", stream=self._name):
                await self.abort()
        except ClientError as error:
            problem = error
        finally:
            self._end()
            await self._stop_pinging()
            await self._release()
        return problem

    def _end(self) -> None:
        self._ended = True
        self.writer.forget(self)

    async def _stop_pinging(self) -> None:
        task, self._pinging = self._pinging, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _release(self) -> None:
        writers, self._writers = self._writers, {}
        for each in writers.values():
            await each.abort()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._ended:
            try:
                await self.commit()
            except BaseException:
                if not self._ended:
                    await self.leave()
                raise
        elif error is not None:
            problem = await self.leave()
            if problem is not None:
                error.add_note(f"transaction {self._id} of {self._name} was not aborted: {problem}; its lease ends it")
