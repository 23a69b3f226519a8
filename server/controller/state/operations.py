"""Operations that change the controller's state, as values: journaled, and applied again by recovery.

An operation records an effect, not a request: names were checked, times read and ids drawn when it was created, so
applying it never fails on the state that earlier operations produced. Changes in the segment store come before the
operation and are idempotent, so a controller that crashes in between restarts with an older but valid state.

`encode` and `decode` convert an operation to and from msgpack; the tags are the journal's format. Invariant:
`recovered(image(state), operations)` is the state to which the operations were applied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import reduce
from itertools import takewhile
from operator import or_
from typing import Any, Final
from uuid import UUID

import msgspec

from segstore.server.controller.errors import ControllerError
from segstore.server.controller.policies import Cut, ReaderGroupConfig, StreamConfig, SubscriberRetention, TableConfig
from segstore.server.controller.state.history import Epoch, KeyRange, StreamSegment, first_epoch, next_epoch
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


class Operation(msgspec.Struct, frozen=True, tag=True):
    """A change of a scope, or of an object in a scope."""

    scope: str

    @abstractmethod
    def apply(self, state: State) -> None:
        """Makes the change."""


class StreamOperation(Operation, frozen=True):
    """A change of one stream."""

    stream: str


class _StreamChange(StreamOperation, frozen=True):
    """A change within one stream that exists."""

    def apply(self, state: State) -> None:
        self.change(state.stream(self.scope, self.stream))

    @abstractmethod
    def change(self, stream: Stream) -> None:
        """Makes the change of the stream."""


# Scopes


class ScopeCreated(Operation, frozen=True):
    now_ms: int

    def apply(self, state: State) -> None:
        state.scopes[self.scope] = Scope(self.scope, self.now_ms)


class ScopeDeleted(Operation, frozen=True):
    def apply(self, state: State) -> None:
        del state.scopes[self.scope]


# Streams


class StreamCreated(StreamOperation, frozen=True):
    """The stream was created with segments numbered from `first_number`."""

    config: StreamConfig
    first_number: int
    now_ms: int

    def apply(self, state: State) -> None:
        epoch = first_epoch(self.config.scaling.min_segments, self.first_number, self.now_ms)
        stream = Stream(self.scope, self.stream, self.config, self.now_ms, [epoch])
        state.scope(self.scope).streams[self.stream] = stream


class StreamUpdated(_StreamChange, frozen=True):
    config: StreamConfig

    def change(self, stream: Stream) -> None:
        stream.config = self.config


class StreamTruncated(_StreamChange, frozen=True):
    """The stream was truncated at `cut`, and the segments in `deleted` were deleted."""

    cut: Cut
    deleted: tuple[int, ...]

    def change(self, stream: Stream) -> None:
        stream.cut = dict(self.cut)
        stream.deleted.update(self.deleted)


class StreamSealed(_StreamChange, frozen=True):
    """The stream was sealed; `sizes` are the lengths of the segments sealed with it."""

    sizes: dict[int, int]

    def change(self, stream: Stream) -> None:
        stream.sealed = True
        stream.scale = None
        stream.sizes.update(self.sizes)


class StreamDeleted(StreamOperation, frozen=True):
    def apply(self, state: State) -> None:
        stream = state.scope(self.scope).streams.pop(self.stream)
        state.numbers[stream.full_name] = stream.current.next_number


class ScaleStarted(_StreamChange, frozen=True):
    scale: Scale

    def change(self, stream: Stream) -> None:
        stream.scale = self.scale


class ScaleFinished(_StreamChange, frozen=True):
    """The next epoch began; `sizes` are the lengths of the replaced segments."""

    sealed: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    sizes: dict[int, int]
    now_ms: int

    def change(self, stream: Stream) -> None:
        stream.epochs.append(next_epoch(stream.current, self.sealed, self.ranges, self.now_ms))
        stream.sizes.update(self.sizes)
        stream.scale = None


class EpochRolled(_StreamChange, frozen=True):
    """Transactions of an older epoch were committed: copies of that epoch and of the current epoch were added."""

    epoch: int
    sizes: dict[int, int]
    now_ms: int

    def change(self, stream: Stream) -> None:
        stream.epochs.extend(rolled(stream, self.epoch, self.now_ms))
        stream.sizes.update(self.sizes)


def rolled(stream: Stream, epoch: int, now_ms: int) -> tuple[Epoch, Epoch]:
    """Returns the epochs with which a stream merges transactions of an older epoch: copies of that and the current."""
    old, current = stream.epoch(epoch), stream.current
    created_ms = max(now_ms, current.created_ms + 1)
    return (_copy(old, current.number + 1, created_ms), _copy(current, current.number + 2, created_ms + 1))


def _copy(epoch: Epoch, number: int, created_ms: int) -> Epoch:
    segments = tuple(
        StreamSegment(segment.number, number, segment.start, segment.end, created_ms) for segment in epoch.segments
    )
    return Epoch(number, epoch.reference, segments, created_ms)


# Transactions


class TransactionSet(_StreamChange, frozen=True):
    """The transaction was opened, or its lease or its status changed."""

    identifier: UUID
    transaction: Transaction

    def apply(self, state: State) -> None:
        state.transactions = max(state.transactions, (self.identifier.int & _LOW_HALF) + 1)
        super().apply(state)

    def change(self, stream: Stream) -> None:
        stream.transactions[self.identifier] = self.transaction
        stream.commits = max(stream.commits, self.transaction.order)


class TransactionEnded(_StreamChange, frozen=True):
    """The transaction's data was merged into the stream, or deleted."""

    identifier: UUID
    committed: bool
    now_ms: int

    def change(self, stream: Stream) -> None:
        del stream.transactions[self.identifier]
        status = TransactionStatus.COMMITTED if self.committed else TransactionStatus.ABORTED
        stream.completed[self.identifier] = Completed(status, self.now_ms)


