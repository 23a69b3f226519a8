"""The synchronous classes of `segstore.client.stream`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, Self, TypeVar
from uuid import UUID

from segstore.client import ByteReader as AsyncByteReader
from segstore.client import ByteWriter as AsyncByteWriter
from segstore.client import EventReader as AsyncEventReader
from segstore.client import EventWriter as AsyncEventWriter
from segstore.client import RevisionedStream as AsyncRevisionedStream
from segstore.client import StateSynchronizer as AsyncStateSynchronizer
from segstore.client import Transaction as AsyncTransaction
from segstore.client import TransactionWriter as AsyncTransactionWriter
from segstore.client.controller import StreamCut, TransactionStatus
from segstore.client.segment import WriterStats
from segstore.client.stream import Entry, Revision, StateRules, StreamEvent
from segstore.client.sync.proxies import EnteredProxy, Iteration, parts_of, step
from segstore.wire import Buffer

S = TypeVar("S")


class ByteWriter(EnteredProxy[AsyncByteWriter]):
    """Appends bytes to a byte stream. Use with `with`, or `open` and `close`."""

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    def open(self) -> None:
        """Opens the writer. Raises NoSuchStream, StreamSealed, and RequestRejected for a stream of several segments."""
        self._lease.run(self._inner.open)

    def append(self, data: Buffer) -> None:
        """Queues bytes; waits for room. They are stored once `flush` returns. The buffer is copied and may be reused.

        Raises SegmentSealed, and the error of an earlier failed append.
        """
        self._lease.run(self._inner.append, data)

    def append_at(self, offset: int, data: Buffer) -> bool:
        """Stores bytes if the segment ends at `offset` once earlier appends are stored; returns whether it did.

        This lets independent writers append without interleaving. If False, nothing is stored, and `tail` returns where
        the segment ends. Concurrent calls run one at a time. Raises EventTooLarge, and what `flush` raises.
        """
        return self._lease.run(self._inner.append_at, offset, data)

    def flush(self) -> None:
        """Waits until all earlier appends are stored. Raises the error of a failed append."""
        self._lease.run(self._inner.flush)

    def seal(self) -> None:
        """Flushes, then seals the segment for all writers; readers end there. Can be called twice."""
        self._lease.run(self._inner.seal)

    def truncate(self, offset: int) -> None:
        """Deletes all bytes before the offset; a no-op for an offset before the head.

        Raises RequestRejected for an offset that is negative or beyond the tail.
        """
        self._lease.run(self._inner.truncate, offset)

    def close(self) -> None:
        """Flushes for up to `close_timeout_ms`, then closes. Can be called twice. Raises what `flush` raises."""
        self._lease.run(self._inner.aclose)

    def abort(self) -> None:
        """Closes immediately; unacknowledged bytes may or may not be stored."""
        self._lease.run(self._inner.abort)

    @property
    def segment(self) -> str:
        """The name of the stream's segment. Raises Closed unless open."""
        return self._lease.call(lambda: self._inner.segment)

    def head(self) -> int:
        """Returns the offset of the first byte that is not truncated. Raises as `SegmentRequests.ask`."""
        return self._lease.run(self._inner.head)

    def tail(self) -> int:
        """Returns the offset at which the next byte will be stored. Raises as `head`."""
        return self._lease.run(self._inner.tail)


class ByteReader(EnteredProxy[AsyncByteReader]):
    """Reads bytes from a byte stream. Use with `with` and `for`, or `open`, `read` and `close`.

    Attributes:
        position: offset of the next byte to read.
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def position(self) -> int:
        return self._lease.call(lambda: self._inner.position)

    def open(self) -> None:
        """Opens the reader. Raises NoSuchStream, and RequestRejected for a stream of several segments."""
        self._lease.run(self._inner.open)

    def read(self, most_bytes: int = 2097152) -> bytes:
        """Returns 1 to `most_bytes` bytes, b"" at the end of a sealed segment. Waits at the tail.

        Only one read or seek may be pending. Raises SegmentTruncated if the position is before the head, and what
        `SegmentReader.read` raises.
        """
        return self._lease.run(self._inner.read, most_bytes)

    def read_exactly(self, count: int) -> bytes:
        """Returns `count` bytes, fewer only at the end of a sealed segment. Cancelling restores the position."""
        return self._lease.run(self._inner.read_exactly, count)

    def read_at(self, offset: int, count: int) -> bytes:
        """Returns up to `count` bytes from an offset, without waiting for more. The position does not change.

        Raises SegmentTruncated, and what `tail` and `SegmentReader.read` raise.
        """
        return self._lease.run(self._inner.read_at, offset, count)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves the position like a file's, relative to offset 0, the position or the tail; returns it.

        A position before the head or beyond the tail shows at the next read. Raises ValueError for a negative position.
        """
        return self._lease.run(self._inner.seek, offset, whence)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return step(self._inner, self._lease)

    def close(self) -> None:
        """Closes the reader; a pending read raises Closed. Can be called twice."""
        self._lease.run(self._inner.aclose)

    @property
    def segment(self) -> str:
        """The name of the stream's segment. Raises Closed unless open."""
        return self._lease.call(lambda: self._inner.segment)

    def head(self) -> int:
        """Returns the offset of the first byte that is not truncated. Raises as `SegmentRequests.ask`."""
        return self._lease.run(self._inner.head)

    def tail(self) -> int:
        """Returns the offset at which the next byte will be stored. Raises as `head`."""
        return self._lease.run(self._inner.tail)


