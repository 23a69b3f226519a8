"""Transactions: events that become readable together when the transaction commits, or not at all.

    async with pravega.transaction_writer("scope", "stream") as writer:
        async with writer.begin() as transaction:
            await transaction.write(b"…", routing_key="sensor-7")

The end of the block commits and waits until the events are in the stream; an exception in the block aborts. Pings
extend the lease meanwhile. A transaction has its own segments, which belong to the epoch in which it began, so scaling
does not affect it.

Invariants: a transaction is committed only after all its events are stored; a transaction that its writer leaves in any
other way is aborted, here or by its lease; after `aclose`, which can be called twice, no task is left. Refused: a
commit after a failed write. Follows `TransactionalEventStreamWriterImpl` and `Pinger` (Pravega's client). Deliberate
differences: `commit` waits until the events are readable (the reference returns once the controller accepts the
request); closing the writer aborts open transactions (the reference leaves that to the lease); there are at least two
pings per lease.
"""

from __future__ import annotations

import asyncio
from math import sqrt
from typing import Final
from uuid import UUID, uuid4

from segstore.client.controller import Cluster, TransactionStatus
from segstore.client.errors import (
    ClientError,
    Closed,
    EventTooLarge,
    NoSuchStream,
    Retriable,
    SegmentOver,
    TransactionOver,
)
from segstore.client.lifecycle import ClosedAfter, OpenedBefore, finish, not_open, within
from segstore.client.retry import POLLS
from segstore.client.routing import RangeRouter, SegmentRange
from segstore.client.segment import SegmentWriter
from segstore.client.stream.events import whole_event
from segstore.client.stream.stream_client import StreamClient
from segstore.wire.hashing import position_of
from segstore.wire.names import transaction_name

_GONE: Final = frozenset({"ABORTED", "COMMITTED", "UNKNOWN"})
"""Ping statuses of a transaction that is no longer open."""

_NO_LONGER: Final = frozenset({"LEASE_TOO_LARGE", "MAX_EXECUTION_TIME_EXCEEDED"})
"""Ping statuses of a lease that is not extended; the transaction can be committed until its lease ends."""


def ping_interval_ms(lease_ms: float) -> float:
    """Returns the ping interval: half of a short lease, a tenth of a 100 s lease."""
    return lease_ms / max(2.0, sqrt(lease_ms / 1000))


class TransactionWriter(ClosedAfter, StreamClient):
    """Begins transactions of one stream. Use with `async with`, or call `aclose`.

    Attributes:
        writer_id: identifies the writer to the controller, which records it with commit timestamps.
    """

    writer_id: Final[str]

    def __init__(self, cluster: Cluster, scope: str, stream: str, *, writer_id: str | None = None) -> None:
        super().__init__(cluster, scope, stream)
        self.writer_id = writer_id or str(uuid4())
        self._open: set[Transaction] = set()

    def begin(self, *, lease_ms: int | None = None) -> Transaction:
        """Returns a new, unopened transaction. lease_ms: defaults to the settings."""
        return self._make(None, lease_ms)

    def resume(self, transaction: UUID, *, lease_ms: int | None = None) -> Transaction:
        """Returns an unopened handle for a transaction begun elsewhere."""
        return self._make(transaction, lease_ms)

    def _make(self, identifier: UUID | None, lease_ms: int | None) -> Transaction:
        if self._closed:
            raise not_open(f"the transaction writer of {self._name}", closed=True)
        lease = self._settings.transaction_lease_ms if lease_ms is None else lease_ms
        transaction = Transaction(self._cluster, self, identifier, lease_ms=lease)
        self._open.add(transaction)
        return transaction

    async def status(self, transaction: UUID) -> TransactionStatus:
        """Returns the status of any transaction of the stream."""
        return await self._controller.transaction_status(self.scope, self.stream, transaction)

    def forget(self, transaction: Transaction) -> None:
        """Forgets a transaction that has ended."""
        self._open.discard(transaction)

    async def aclose(self) -> None:
        """Aborts open transactions; if the controller cannot, their leases end them. Can be called twice."""
        self._closed = True
        await asyncio.gather(*(transaction.leave() for transaction in tuple(self._open)))


