"""Operations that change the controller's state, as values: journaled, and applied again by recovery.

An operation records an effect, not a request: names were checked, times read and ids drawn when it was created, so
applying it never fails on the state that earlier operations produced. Changes in the segment store come before the
operation and are idempotent, so a controller that crashes in between restarts with an older but valid state.

`encode` and `decode` convert an operation to and from msgpack; the tags are the journal's format.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final
from uuid import UUID

import msgspec

from segstore.server.controller.policies import Cut, ReaderGroupConfig, StreamConfig, SubscriberRetention, TableConfig
from segstore.server.controller.state.epochs import Epoch, KeyRange, Segment, first_epoch, next_epoch
from segstore.server.controller.state.state import (
    TABLE_SUFFIX,
    Completed,
    RetentionCut,
    Scale,
    Scope,
    State,
    Stream,
    Subscriber,
    Table,
    Transaction,
    TransactionStatus,
    Watermark,
    WriterMark,
)

_LOW_HALF: Final = (1 << 64) - 1


class _Operation(msgspec.Struct, frozen=True, tag=True):
    scope: str


class _OfStream(_Operation, frozen=True):
    stream: str


# Scopes


class ScopeCreated(_Operation, frozen=True):
    now_ms: int

    def apply(self, state: State) -> None:
        state.scopes[self.scope] = Scope(self.scope, self.now_ms)


class ScopeDeleted(_Operation, frozen=True):
    def apply(self, state: State) -> None:
        del state.scopes[self.scope]


# Streams


class StreamCreated(_OfStream, frozen=True):
    """The stream was created with segments numbered from `first_number`."""

    config: StreamConfig
    first_number: int
    now_ms: int

    def apply(self, state: State) -> None:
        epoch = first_epoch(self.config.scaling.min_segments, self.first_number, self.now_ms)
        stream = Stream(self.scope, self.stream, self.config, self.now_ms, [epoch])
        state.scope(self.scope).streams[self.stream] = stream


class StreamUpdated(_OfStream, frozen=True):
    config: StreamConfig

    def apply(self, state: State) -> None:
        state.stream(self.scope, self.stream).config = self.config


class StreamTruncated(_OfStream, frozen=True):
    """The stream was truncated at `cut`, and the segments in `deleted` were deleted."""

    cut: Cut
    deleted: tuple[int, ...]

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        stream.cut = dict(self.cut)
        stream.deleted.update(self.deleted)


class StreamSealed(_OfStream, frozen=True):
    """The stream was sealed; `sizes` are the lengths of the segments sealed with it."""

    sizes: dict[int, int]

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        stream.sealed = True
        stream.scale = None
        stream.sizes.update(self.sizes)


class StreamDeleted(_OfStream, frozen=True):
    def apply(self, state: State) -> None:
        stream = state.scope(self.scope).streams.pop(self.stream)
        state.numbers[stream.full_name] = stream.next_number


class ScaleStarted(_OfStream, frozen=True):
    """The segments in `sealed` of the current epoch will be replaced at `due_ms`."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    due_ms: int

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        stream.scale = Scale(stream.current.number, self.sealed, self.ranges, self.due_ms)