class CompletedForgotten(_StreamChange, frozen=True):
    """The outcomes of transactions that ended before `before_ms` were dropped."""

    before_ms: int

    def change(self, stream: Stream) -> None:
        completed = stream.completed  # in the order of their ends
        for identifier in list(takewhile(lambda key: completed[key].ended_ms < self.before_ms, completed)):
            del completed[identifier]


# Retention and writers


class RetentionCutRecorded(_StreamChange, frozen=True):
    cut: RetentionCut

    def change(self, stream: Stream) -> None:
        stream.retention_cuts.append(self.cut)


class RetentionCutsForgotten(_StreamChange, frozen=True):
    """The first `count` retention cuts were dropped."""

    count: int

    def change(self, stream: Stream) -> None:
        del stream.retention_cuts[: self.count]


class WriterSet(_StreamChange, frozen=True):
    """The writer reported a time or was removed. mark: None if it was forgotten, and no longer delays watermarks."""

    writer: str
    mark: WriterMark | None

    def change(self, stream: Stream) -> None:
        if self.mark is None:
            del stream.writers[self.writer]
        else:
            stream.writers[self.writer] = self.mark


class WatermarkWritten(_StreamChange, frozen=True):
    watermark: Watermark

    def change(self, stream: Stream) -> None:
        stream.watermark = self.watermark


# Reader groups


class ReaderGroupSet(Operation, frozen=True):
    """The reader group was given this configuration, which determines its subscriptions."""

    name: str
    config: ReaderGroupConfig

    def apply(self, state: State) -> None:
        groups = state.scope(self.scope).reader_groups
        subscriber = f"{self.scope}/{self.name}"
        wanted = _subscriptions(self.config)
        if (before := groups.get(self.name)) is not None:
            for subscription in _subscriptions(before) - wanted:
                _unsubscribe(state, subscription, subscriber)
        for full_name in wanted:
            if (stream := state.find_stream(*split_name(full_name))) is not None:
                held = stream.subscribers.get(subscriber, Subscriber(0))
                stream.subscribers[subscriber] = Subscriber(self.config.generation, held.cut)
        groups[self.name] = self.config


class ReaderGroupDeleted(Operation, frozen=True):
    name: str

    def apply(self, state: State) -> None:
        config = state.scope(self.scope).reader_groups.pop(self.name)
        for subscription in _subscriptions(config):
            _unsubscribe(state, subscription, f"{self.scope}/{self.name}")


class SubscriberMoved(_StreamChange, frozen=True):
    subscriber: str
    cut: Cut

    def change(self, stream: Stream) -> None:
        subscribers = stream.subscribers
        subscribers[self.subscriber] = Subscriber(subscribers[self.subscriber].generation, dict(self.cut))


def _subscriptions(config: ReaderGroupConfig) -> set[str]:
    return set() if config.retention is SubscriberRetention.NONE else set(config.starting_cuts)


def split_name(full_name: str) -> tuple[str, str]:
    """Returns the scope and the name in "scope/name"."""
    scope, _, name = full_name.partition("/")
    return scope, name


def _unsubscribe(state: State, full_name: str, subscriber: str) -> None:
    if (stream := state.find_stream(*split_name(full_name))) is not None:
        stream.subscribers.pop(subscriber, None)


# Key-value tables


class TableCreated(Operation, frozen=True):
    name: str
    config: TableConfig
    first_number: int
    now_ms: int

    def apply(self, state: State) -> None:
        epoch = first_epoch(self.config.partitions, self.first_number, self.now_ms)
        table = Table(self.scope, self.name, self.config, self.now_ms, epoch)
        state.scope(self.scope).tables[self.name] = table


class TableDeleted(Operation, frozen=True):
    name: str

    def apply(self, state: State) -> None:
        table = state.scope(self.scope).tables.pop(self.name)
        state.numbers[f"{self.scope}/{self.name}{TABLE_SUFFIX}"] = table.epoch.next_number


_KINDS: Final[Any] = reduce(
    or_,
    (
        var
        for var in tuple(vars().values())
        if isinstance(var, type) and issubclass(var, Operation) and not var.__subclasses__()
    ),
)
"""Every kind of operation: the classes above that no other one extends."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_STATE_DECODER: Final = msgspec.msgpack.Decoder(State)
_DECODER: Final[msgspec.msgpack.Decoder[Operation]] = msgspec.msgpack.Decoder(_KINDS)


def encode(operation: Operation) -> bytes:
    return _ENCODER.encode(operation)


def decode(data: bytes) -> Operation:
    """Returns the operation that `encode` wrote. Raises `msgspec.ValidationError` for anything else."""
    return _DECODER.decode(data)


def image(state: State) -> bytes:
    return _ENCODER.encode(state)


def recovered(image: bytes, operations: Iterable[bytes]) -> State:
    """Returns the state of an image (b"" for an empty state) after encoded operations.

    Raises `ValueError` for an invalid image, or an operation that is invalid in its state.
    """
    try:
        state = _STATE_DECODER.decode(image) if image else State()
        for operation in operations:
            decode(operation).apply(state)
    except (ControllerError, KeyError) as error:
        raise ValueError(f"an operation is invalid in its state: {error}") from error
    return state
