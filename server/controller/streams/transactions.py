"""Transactions of a stream: events written aside, then committed or aborted as a whole.

A transaction belongs to the epoch in which it was opened, which is in the top 32 bits of its id, and has one segment
for each segment of that epoch. A commit merges these into the current segments with the same numbers. If the stream was
scaled since, copies of the transaction's epoch and then of the current epoch are added, and the transaction is merged
into the first (a rolling transaction).

A stream has at most `max_transactions` open transactions.

Invariants: the only transitions are `OPEN → COMMITTING → COMMITTED` and `OPEN → ABORTING → ABORTED`; the first request
to end a transaction decides, repeating it is allowed, the opposite is refused. Commits are executed in order of their
requests, older epochs first. A transaction whose lease has expired, plus slack, is aborted.

Follows `StreamTransactionMetadataTasks`, `CommitRequestHandler` and `AbortRequestHandler`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from segstore.server.controller import errors
from segstore.server.controller.policies import ScalingPolicy
from segstore.server.controller.state import (
    Core,
    Due,
    Stream,
    StreamSegment,
    Timer,
    Transaction,
    TransactionStatus,
    transaction_epoch,
)
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.watermarks import Writers

_log = logging.getLogger(__name__)

_LEASES_MAX: Final = 1000
"""No transaction lives longer than this many of its leases (`StreamTransactionMetadataTasks`)."""

_NO_TIME: Final = -(2**63)
"""Timestamp of a commit without a timestamp."""

_PLAIN: Final = ScalingPolicy()

_MERGED_AT_ONCE: Final = 100
"""`CommitRequestHandler.MAX_TRANSACTION_COMMIT_BATCH_SIZE`."""


class Transactions:
    def __init__(self, core: Core, writers: Writers) -> None:
        self._core = core
        self._writers = writers

    async def open(self, scope: str, name: str, lease_ms: int) -> tuple[UUID, list[StreamSegment]]:
        """Opens a transaction and creates its segments; returns its id and the segments of its epoch."""
        core = self._core
        core.state.stream(scope, name)
        if not core.config.min_lease_ms <= lease_ms <= core.config.max_lease_ms:
            raise errors.InvalidArgument(
                f"a lease of {lease_ms} ms is not between {core.config.min_lease_ms} and {core.config.max_lease_ms} ms"
            )
        async with core.lock(scope, name):
            stream = core.state.stream(scope, name)
            if stream.sealed:
                raise errors.IllegalState(f"stream {stream.full_name} is sealed")
            count, limit = len(stream.transactions) + 1, core.config.max_transactions
            if count > limit:
                raise errors.TooMany("open transactions of a stream", count, limit)
            epoch = stream.current.reference
            identifier = UUID(int=epoch << 96 | next(core.transaction_ids))
            segments = []
            for segment, segment_name in stream.transaction_segments(identifier):
                await core.segments.create_segment(segment_name, _PLAIN, stream.config.rollover_bytes)
                segments.append(StreamSegment(segment.number, epoch, segment.start, segment.end, segment.created_ms))
            now_ms = core.now_ms()
            must_end_ms = now_ms + min(_LEASES_MAX * lease_ms, core.config.max_transaction_ms)
            opened = Transaction(TransactionStatus.OPEN, now_ms, self._lease_end(lease_ms), must_end_ms)
            core.record(op.TransactionSet(scope, name, identifier, opened))
            self.watch(stream, identifier)
        return identifier, segments

    def ping(self, scope: str, stream: str, identifier: UUID, lease_ms: int) -> TransactionStatus | None:
        """Extends the lease of an open transaction; returns its status, None if it is unknown."""
        core = self._core
        status = self.status(scope, stream, identifier)
        if status is not TransactionStatus.OPEN:
            return status
        if lease_ms > core.config.max_lease_ms:
            raise errors.LeaseTooLarge(lease_ms, core.config.max_lease_ms)
        held = core.state.stream(scope, stream)
        transaction = held.transactions[identifier]
        if core.now_ms() + lease_ms > transaction.must_end_ms:
            raise errors.ExecutionTimeExceeded(identifier, core.now_ms() + lease_ms, transaction.must_end_ms)
        self._set(held, identifier, lease_until_ms=self._lease_end(lease_ms))
        return status

    def status(self, scope: str, name: str, identifier: UUID) -> TransactionStatus | None:
        """Returns a transaction's status; None if it, or its stream, is unknown."""
        stream = self._core.state.find_stream(scope, name)
        if stream is None:
            return None
        known = stream.transactions.get(identifier) or stream.completed.get(identifier)
        return None if known is None else known.status

    def completed(self, scope: str, name: str) -> dict[UUID, TransactionStatus]:
        """Returns the latest ended transactions of a stream with their outcomes, in the order of their opening."""
        stream = self._core.state.stream(scope, name)
        last = islice(reversed(stream.completed), self._core.config.completed_listed)
        opened = sorted(last, key=lambda identifier: identifier.int & (1 << 96) - 1)
        return {identifier: stream.completed[identifier].status for identifier in opened}

    async def commit(self, scope: str, name: str, identifier: UUID, writer: str = "", timestamp: int = 0) -> None:
        """Requests a commit; without a configured delay it is complete at return."""
        core = self._core
        core.check_writer(writer)
        async with core.lock(scope, name):
            stream = core.state.stream(scope, name)
            if self._may_end(stream, identifier, commit=True):
                self._set(
                    stream,
                    identifier,
                    status=TransactionStatus.COMMITTING,
                    order=stream.commits + 1,
                    due_ms=core.now_ms() + core.config.commit_delay_ms,
                    writer=writer,
                    timestamp=timestamp,
                )
                await self._end_or_retry(stream, identifier)

    async def abort(self, scope: str, name: str, identifier: UUID) -> None:
        """Requests an abort; without a configured delay it is complete at return."""
        core = self._core
        async with core.lock(scope, name):
            stream = core.state.stream(scope, name)
            if self._may_end(stream, identifier, commit=False):
                self._abort(stream, identifier, core.config.commit_delay_ms)
                await self._end_or_retry(stream, identifier)

    async def run(self, timer: Timer) -> None:
        """Checks a transaction: its lease may have expired, or a requested commit or abort may be due."""
        core = self._core
        async with core.lock(timer.scope, timer.stream):
            stream = core.state.find_stream(timer.scope, timer.stream)
            if stream is None or timer.transaction is None or timer.transaction not in stream.transactions:
                return
            transaction = stream.transactions[timer.transaction]
            if transaction.status is TransactionStatus.OPEN and self._due_ms(transaction) <= core.now_ms():
                self._abort(stream, timer.transaction)
            await self._end_or_retry(stream, timer.transaction)

    async def settle(self, stream: Stream) -> None:
        """Ends every transaction: commits it if a commit was requested, else aborts it. The caller holds the lock."""
        for identifier, transaction in list(stream.transactions.items()):
            if transaction.status is TransactionStatus.OPEN:
                self._abort(stream, identifier)
        await self._end(stream, list(stream.transactions))

    async def finish_due(self, stream: Stream) -> None:
        """Ends the transactions for which that was asked for and is due. The caller holds the lock."""
        now_ms = self._core.now_ms()
        due = [
            identifier
            for identifier, transaction in stream.transactions.items()
            if transaction.status is not TransactionStatus.OPEN and transaction.due_ms <= now_ms
        ]
        await self._end(stream, due)

    def _set(self, stream: Stream, identifier: UUID, **changes: Any) -> None:
        changed = replace(stream.transactions[identifier], **changes)
        self._core.record(op.TransactionSet(stream.scope, stream.name, identifier, changed))

    def _abort(self, stream: Stream, identifier: UUID, delay_ms: int = 0) -> None:
        due_ms = self._core.now_ms() + delay_ms
        self._set(stream, identifier, status=TransactionStatus.ABORTING, due_ms=due_ms)

    # Ending ----------------------------------------------------------------------------------------------------

    def _may_end(self, stream: Stream, identifier: UUID, *, commit: bool) -> bool:
        """Whether the transaction is still open; refuses a commit after an abort and vice versa."""
        status = self.status(stream.scope, stream.name, identifier)
        if status is None:
            raise errors.NotFound("transaction", f"{identifier} of stream {stream.full_name}")
        if status is TransactionStatus.OPEN:
            return True
        if commit is (status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)):
            return False
        raise errors.IllegalState(f"transaction {identifier} of stream {stream.full_name} is {status.value}")

    async def _end_or_retry(self, stream: Stream, identifier: UUID) -> None:
        core = self._core
        transaction = stream.transactions[identifier]
        self.watch(stream, identifier)
        if transaction.status is TransactionStatus.OPEN or transaction.due_ms > core.now_ms():
            return
        try:
            await self.finish_due(stream)
        except errors.SegmentStoreFailed as error:
            _log.warning("ending transaction %s of stream %s is tried again: %s", identifier, stream.full_name, error)

    async def _end(self, stream: Stream, identifiers: Iterable[UUID]) -> None:
        """Executes the requested commits and aborts of these transactions; the caller holds the lock."""
        core = self._core
        committing = []
        for identifier in identifiers:
            if stream.transactions[identifier].status is TransactionStatus.COMMITTING:
                committing.append(identifier)
                continue
            for _, name in stream.transaction_segments(identifier):
                await core.segments.delete_segment(name)
            self._ended(stream, identifier, committed=False)
        committing.sort(key=lambda key: (transaction_epoch(key), stream.transactions[key].order))
        for epoch, group in groupby(committing, key=transaction_epoch):
            together = list(group)
            if stream.epoch(epoch).reference == stream.current.reference:
                await self._merge(stream, stream.current.segments, together)
            else:
                await self._roll(stream, epoch, together)
            for identifier in together:
                await self._note_time(stream, stream.transactions[identifier])
                self._ended(stream, identifier, committed=True)

    async def _merge(self, stream: Stream, targets: Sequence[StreamSegment], identifiers: Sequence[UUID]) -> None:
        sources: dict[int, list[str]] = {}
        for identifier in identifiers:
            for segment, name in stream.transaction_segments(identifier):
                sources.setdefault(segment.number, []).append(name)
        for target in targets:
            names = sources[target.number]
            for start in range(0, len(names), _MERGED_AT_ONCE):
                batch = names[start : start + _MERGED_AT_ONCE]
                await self._core.segments.merge_segments(stream.segment_name(target), batch)

    async def _roll(self, stream: Stream, epoch: int, identifiers: Sequence[UUID]) -> None:
        """Merges transactions of an older epoch; every step is idempotent."""
        segments = self._core.segments
        now_ms = self._core.now_ms()
        again, current = op.rolled(stream, epoch, now_ms)
        for segment in again.segments:
            await segments.create_segment(stream.segment_name(segment), _PLAIN, stream.config.rollover_bytes)
        await self._merge(stream, again.segments, identifiers)
        for segment in current.segments:
            name = stream.segment_name(segment)
            await segments.create_segment(name, stream.config.scaling, stream.config.rollover_bytes)
        replaced = (*again.segments, *stream.current.segments)
        sizes = {segment.id: await segments.seal_segment(stream.segment_name(segment)) for segment in replaced}
        self._core.record(op.EpochRolled(stream.scope, stream.name, epoch, sizes, now_ms))

    async def _note_time(self, stream: Stream, transaction: Transaction) -> None:
        if not transaction.writer or transaction.timestamp == _NO_TIME:
            return
        length = self._core.segments.segment_length
        position = {segment.id: await length(stream.segment_name(segment)) for segment in stream.current.segments}
        # A timestamp before the writer's last one, or beyond the limit of writers, is ignored; the transaction is
        # committed.
        with suppress(errors.TooMany):
            self._writers.note(stream.scope, stream.name, transaction.writer, transaction.timestamp, position)

    def _ended(self, stream: Stream, identifier: UUID, *, committed: bool) -> None:
        core = self._core
        now_ms = core.now_ms()
        core.record(op.TransactionEnded(stream.scope, stream.name, identifier, committed, now_ms))
        before_ms = now_ms - core.config.completed_ttl_ms
        beyond = len(stream.completed) - core.config.completed_max
        if beyond > core.config.completed_max // 10:  # in batches, because each one is an operation in the journal
            before_ms = max(before_ms, next(islice(stream.completed.values(), beyond, None)).ended_ms)
        if next(iter(stream.completed.values())).ended_ms < before_ms:
            core.record(op.CompletedForgotten(stream.scope, stream.name, before_ms))

    # Time ------------------------------------------------------------------------------------------------------

    def _lease_end(self, lease_ms: int) -> int:
        cap_ms = self._core.config.lease_cap_ms
        return self._core.now_ms() + (lease_ms if cap_ms is None else min(lease_ms, cap_ms))

    def _due_ms(self, transaction: Transaction) -> int:
        if transaction.status is TransactionStatus.OPEN:
            return transaction.lease_until_ms + self._core.config.slack_ms
        return transaction.due_ms

    def watch(self, stream: Stream, identifier: UUID) -> None:
        """Sets a timer for the end of the lease, or for a requested commit or abort; if that is due now, for a retry.

        The timer is set before the work starts, so that work that fails or is cancelled is completed later.
        """
        core = self._core
        transaction = stream.transactions[identifier]
        due_ms = self._due_ms(transaction)
        if transaction.status is not TransactionStatus.OPEN:
            due_ms = max(due_ms, core.now_ms() + core.config.retry_ms) if due_ms <= core.now_ms() else due_ms
        core.schedule(due_ms, Due.TRANSACTION, stream.scope, stream.name, identifier)
