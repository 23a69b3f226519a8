"""The synchronous classes of `segstore.client.client`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from segstore.client import connect as async_connect
from segstore.client.batch import EventRange
from segstore.client.config import ClientSettings
from segstore.client.connection import Credentials, PoolMetrics
from segstore.client.groups import GroupEnd, GroupForm, GroupRetention, GroupStart
from segstore.client.stream import From, Router
from segstore.client.sync.batch import EventRangeReader
from segstore.client.sync.controller import Controller
from segstore.client.sync.groups import ReaderGroup
from segstore.client.sync.loop import Lease
from segstore.client.sync.proxies import OpenedClient
from segstore.client.sync.stream import (
    ByteReader,
    ByteWriter,
    EventReader,
    EventWriter,
    RevisionedStream,
    TransactionWriter,
)
from segstore.client.sync.tables import KeyValueTable
from segstore.client.sync.watermarks import TimeWindows


class Client(OpenedClient):
    """A Pravega client, created by `connect`. Use it with `with`, or call `open` and `close`."""

    @property
    def controller(self) -> Controller:
        """The controller client, for scopes, streams and segments. Raises Closed unless the client is open."""
        return Controller(self._lease.call(lambda: self._inner.controller), self._lease)

    def metrics(self) -> PoolMetrics:
        """The pool's metrics, as plain numbers."""
        return self._lease.call(self._inner.metrics)

    def event_writer(
        self,
        scope: str,
        stream: str,
        *,
        lazy_start: bool = False,
        router: Router | None = None,
        name: str | None = None,
    ) -> EventWriter:
        """Returns an unopened event writer; the options are as for `EventWriter`."""
        return EventWriter(
            self._lease.call(self._inner.event_writer, scope, stream, lazy_start=lazy_start, router=router, name=name),
            self._lease,
        )

    def event_reader(self, scope: str, stream: str, *, from_: From = "head") -> EventReader:
        """Returns an unopened reader of all of a stream's events.

        from_: "head", "tail", or a cut: segment id → offset.
        """
        return EventReader(self._lease.call(self._inner.event_reader, scope, stream, from_=from_), self._lease)

    def event_ranges(self, scope: str, stream: str, *, from_: From = "head", to: From = "tail") -> list[EventRange]:
        """Returns the segment ranges between two positions, for `range_reader`, in any process.

        from_, to: "head", "tail", or a cut. Raises as `segstore.client.batch.event_ranges`.
        """
        return self._lease.run(self._inner.event_ranges, scope, stream, from_=from_, to=to)

    def range_reader(self, wanted: EventRange) -> EventRangeReader:
        """Returns a reader of the events of one range."""
        return EventRangeReader(self._lease.call(self._inner.range_reader, wanted), self._lease)

    def time_windows(self, scope: str, stream: str) -> TimeWindows:
        """Returns the time windows of a stream's positions, from the times that its writers note."""
        return TimeWindows(self._lease.call(self._inner.time_windows, scope, stream), self._lease)

    def byte_writer(self, scope: str, stream: str) -> ByteWriter:
        """Returns an unopened writer of bytes to a stream with one segment."""
        return ByteWriter(self._lease.call(self._inner.byte_writer, scope, stream), self._lease)

    def byte_reader(self, scope: str, stream: str, *, from_: Literal["head", "tail"] | int = "head") -> ByteReader:
        """Returns an unopened reader of a byte stream. from_: "head", "tail", or an offset."""
        return ByteReader(self._lease.call(self._inner.byte_reader, scope, stream, from_=from_), self._lease)

    def reader_group(
        self,
        scope: str,
        name: str,
        *,
        streams: Sequence[str] = (),
        from_: GroupStart = "head",
        to: GroupEnd | None = None,
        refresh_ms: int = 3000,
        checkpoint_ms: int = 30000,
        retention: GroupRetention = "none",
        shared_with: GroupForm = "java",
    ) -> ReaderGroup:
        """Returns an unopened reader group; opening it creates the group over these streams unless it exists.

        from_: where a new group starts: "head", "tail", or a mapping from each stream to "head", "tail" or a cut. to:
        where it ends, and its readers stop: "tail", the streams' present ends, or a mapping from streams to "tail" or a
        cut; None for no end. refresh_ms: how often readers of a new group record their positions.
        checkpoint_ms: how often they begin a checkpoint; 0 for never. retention: whether the streams keep data that the
        group has not read: "none", "manual" (behind the cuts that `update_retention` reports) or "automatic" (behind
        its last checkpoint). shared_with: the clients whose readers can be in a new group: "java", or "rust" for
        clients in Rust and the Python package `pravega`, whose groups have no ends, checkpoints and retention; an
        existing group keeps its form.
        """
        return ReaderGroup(
            self._lease.call(
                self._inner.reader_group,
                scope,
                name,
                streams=streams,
                from_=from_,
                to=to,
                refresh_ms=refresh_ms,
                checkpoint_ms=checkpoint_ms,
                retention=retention,
                shared_with=shared_with,
            ),
            self._lease,
        )

    def revisioned_stream(self, scope: str, stream: str) -> RevisionedStream:
        """Returns a client of a one-segment stream used as a log with conditional writes, a mark and truncation."""
        return RevisionedStream(self._lease.call(self._inner.revisioned_stream, scope, stream), self._lease)

    def transaction_writer(self, scope: str, stream: str, *, writer_id: str | None = None) -> TransactionWriter:
        """Returns an unopened writer of transactions. writer_id: names the writer in commits; random by default."""
        return TransactionWriter(
            self._lease.call(self._inner.transaction_writer, scope, stream, writer_id=writer_id), self._lease
        )

    def table(self, scope: str, table: str) -> KeyValueTable:
        """Returns an unopened key-value table; `controller.create_table` creates one."""
        return KeyValueTable(self._lease.call(self._inner.table, scope, table), self._lease)


def connect(
    uri: str,
    settings: ClientSettings | None = None,
    *,
    credentials: Credentials | None = None,
    random: Random | None = None,
) -> Client:
    """Returns an unopened client of the controllers at `uri`: `tcp://127.0.0.1:9090` or `tls://a:9090,b:9090`.

    settings: by default from the environment. credentials: `Basic`, `Bearer` or another `Credentials`; overrides the
    settings. Raises ValueError if the URI is invalid.
    """
    return Client(async_connect(uri, settings, credentials=credentials, random=random), Lease())