class EventReader(EnteredProxy[AsyncEventReader]):
    """A reader of one stream. Use with `with` and `for`, or `open`, `read` and `close`."""

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    def open(self) -> None:
        """Finds the start and begins reading.

        Raises NoSuchStream, CutError for a cut that leaves out keys, or is behind the end of a segment, and
        the errors of controller calls and requests.
        """
        self._lease.run(self._inner.open)

    @property
    def cut(self) -> StreamCut:
        """The position from which to resume: segment id → offset after its last returned event."""
        return self._lease.call(lambda: self._inner.cut)

    def read(self) -> StreamEvent | None:
        """Returns the next event, None at the end of a sealed stream.

        Raises SegmentTruncated, SegmentMissing for a segment that truncation has deleted, NoSuchStream, EventTooLarge,
        TokenRefused, RetriesExhausted, ProtocolViolation, or Closed.
        """
        return self._lease.run(self._inner.read)

    def read_slice(self) -> list[StreamEvent]:
        """Returns all buffered events of the next segment read, in order; [] only at the end of a sealed stream.
        Cheaper than `read` for many events. Raises as `read`.
        """
        return self._lease.run(self._inner.read_slice)

    def slices(self) -> Iterator[list[StreamEvent]]:
        """Iterates over `read_slice` to the end of a sealed stream."""
        return Iteration(self._lease.call(self._inner.slices), self._lease)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        return step(self._inner, self._lease)

    def close(self) -> None:
        """Stops reading; a pending read raises Closed. Can be called twice."""
        self._lease.run(self._inner.aclose)


class EventWriter(EnteredProxy[AsyncEventWriter]):
    """A writer of one stream. Use with `with`, or `open` and `close`.

    Attributes:
        name: the writer's name, by which statistics are aggregated; its writer ids are derived from it (79.8).
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def name(self) -> str:
        return self._inner.name

    def open(self) -> None:
        """Fetches the stream's segments and starts their writers, or with `lazy_start` only the first one needed.

        Raises NoSuchStream, StreamSealed, the errors of controller calls, and the error of a writer that failed to
        start. The writer is then closed.
        """
        self._lease.run(self._inner.open)

    def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Writes an event and waits until it is stored. Cancelling the wait does not withdraw the event.

        Raises EventTooLarge, StreamSealed, NoSuchStream, TokenRefused, RetriesExhausted, Closed; the last three also
        if the segment's writer does not start.
        """
        self._lease.run(self._inner.write, event, routing_key=routing_key)

    def submit(self, event: bytes, *, routing_key: str | None = None) -> Future[None]:
        """Accepts an event and waits for room; returns a future that completes when it is stored, or has the error.

        Events of a segment are stored in the order of these calls, across all callers. Errors are also raised by
        `flush` and, unless that did, by `close`. The router chooses the segment. The first event of a segment waits
        until its writer has started, and raises the error if it does not. If the wait is cancelled, the event stays
        accepted.
        """
        return self._lease.submit(self._inner.submit, event, routing_key=routing_key)

    def note_time(self, timestamp: int) -> None:
        """Notes a time: all earlier events are of this time or before, all later events of this time or after.

        Flushes first. timestamp: in any unit that the stream's writers and readers agree on, such as Unix ms. The
        controller combines the times of all writers every few seconds; `TimeWindows` is what readers see. A large event
        counts once a smaller event is stored behind it. Raises as `flush`, RequestRejected for a time before the last,
        and Closed.
        """
        self._lease.run(self._inner.note_time, timestamp)

    @property
    def is_connected(self) -> bool:
        """Whether at least one segment writer has started and all that have are set up at their stores."""
        return self._lease.call(lambda: self._inner.is_connected)

    @property
    def last_sequence(self) -> int:
        """The highest event number of this writer that any segment is known to have stored, or -1."""
        return self._lease.call(lambda: self._inner.last_sequence)

    def stats(self) -> WriterStats:
        """Returns statistics of accepted events and of the segment writers that have started."""
        return self._lease.call(self._inner.stats)

    def flush(self) -> None:
        """Waits until all earlier events are stored. Raises the error of a failed event."""
        self._lease.run(self._inner.flush)

    def close(self) -> None:
        """Flushes for up to `close_timeout_ms`, then closes. Can be called twice.

        Raises what `flush` raises, unless `write` or `flush` has raised the failure of every failed event before; and
        RequestTimedOut if events were not stored in time.
        """
        self._lease.run(self._inner.aclose)

    def abort(self) -> None:
        """Closes immediately; unacknowledged events may or may not be stored."""
        self._lease.run(self._inner.abort)


