"""The controller's state as plain values, with the queries that need nothing else.

Invariant: nothing here changes itself. Only the operations of `operations` change the state, each atomically; so a
state is the sum of its operations, can be encoded directly (`msgspec.msgpack.encode`), and is rebuilt by a journal of
operations. There is no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final
from uuid import UUID

import msgspec

from segstore.server.controller.errors import EmptyName, NotFound
from segstore.server.controller.policies import Cut, ReaderGroupConfig, StreamConfig, TableConfig
from segstore.server.controller.state.history import Epoch, KeyRange, StreamSegment, between, find_segment
from segstore.wire.names import segment_name, split_segment_id, transaction_name

SYSTEM_SCOPE: Final = "_system"
"""The scope of Pravega's internal streams and tables; here, if configured, an empty scope."""

READER_GROUP_PREFIX: Final = "_RG"
"""Prefix of a reader group's name in the name of its stream, through which its readers coordinate."""

MARK_PREFIX: Final = "_MARK"
"""Prefix of a stream's name in the name of its stream of watermarks."""

TABLE_SUFFIX: Final = "_kvtable"
"""Suffix of a key-value table's name in the names of its segments."""


def require(**names: str) -> None:
    """Raises `EmptyName` for the first empty name."""
    for kind, name in names.items():
        if not name:
            raise EmptyName(kind)


class TransactionStatus(Enum):
    """Status of a transaction; the values are the names on the wire."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


class Transaction(msgspec.Struct, frozen=True):
    """A transaction that has not ended. `due_ms` is the time at which a requested commit or abort is executed."""

    status: TransactionStatus
    opened_ms: int
    lease_until_ms: int
    must_end_ms: int
    order: int = 0
    due_ms: int = 0
    writer: str = ""
    timestamp: int = 0


class Completed(msgspec.Struct, frozen=True):
    status: TransactionStatus
    ended_ms: int


class Scale(msgspec.Struct, frozen=True):
    """An accepted scale, executed at `due_ms`."""

    epoch: int
    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    due_ms: int


class Subscriber(msgspec.Struct, frozen=True):
    """A reader group that delays retention, and its position."""

    generation: int
    cut: Cut = {}


class WriterMark(msgspec.Struct, frozen=True):
    """A writer's last timestamp, and its position at that time."""

    timestamp: int
    position: Cut
    alive: bool = True


class Watermark(msgspec.Struct, frozen=True):
    """The last published watermark: events up to `cut` have timestamps from `lower` to `upper`.

    `number` counts the watermarks of the stream.
    """

    number: int
    lower: int
    upper: int
    cut: Cut


class RetentionCut(msgspec.Struct, frozen=True):
    """The end of a stream at a time, and the total bytes written before it."""

    recorded_ms: int
    size: int
    cut: Cut


