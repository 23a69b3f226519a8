"""The synchronous classes of `segstore.client.controller`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from segstore.client.connection import Endpoint
from segstore.client.controller import Access, StreamConfig, Successor, TableConfig, TransactionStatus
from segstore.client.controller import Controller as AsyncController
from segstore.client.routing import SegmentRange
from segstore.client.sync.proxies import Iteration, Proxy
from segstore.wire.reader_groups import GroupConfig


class Controller(Proxy[AsyncController]):
    """The controller's operations.

    Methods raise the errors of `ControllerChannels.ask` and, depending on the status in the answer, NoSuchStream,
    NoSuchTable, StreamSealed, TransactionOver or RequestRejected, which name the node that sent it, and
    ProtocolViolation for values that no controller sends.
    """

    def create_scope(self, scope: str) -> bool:
        """Creates a scope; returns False if it exists."""
        return self._lease.run(self._inner.create_scope, scope)

    def delete_scope(self, scope: str) -> bool:
        """Deletes a scope; returns False if it does not exist."""
        return self._lease.run(self._inner.delete_scope, scope)

    def list_scopes(self) -> Iterator[str]:
        """Iterates over all scopes, page by page."""
        return Iteration(self._lease.call(self._inner.list_scopes), self._lease)

    def list_streams(self, scope: str, *, tag: str | None = None) -> Iterator[str]:
        """Iterates over all streams of a scope, or all with a tag, page by page."""
        return Iteration(self._lease.call(self._inner.list_streams, scope, tag=tag), self._lease)

    def create_stream(
        self, scope: str, stream: str, config: StreamConfig | None = None, *, segments: int | None = None
    ) -> bool:
        """Creates a stream; returns False if it exists, whatever its configuration.

        segments: instead of `config`, for a stream with a fixed number of segments and nothing else; 1 by default.
        Raises ValueError for fewer than 1, for a configuration that no stream can have, and if `config` is given, too.
        """
        return self._lease.run(self._inner.create_stream, scope, stream, config, segments=segments)

    def update_stream(self, scope: str, stream: str, config: StreamConfig) -> None:
        """Replaces a stream's configuration. Raises NoSuchStream, StreamSealed, and ValueError as `create_stream`.

        To change a part: `dataclasses.replace(controller.stream_config(…), tags=(…))`.
        """
        self._lease.run(self._inner.update_stream, scope, stream, config)

    def stream_config(self, scope: str, stream: str) -> StreamConfig:
        """Returns a stream's configuration. Raises NoSuchStream, and ProtocolViolation for an unknown policy."""
        return self._lease.run(self._inner.stream_config, scope, stream)

    def seal_stream(self, scope: str, stream: str) -> None:
        self._lease.run(self._inner.seal_stream, scope, stream)

    def delete_stream(self, scope: str, stream: str) -> None:
        self._lease.run(self._inner.delete_stream, scope, stream)

    def truncate_stream(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """Deletes all data before a cut: segment id → offset. Raises CutError for a `StreamCut` of another stream."""
        self._lease.run(self._inner.truncate_stream, scope, stream, cut)

    def scale(
        self,
        scope: str,
        stream: str,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        *,
        wait_ms: float = 0,
    ) -> list[SegmentRange]:
        """Seals segments and replaces them by new segments over the same key range; returns the new segments.

        wait_ms: how long to wait for completion. With 0 the scale may still be in progress on return; the controller
        refuses another one until it has finished. Raises RequestRejected, also if fewer segments would be left than the
        stream was created with (PRECONDITION_FAILED), and RequestTimedOut if the scale started but takes longer.
        """
        return self._lease.run(self._inner.scale, scope, stream, sealed, ranges, wait_ms=wait_ms)

    def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """Returns the open segments; [] for a sealed stream."""
        return self._lease.run(self._inner.current_segments, scope, stream)

    def head(self, scope: str, stream: str) -> dict[int, int]:
        """Returns the stream's head as a cut: segment id → offset."""
        return self._lease.run(self._inner.head, scope, stream)

    def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """Returns a segment's successors, [] if none yet. Raises ProtocolViolation if an epoch is not later."""
        return self._lease.run(self._inner.successors, scope, stream, segment_id)

    def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        """Returns the segments of an epoch."""
        return self._lease.run(self._inner.epoch_segments, scope, stream, epoch)

    def segments_between(self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]) -> list[int]:
        """Returns the ids of the segments that have data between two cuts; one may be empty: the head or the tail.

        Raises RequestRejected if a cut does not belong to the stream or the end lies before the start.
        """
        return self._lease.run(self._inner.segments_between, scope, stream, start, end)

    def create_transaction(self, scope: str, stream: str, lease_ms: int) -> tuple[UUID, list[SegmentRange]]:
        """Creates a transaction; returns its id and the stream segments that its own segments belong to."""
        return self._lease.run(self._inner.create_transaction, scope, stream, lease_ms)

    def ping_transaction(self, scope: str, stream: str, transaction: UUID, lease_ms: int) -> str:
        """Extends a lease; returns the status that the controller reports."""
        return self._lease.run(self._inner.ping_transaction, scope, stream, transaction, lease_ms)

    def commit_transaction(
        self, scope: str, stream: str, transaction: UUID, writer: str = "", timestamp: int | None = None
    ) -> None:
        """Requests a commit; the events are readable once its status is COMMITTED. Raises TransactionOver."""
        self._lease.run(self._inner.commit_transaction, scope, stream, transaction, writer, timestamp)

    def abort_transaction(self, scope: str, stream: str, transaction: UUID) -> None:
        """Aborts a transaction. Raises TransactionOver."""
        self._lease.run(self._inner.abort_transaction, scope, stream, transaction)

    def transaction_status(self, scope: str, stream: str, transaction: UUID) -> TransactionStatus:
        return self._lease.run(self._inner.transaction_status, scope, stream, transaction)

    def completed_transactions(self, scope: str, stream: str) -> dict[UUID, TransactionStatus]:
        """Returns the latest transactions that ended; none for an unknown stream.

        Pravega keeps them by time, for all streams together, so some may be missing.
        """
        return self._lease.run(self._inner.completed_transactions, scope, stream)

    def note_time(self, scope: str, stream: str, writer: str, timestamp: int, position: Mapping[int, int]) -> None:
        """Notes that a writer had reached a position, segment id → offset, at a time, for watermarks.

        Raises RequestRejected, whose status is INVALID_TIME for a time before the writer's last time, and
        INVALID_POSITION for a position before it.
        """
        self._lease.run(self._inner.note_time, scope, stream, writer, timestamp, position)

    def remove_writer(self, scope: str, stream: str, writer: str) -> bool:
        """Removes a writer from the computation of watermarks; returns False if it has reported no time."""
        return self._lease.run(self._inner.remove_writer, scope, stream, writer)

    def create_reader_group(self, scope: str, group: str, config: GroupConfig) -> GroupConfig:
        """Creates a reader group with its stream; returns its configuration, or an existing group's.

        The group's state is written by a client, see `segstore.client.groups`. Raises NoSuchStream for its scope.
        """
        return self._lease.run(self._inner.create_reader_group, scope, group, config)

    def reader_group_config(self, scope: str, group: str) -> GroupConfig:
        """Returns a reader group's configuration. Raises NoSuchReaderGroup."""
        return self._lease.run(self._inner.reader_group_config, scope, group)

    def update_reader_group(self, scope: str, group: str, config: GroupConfig) -> int:
        """Replaces a configuration, whose id and generation must be current; returns the new generation.

        Raises NoSuchReaderGroup, and RequestRejected with the status INVALID_CONFIG for another id or generation.
        """
        return self._lease.run(self._inner.update_reader_group, scope, group, config)

    def delete_reader_group(self, scope: str, group: str, identifier: UUID) -> None:
        """Deletes a reader group with its stream. identifier: from its configuration. Raises NoSuchReaderGroup."""
        self._lease.run(self._inner.delete_reader_group, scope, group, identifier)

    def update_subscriber_cut(
        self, scope: str, stream: str, group: str, config: GroupConfig, cut: Mapping[int, int]
    ) -> None:
        """Reports that a group needs no data of a stream before a cut. group: as "scope/group".

        Raises RequestRejected, whose status is STREAM_CUT_NOT_VALID, SUBSCRIBER_NOT_FOUND or GENERATION_MISMATCH.
        """
        self._lease.run(self._inner.update_subscriber_cut, scope, stream, group, config, cut)

    def create_table(self, scope: str, table: str, config: TableConfig) -> bool:
        """Creates a table; returns False if one exists, whatever its configuration."""
        return self._lease.run(self._inner.create_table, scope, table, config)

    def delete_table(self, scope: str, table: str) -> bool:
        """Deletes a table and its contents; returns False if it does not exist."""
        return self._lease.run(self._inner.delete_table, scope, table)

    def list_tables(self, scope: str) -> Iterator[str]:
        """Iterates over all key-value tables of a scope, page by page."""
        return Iteration(self._lease.call(self._inner.list_tables, scope), self._lease)

    def table_config(self, scope: str, table: str) -> TableConfig:
        """Returns a table's configuration. Raises NoSuchTable."""
        return self._lease.run(self._inner.table_config, scope, table)

    def table_segments(self, scope: str, table: str) -> list[SegmentRange]:
        """Returns the table's partitions. Raises NoSuchTable."""
        return self._lease.run(self._inner.table_segments, scope, table)

    def endpoint_of(self, scope: str, stream: str, segment_id: int) -> Endpoint:
        """Returns the endpoint of the store that owns a segment."""
        return self._lease.run(self._inner.endpoint_of, scope, stream, segment_id)

    def delegation_token(self, scope: str, stream: str, access: Access) -> str:
        """Returns a delegation token; "" if the controller issues no tokens."""
        return self._lease.run(self._inner.delegation_token, scope, stream, access)