class RevisionedStream(EnteredProxy[AsyncRevisionedStream]):
    """A revisioned stream. Use with `with`, or call `close`; it connects on first use.

    Attributes:
        segment: the segment's name.
    """

    @property
    def segment(self) -> str:
        return self._inner.segment

    def latest(self) -> Revision:
        """Returns the revision after the last entry."""
        return self._lease.run(self._inner.latest)

    def oldest(self) -> Revision:
        """Returns the revision before the first entry that is not truncated."""
        return self._lease.run(self._inner.oldest)

    def read(self, revision: Revision, to: Revision | None = None) -> Iterator[Entry]:
        """Iterates over the entries after a revision, up to `to` or the segment's current end.

        Raises SegmentTruncated, whose `details["start_offset"]` is the segment's start, the errors of a segment reader,
        and ValueError for a range that ends before it starts.
        """
        return Iteration(self._lease.call(self._inner.read, revision, to), self._lease)

    def write_conditionally(self, revision: Revision, data: bytes) -> Revision | None:
        """Stores an entry if the segment ends at `revision`; returns the revision after it, or None if it does not.

        Concurrent calls run one at a time. Raises EventTooLarge, SegmentSealed, NoSuchStream, TokenRefused,
        RetriesExhausted, Closed.
        """
        return self._lease.run(self._inner.write_conditionally, revision, data)

    def write(self, data: bytes) -> None:
        """Appends an entry unconditionally. Raises as `write_conditionally`."""
        self._lease.run(self._inner.write, data)

    def mark(self) -> Revision | None:
        """Returns the mark, or None."""
        return self._lease.run(self._inner.mark)

    def compare_and_set_mark(self, expected: Revision | None, new: Revision | None) -> bool:
        """Sets the mark if it is `expected`; returns whether it was.

        If a reply was lost, the current mark decides: True if it equals `new`, no matter which writer set it.
        The result is wrongly False only if this call set the mark and another client has changed it since.
        """
        return self._lease.run(self._inner.compare_and_set_mark, expected, new)

    def truncate(self, revision: Revision) -> None:
        """Truncates the entries before a revision; a no-op if they are already gone."""
        self._lease.run(self._inner.truncate, revision)

    def close(self) -> None:
        """Waits for a pending write, then closes. Can be called twice."""
        self._lease.run(self._inner.aclose)