class Transaction(OpenedBefore, StreamClient):
    """A transaction, created by `TransactionWriter`. Use with `async with`, or `open` and `commit` or `abort`.

    Attributes:
        writer: the writer that created it.
        lease_ms: its lifetime after a ping.
        pings: number of answered pings.
    """

    lease_ms: Final[int]
    pings: int

    def __init__(self, cluster: Cluster, writer: TransactionWriter, identifier: UUID | None, *, lease_ms: int) -> None:
        super().__init__(cluster, writer.scope, writer.stream)
        self.writer: Final = writer
        self.lease_ms = lease_ms
        self.pings = 0
        self._id = identifier
        self._router: RangeRouter | None = None
        self._writers: dict[int, SegmentWriter] = {}
        self._pinging: asyncio.Task[None] | None = None
        self._error: ClientError | None = None

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises Closed before it is open."""
        if self._id is None:
            raise Closed(f"the transaction of {self._name} is not open", stream=self._name)
        return self._id

    async def open(self) -> None:
        """Begins or resumes it. Raises NoSuchStream, TransactionOver, and the errors of controller calls."""
        try:
            await self._begin()
        except BaseException:
            self._end()
            raise
        self._pinging = asyncio.get_running_loop().create_task(
            self._ping(), name=f"pinging transaction {self._id} of {self._name}"
        )

    async def _begin(self) -> None:
        scope, stream = self.scope, self.stream
        if self._id is None:
            self._id, segments = await self._controller.create_transaction(scope, stream, self.lease_ms)
        else:
            status = await self.status()
            if status is not TransactionStatus.OPEN:
                raise self._over(f"is {status.value}", status.value)
            segments = await self._controller.epoch_segments(scope, stream, self._id.int >> 96)
        if not segments:
            raise NoSuchStream(f"{self._name} has no segments for the transaction", stream=self._name)
        self._router = RangeRouter(segments)

    async def status(self) -> TransactionStatus:
        """Returns the transaction's status, from the controller."""
        return await self._controller.transaction_status(self.scope, self.stream, self.id)

    # --- the lease --------------------------------------------------------------------------------------------------

    async def _ping(self) -> None:
        """Extends the lease until the transaction ends; fails pending writes if a ping reports that it has ended."""
        interval_s = ping_interval_ms(self.lease_ms) / 1000
        while self._error is None:
            await asyncio.sleep(interval_s)
            try:
                status = await self._controller.ping_transaction(self.scope, self.stream, self.id, self.lease_ms)
            except Retriable:
                continue  # the call was already retried; the lease may last until the next ping
            except ClientError as error:
                self._fail(error)
                return
            if status in _GONE:
                self._fail(self._over(f"has ended: a ping returned {status}", status))
                return
            if status in _NO_LONGER:
                return
            self.pings += 1

    def _over(self, how: str, status: str) -> TransactionOver:
        return TransactionOver(
            f"transaction {self._id} of {self._name} {how}", stream=self._name, transaction=self._id, status=status
        )

    def _fail(self, error: ClientError) -> None:
        self._error = self._error or error
        for writer in self._writers.values():
            writer.fail(error)

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Writes an event and waits until it is stored in the transaction. Raises as `submit`."""
        await (await self.submit(event, routing_key=routing_key))

    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """Queues an event; returns a future that completes when it is stored in the transaction. Waits only for room.

        Events without a routing key all go to one segment, in order. Raises EventTooLarge, TransactionOver, Closed, and
        the error of an earlier failed write.
        """
        EventTooLarge.check(event, self._settings.max_event_bytes, stream=self._name)
        self._check()
        assert self._router is not None
        writer = self._writer_of(self._router.route(position_of(str(self.id) if routing_key is None else routing_key)))
        while not writer.has_room:
            await writer.room()
            self._check()
        return writer.write(whole_event(event))

    def _check(self) -> None:
        if self._router is None:
            raise Closed(f"the transaction of {self._name} is not open", stream=self._name)
        if self._error is not None:
            raise self._error.again()
        if self._closed:
            raise self._over("has ended here", "ENDED")

    def _writer_of(self, segment: SegmentRange) -> SegmentWriter:
        writer = self._writers.get(segment.segment_id)
        if writer is None:
            name = transaction_name(segment.name, self.id)
            writer = self._writers[segment.segment_id] = SegmentWriter(
                self._pool, self._locations, name, on_over=self._on_over, frame_events=True
            )
        return writer

    def _on_over(self, writer: SegmentWriter, error: SegmentOver) -> None:
        over = self._over("accepts no more events: it was committed or aborted, or its lease expired", "ENDED").located(
            endpoint=error.endpoint, segment=writer.segment, request_id=error.request_id
        )
        self._fail(over.caused_by(error))

    async def flush(self) -> None:
        """Waits until all earlier events are stored in the transaction. Raises the error of a failed event."""
        self._check()
        for writer in tuple(self._writers.values()):
            await writer.flush()

    # --- commit and abort -------------------------------------------------------------------------------------------

    async def commit(self, *, timestamp: int | None = None, wait: bool = True) -> None:
        """Commits the transaction; unless `wait` is False, waits until the events are in the stream.

        timestamp: the writer's time for these events, for watermarks. Raises the error of a failed write;
        TransactionOver if it was aborted; RequestTimedOut if it is still committing after
        `transaction_commit_timeout_ms`. After a Retriable, check `status`; `commit` can be repeated.
        """
        await self.flush()
        await self._release()
        await self._stop_pinging()  # a ping could mistake this commit for another client's
        await self._controller.commit_transaction(self.scope, self.stream, self.id, self.writer.writer_id, timestamp)
        self._end()
        if wait:
            await self._committed()

    async def _committed(self) -> None:
        limit_ms = self._settings.transaction_commit_timeout_ms
        late = f"transaction {self._id} of {self._name} did not finish committing"
        polls = 0
        async with within(limit_ms, late, stream=self._name, transaction=self._id):
            while (status := await self.status()) is TransactionStatus.COMMITTING or (
                status is TransactionStatus.OPEN  # accepted, but not visible yet
            ):
                polls += 1
                await asyncio.sleep(POLLS.delay_ms(polls, self._pool.random) / 1000)
        if status is not TransactionStatus.COMMITTED:
            raise self._over(f"was to be committed but is {status.value}", status.value)

    async def abort(self) -> None:
        """Aborts the transaction; a no-op if it has ended here. Raises TransactionOver if it is committed."""
        if self._closed or self._id is None:
            self._end()
            return
        await self._stop_pinging()
        await self._release()
        await self._controller.abort_transaction(self.scope, self.stream, self.id)
        self._end()

    async def leave(self) -> ClientError | None:
        """Aborts within `close_timeout_ms` and releases all resources; returns an error instead of raising it.

        Cancelling does not stop it.
        """
        return await finish(self._leave(), f"leaving transaction {self._id} of {self._name}")

    async def _leave(self) -> ClientError | None:
        limit = self._settings.close_timeout_ms
        try:
            async with within(limit, f"transaction {self._id} of {self._name} was not aborted", stream=self._name):
                await self.abort()
        except ClientError as error:
            return error
        finally:
            self._end()
            await self._stop_pinging()
            await self._release()
        return None

    def _end(self) -> None:
        self._closed = True
        self.writer.forget(self)

    async def _stop_pinging(self) -> None:
        task, self._pinging = self._pinging, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _release(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            await writer.abort()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None and not self._closed:
            try:
                await self.commit()
            except BaseException:
                if not self._closed:
                    await self.leave()
                raise
        elif error is not None:
            problem = await self.leave()
            if problem is not None:
                error.add_note(f"transaction {self._id} of {self._name} was not aborted: {problem}; its lease ends it")