class ScaleFinished(_OfStream, frozen=True):
    """The next epoch began; `sizes` are the lengths of the replaced segments."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    sizes: dict[int, int]
    now_ms: int

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        stream.epochs.append(next_epoch(stream.current, self.sealed, self.ranges, self.now_ms))
        stream.sizes.update(self.sizes)
        stream.scale = None


class EpochRolled(_OfStream, frozen=True):
    """Transactions of an older epoch were committed: copies of that epoch and of the current one were added."""

    epoch: int
    sizes: dict[int, int]
    now_ms: int

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        for again in rolled(stream, self.epoch, self.now_ms):
            stream.epochs.append(again)
        stream.sizes.update(self.sizes)


def rolled(stream: Stream, epoch: int, now_ms: int) -> tuple[Epoch, Epoch]:
    """Return the epochs with which a stream merges transactions of an older epoch: copies of that and the current."""
    old, current = stream.epoch(epoch), stream.current
    created_ms = max(now_ms, current.created_ms + 1)
    return (_copy(old, current.number + 1, created_ms), _copy(current, current.number + 2, created_ms + 1))


def _copy(epoch: Epoch, number: int, created_ms: int) -> Epoch:
    segments = tuple(Segment(each.number, number, each.start, each.end, created_ms) for each in epoch.segments)
    return Epoch(number, epoch.reference, segments, created_ms)


# Transactions


class _OfTransaction(_OfStream, frozen=True):
    transaction: UUID


class TransactionOpened(_OfTransaction, frozen=True):
    lease_until_ms: int
    must_end_ms: int
    now_ms: int

    def apply(self, state: State) -> None:
        state.transactions = max(state.transactions, (self.transaction.int & _LOW_HALF) + 1)
        stream = state.stream(self.scope, self.stream)
        stream.transactions[self.transaction] = Transaction(
            TransactionStatus.OPEN, self.now_ms, self.lease_until_ms, self.must_end_ms
        )


class TransactionPinged(_OfTransaction, frozen=True):
    lease_until_ms: int

    def apply(self, state: State) -> None:
        open_now = state.stream(self.scope, self.stream).transactions
        pinged = msgspec.structs.replace(open_now[self.transaction], lease_until_ms=self.lease_until_ms)
        open_now[self.transaction] = pinged


class CommitStarted(_OfTransaction, frozen=True):
    """The transaction will be committed at `due_ms`, after all earlier requests."""

    writer: str
    timestamp: int
    due_ms: int

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        stream.commits += 1
        stream.transactions[self.transaction] = msgspec.structs.replace(
            stream.transactions[self.transaction],
            status=TransactionStatus.COMMITTING,
            order=stream.commits,
            due_ms=self.due_ms,
            writer=self.writer,
            timestamp=self.timestamp,
        )


class AbortStarted(_OfTransaction, frozen=True):
    due_ms: int

    def apply(self, state: State) -> None:
        open_now = state.stream(self.scope, self.stream).transactions
        open_now[self.transaction] = msgspec.structs.replace(
            open_now[self.transaction], status=TransactionStatus.ABORTING, due_ms=self.due_ms
        )


class TransactionEnded(_OfTransaction, frozen=True):
    """The transaction's data was merged into the stream, or deleted."""

    committed: bool
    now_ms: int

    def apply(self, state: State) -> None:
        stream = state.stream(self.scope, self.stream)
        del stream.transactions[self.transaction]
        status = TransactionStatus.COMMITTED if self.committed else TransactionStatus.ABORTED
        stream.completed[self.transaction] = Completed(status, self.now_ms)


class CompletedForgotten(_OfStream, frozen=True):
    """The outcomes of transactions that ended before `before_ms` were dropped."""

    before_ms: int

    def apply(self, state: State) -> None:
        completed = state.stream(self.scope, self.stream).completed  # in the order of their ends
        for each in list(takewhile(lambda each: completed[each].ended_ms < self.before_ms, completed)):
            del completed[each]


# Retention and writers


class RetentionCutRecorded(_OfStream, frozen=True):
    cut: RetentionCut

    def apply(self, state: State) -> None:
        state.stream(self.scope, self.stream).retention_cuts.append(self.cut)


class RetentionCutsForgotten(_OfStream, frozen=True):
    """The first `count` retention cuts were dropped."""

    count: int

    def apply(self, state: State) -> None:
        del state.stream(self.scope, self.stream).retention_cuts[: self.count]


class WriterNoted(_OfStream, frozen=True):
    writer: str
    timestamp: int
    position: Cut

    def apply(self, state: State) -> None:
        mark = WriterMark(self.timestamp, dict(self.position))
        state.stream(self.scope, self.stream).writers[self.writer] = mark


class WriterGone(_OfStream, frozen=True):
    writer: str

    def apply(self, state: State) -> None:
        writers = state.stream(self.scope, self.stream).writers
        writers[self.writer] = msgspec.structs.replace(writers[self.writer], alive=False)