class StateSynchronizer(EnteredProxy[AsyncStateSynchronizer[S]], Generic[S]):
    """A shared state. Use with `with`, or call `close`, which closes its revisioned stream.

    Attributes:
        state: as of the last `fetch` or change, None until initialised.
        revision: the revision of the state.
    """

    def __init__(self, stream: RevisionedStream, rules: StateRules[S]) -> None:
        inner, lease = parts_of(stream)
        super().__init__(AsyncStateSynchronizer(inner, rules), lease)

    @property
    def state(self) -> S | None:
        return self._lease.call(lambda: self._inner.state)

    @property
    def revision(self) -> Revision | None:
        return self._lease.call(lambda: self._inner.revision)

    def initialise(self, initial: bytes) -> bool:
        """Writes the initial state if the stream is empty, else reads the state; returns whether it was empty."""
        return self._lease.run(self._inner.initialise, initial)

    def fetch(self) -> S | None:
        """Reads new records; returns the state, None if it was never initialised.

        Restarts from the mark if new records were truncated.
        """
        return self._lease.run(self._inner.fetch)

    @property
    def bytes_since_compaction(self) -> int:
        """Number of bytes of the updates that were read or written since the last initial record."""
        return self._lease.call(lambda: self._inner.bytes_since_compaction)

    def update(self, change: Callable[[S], Sequence[bytes]]) -> S:
        """Applies the updates that `change` returns, [] for no change; returns the new state.

        On a conflict `change` is called again with the newer state. Raises ConditionFailed if the state was never
        initialised, and what `change` raises.
        """
        return self._lease.run(self._inner.update, change)

    def update_unconditionally(self, updates: Sequence[bytes]) -> None:
        """Writes updates unconditionally; they are visible after the next `fetch`."""
        self._lease.run(self._inner.update_unconditionally, updates)

    def compact(self) -> None:
        """Writes the whole state, so that new processes start there, and truncates records before the last mark."""
        self._lease.run(self._inner.compact)

    def close(self) -> None:
        self._lease.run(self._inner.aclose)


class TransactionWriter(EnteredProxy[AsyncTransactionWriter]):
    """Begins transactions of one stream. Use with `with`, or call `close`.

    Attributes:
        writer_id: identifies the writer to the controller, which records it with commit timestamps.
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def writer_id(self) -> str:
        return self._inner.writer_id

    def begin(self, *, lease_ms: int | None = None) -> Transaction:
        """Returns a new, unopened transaction. lease_ms: defaults to the settings."""
        return Transaction(self._lease.call(self._inner.begin, lease_ms=lease_ms), self._lease)

    def resume(self, transaction: UUID, *, lease_ms: int | None = None) -> Transaction:
        """Returns an unopened handle for a transaction begun elsewhere."""
        return Transaction(self._lease.call(self._inner.resume, transaction, lease_ms=lease_ms), self._lease)

    def status(self, transaction: UUID) -> TransactionStatus:
        """Returns the status of any transaction of the stream."""
        return self._lease.run(self._inner.status, transaction)

    def close(self) -> None:
        """Aborts open transactions; if the controller cannot, their leases end them. Can be called twice."""
        self._lease.run(self._inner.aclose)


class Transaction(EnteredProxy[AsyncTransaction]):
    """A transaction, created by `TransactionWriter`. Use with `with`, or `open` and `commit` or `abort`.

    Attributes:
        lease_ms: its lifetime after a ping.
        pings: number of answered pings.
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def lease_ms(self) -> int:
        return self._inner.lease_ms

    @property
    def pings(self) -> int:
        return self._lease.call(lambda: self._inner.pings)

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises Closed before it is open."""
        return self._lease.call(lambda: self._inner.id)

    def open(self) -> None:
        """Begins or resumes it. Raises NoSuchStream, TransactionOver, and the errors of controller calls."""
        self._lease.run(self._inner.open)

    def status(self) -> TransactionStatus:
        """Returns the transaction's status, from the controller."""
        return self._lease.run(self._inner.status)

    def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """Writes an event and waits until it is stored in the transaction. Raises as `submit`."""
        self._lease.run(self._inner.write, event, routing_key=routing_key)

    def submit(self, event: bytes, *, routing_key: str | None = None) -> Future[None]:
        """Queues an event; returns a future that completes when it is stored in the transaction. Waits only for room.

        Events without a routing key all go to one segment, in order. Raises EventTooLarge, TransactionOver, Closed, and
        the error of an earlier failed write.
        """
        return self._lease.submit(self._inner.submit, event, routing_key=routing_key)

    def flush(self) -> None:
        """Waits until all earlier events are stored in the transaction. Raises the error of a failed event."""
        self._lease.run(self._inner.flush)

    def commit(self, *, timestamp: int | None = None, wait: bool = True) -> None:
        """Commits the transaction; unless `wait` is False, waits until the events are in the stream.

        timestamp: the writer's time for these events, for watermarks. Raises the error of a failed write;
        TransactionOver if it was aborted; RequestTimedOut if it is still committing after
        `transaction_commit_timeout_ms`. After a Retriable, check `status`; `commit` can be repeated.
        """
        self._lease.run(self._inner.commit, timestamp=timestamp, wait=wait)

    def abort(self) -> None:
        """Aborts the transaction; a no-op if it has ended here. Raises TransactionOver if it is committed."""
        self._lease.run(self._inner.abort)