class Stream(msgspec.Struct):
    """One stream. `sizes` are the lengths of sealed segments, `cut` is its truncation point ({}: not truncated)."""

    scope: str
    name: str
    config: StreamConfig
    created_ms: int
    epochs: list[Epoch]
    sealed: bool = False
    sizes: dict[int, int] = {}
    cut: Cut = {}
    deleted: set[int] = set()
    scale: Scale | None = None
    transactions: dict[UUID, Transaction] = {}
    completed: dict[UUID, Completed] = {}
    commits: int = 0
    subscribers: dict[str, Subscriber] = {}
    writers: dict[str, WriterMark] = {}
    retention_cuts: list[RetentionCut] = []
    watermark: Watermark | None = None

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.name}"

    @property
    def current(self) -> Epoch:
        """Returns the epoch that takes writes or, in a sealed stream, took the last writes."""
        return self.epochs[-1]

    @property
    def is_internal(self) -> bool:
        return self.name.startswith("_")

    def segment(self, identifier: int) -> StreamSegment:
        """Returns the segment with this id, current or not. Raises `NotFound` if it never existed."""
        segment = find_segment(self.epochs, identifier)
        if segment is None:
            epoch, number = split_segment_id(identifier)
            raise NotFound("segment", f"{self.full_name}/{number}.#epoch.{epoch}")
        return segment

    def epoch(self, number: int) -> Epoch:
        """Returns the epoch with this number. Raises `NotFound` if it does not exist."""
        if not 0 <= number < len(self.epochs):
            raise NotFound("epoch", f"{number} of stream {self.full_name}")
        return self.epochs[number]

    def segment_name(self, segment: StreamSegment) -> str:
        return segment.name(self.scope, self.name)

    def all_segments(self) -> Iterator[StreamSegment]:
        """Yields every segment that was not deleted, once."""
        for epoch in self.epochs:
            for segment in epoch.created.values():
                if segment.id not in self.deleted:
                    yield segment

    def head(self) -> Cut:
        """Returns the cut at which the stream begins."""
        return dict(self.cut) if self.cut else {segment.id: 0 for segment in self.epochs[0].segments}

    def transaction_segments(self, transaction_id: UUID) -> Iterator[tuple[StreamSegment, str]]:
        """Yields each segment of the transaction's epoch and the name of the transaction's segment for it.

        The name has the segment's number and the transaction's epoch, not the segment's epoch, so that it can be merged
        into any later segment with that number.
        """
        epoch = transaction_epoch(transaction_id)
        for segment in self.epoch(epoch).segments:
            parent = segment_name(self.scope, self.name, segment.number, epoch)
            yield segment, transaction_name(parent, transaction_id)

    def size_till(self, cut: Cut) -> int:
        """Returns the total bytes written before a valid cut."""
        segments = between(self.epochs, {}, cut)
        return sum(
            max(cut[segment.id], 0) if segment.id in cut else self.sizes.get(segment.id, 0) for segment in segments
        )


def transaction_epoch(transaction_id: UUID) -> int:
    """Returns the epoch in the top 32 bits of a transaction id."""
    return transaction_id.int >> 96


class Table(msgspec.Struct):
    """One key-value table; its partitions never change."""

    scope: str
    name: str
    config: TableConfig
    created_ms: int
    epoch: Epoch

    def segment_name(self, segment: StreamSegment) -> str:
        return segment.name(self.scope, self.name + TABLE_SUFFIX)


class Scope(msgspec.Struct):
    """One scope and its contents, by name."""

    name: str
    created_ms: int
    streams: dict[str, Stream] = {}
    reader_groups: dict[str, ReaderGroupConfig] = {}
    tables: dict[str, Table] = {}


class State(msgspec.Struct):
    """The whole state. `numbers`: names of deleted streams and tables → the first segment number they may use again.

    Lookups raise `NotFound`, or `EmptyName`.
    """

    scopes: dict[str, Scope] = {}
    numbers: dict[str, int] = {}
    transactions: int = 0

    def scope(self, name: str) -> Scope:
        scope = self.scopes.get(name)
        if scope is None:
            require(scope=name)
            raise NotFound("scope", name)
        return scope

    def find_stream(self, scope: str, name: str) -> Stream | None:
        """Returns the stream; None if the stream or its scope does not exist."""
        holder = self.scopes.get(scope)
        return None if holder is None else holder.streams.get(name)

    def stream(self, scope: str, name: str) -> Stream:
        stream = self.find_stream(scope, name)
        if stream is None:
            require(scope=scope, stream=name)
            raise NotFound("stream", f"{scope}/{name}")
        return stream

    def reader_group(self, scope: str, name: str) -> ReaderGroupConfig:
        try:
            return self.scopes[scope].reader_groups[name]
        except KeyError:
            raise NotFound("reader group", f"{scope}/{name}") from None

    def table(self, scope: str, name: str) -> Table:
        try:
            return self.scopes[scope].tables[name]
        except KeyError:
            require(scope=scope, table=name)
            raise NotFound("key-value table", f"{scope}/{name}") from None

    def streams(self) -> Iterator[Stream]:
        for scope in self.scopes.values():
            yield from scope.streams.values()