class WriterForgotten(_OfStream, frozen=True):
    """A writer was forgotten and no longer delays watermarks."""

    writer: str

    def apply(self, state: State) -> None:
        del state.stream(self.scope, self.stream).writers[self.writer]


class WatermarkWritten(_OfStream, frozen=True):
    """A watermark was written to the stream of watermarks."""

    watermark: Watermark

    def apply(self, state: State) -> None:
        state.stream(self.scope, self.stream).watermark = self.watermark


# Reader groups


class ReaderGroupSet(_Operation, frozen=True):
    """The reader group was given this configuration, which determines its subscriptions."""

    name: str
    config: ReaderGroupConfig

    def apply(self, state: State) -> None:
        groups = state.scope(self.scope).reader_groups
        subscriber = f"{self.scope}/{self.name}"
        wanted = _subscriptions(self.config)
        if (before := groups.get(self.name)) is not None:
            for each in _subscriptions(before) - wanted:
                _unsubscribe(state, each, subscriber)
        for each in wanted:
            if (stream := state.find_stream(*_split(each))) is not None:
                held = stream.subscribers.get(subscriber, Subscriber(0))
                stream.subscribers[subscriber] = Subscriber(self.config.generation, held.cut)
        groups[self.name] = self.config


class ReaderGroupDeleted(_Operation, frozen=True):
    name: str

    def apply(self, state: State) -> None:
        config = state.scope(self.scope).reader_groups.pop(self.name)
        for each in _subscriptions(config):
            _unsubscribe(state, each, f"{self.scope}/{self.name}")


class SubscriberMoved(_OfStream, frozen=True):
    subscriber: str
    cut: Cut

    def apply(self, state: State) -> None:
        subscribers = state.stream(self.scope, self.stream).subscribers
        subscribers[self.subscriber] = Subscriber(subscribers[self.subscriber].generation, dict(self.cut))


def _subscriptions(config: ReaderGroupConfig) -> set[str]:
    return set() if config.retention is SubscriberRetention.NONE else set(config.starting_cuts)


def _split(full_name: str) -> tuple[str, str]:
    scope, _, name = full_name.partition("/")
    return scope, name


def _unsubscribe(state: State, full_name: str, subscriber: str) -> None:
    if (stream := state.find_stream(*_split(full_name))) is not None:
        stream.subscribers.pop(subscriber, None)


# Key-value tables


class TableCreated(_Operation, frozen=True):
    name: str
    config: TableConfig
    first_number: int
    now_ms: int

    def apply(self, state: State) -> None:
        epoch = first_epoch(self.config.partitions, self.first_number, self.now_ms)
        table = Table(self.scope, self.name, self.config, self.now_ms, epoch)
        state.scope(self.scope).tables[self.name] = table


class TableDeleted(_Operation, frozen=True):
    name: str

    def apply(self, state: State) -> None:
        table = state.scope(self.scope).tables.pop(self.name)
        first_free = 1 + max(segment.number for segment in table.epoch.segments)
        state.numbers[f"{self.scope}/{self.name}{TABLE_SUFFIX}"] = first_free


Operation = (
    ScopeCreated
    | ScopeDeleted
    | StreamCreated
    | StreamUpdated
    | StreamTruncated
    | StreamSealed
    | StreamDeleted
    | ScaleStarted
    | ScaleFinished
    | EpochRolled
    | TransactionOpened
    | TransactionPinged
    | CommitStarted
    | AbortStarted
    | TransactionEnded
    | CompletedForgotten
    | RetentionCutRecorded
    | RetentionCutsForgotten
    | WriterNoted
    | WriterGone
    | WriterForgotten
    | WatermarkWritten
    | ReaderGroupSet
    | ReaderGroupDeleted
    | SubscriberMoved
    | TableCreated
    | TableDeleted
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Operation)


def encode(operation: Operation) -> bytes:
    """Return one operation as msgpack bytes."""
    return _ENCODER.encode(operation)


def decode(data: bytes) -> Operation:
    """Return the operation that `encode` wrote. Raises `msgspec.ValidationError` for anything else."""
    operation: Operation = _DECODER.decode(data)
    return operation
