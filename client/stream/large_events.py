"""Writes events too large for one append through a transient segment that is merged into the target (PDP-43A).

    create a transient segment ─▶ set up a fresh writer of it ─▶ its chunks, pipelined, each at its offset
        ─▶ await every ack ─▶ merge into the target, with the counter ─▶ stored

Any failure restarts the whole sequence with a new transient segment. The merge atomically increments a counter on the
target, an attribute private to this writer, on condition of its expected value, so at most one merge of an event
succeeds. If the outcome of a merge is unknown, the counter reveals it; so the event is stored exactly once. If a store
refuses the counter, events are merged without it: an event whose merge was not answered may then be stored twice,
`exactly_once` becomes False, a warning is logged, and `unsure` counts such events.

The caller is responsible for the order of the target's events: it must have no other append to it in flight.

Invariants: the target has the whole event or nothing of it; if `write` returns, the event is stored; if it raises
SegmentOver, it is not. Refused: peers older than transient segments; replies that name another segment than requested.
Follows `LargeEventWriter` (Pravega's client) and seeds 43.7 to 43.14. Deliberate differences: the counter; only a
sealed or missing target leads to its successors, not a sealed or missing transient segment; abandoned transient
segments are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Self
from uuid import UUID, uuid4

import msgspec

from segstore.client.attempts import Attempts
from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, Flow, Locations, MakeRequest, learn
from segstore.client.errors import (
    ClientError,
    ConditionFailed,
    ConnectionLost,
    NotSupported,
    PeerRefused,
    ProtocolViolation,
    Retriable,
    SegmentExists,
    SegmentOver,
    SegmentSealed,
    TokenExpired,
    failure,
)
from segstore.client.lifecycle import FreedAfter, within
from segstore.wire import (
    AppendSetup,
    Buffer,
    Command,
    ConditionalAttributeUpdate,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    ErrorMessageCode,
    GetSegmentAttribute,
    MergeSegments,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentIsSealed,
    SegmentsMerged,
    SetupAppend,
)
from segstore.wire.blocks import EVENT_HEADER_BYTES, frame_header
from segstore.wire.names import is_transient, parent_of

log = logging.getLogger(__name__)

_NO_VALUE: Final = -(1 << 63)
"""The value of a missing attribute, and the last event number of a writer that never wrote."""
_REPLACE_IF_EQUALS: Final = 4
_FIRST_VERSION: Final = 15
"""The wire version that introduced transient segments."""
_AGAIN: Final = (Retriable, TokenExpired, ConditionFailed, SegmentExists)


def _chunks(event: Buffer, chunk_bytes: int) -> Iterator[Buffer]:
    """Yields the event with its header, in chunks of equal length except the last; copies only the first."""
    view = memoryview(event)
    at = max(chunk_bytes - EVENT_HEADER_BYTES, 0)
    first = b"".join([frame_header(len(view)), view[:at]])
    for start in range(0, len(first), chunk_bytes):
        yield first[start : start + chunk_bytes]
    for start in range(at, len(view), chunk_bytes):
        yield view[start : start + chunk_bytes]


class _CounterRefused(Exception):
    """The store does not support merging on the counter's condition."""


class LargeEventWriter:
    """Writes large events for one stream writer.

    Attributes:
        counter_id: id of the attribute that counts this writer's large events on each target.
        exactly_once: False once a store has refused the counter; from then on writes are at-least-once.
        unsure: number of events that may be stored twice, because a merge without the counter was not answered.
        restarts: number of restarted sequences.
    """

    def __init__(self, pool: ConnectionPool, locations: Locations) -> None:
        self.counter_id: Final = uuid4()
        self.exactly_once = True
        self.unsure = 0
        self.restarts = 0
        self._pool = pool
        self._settings = pool.settings
        self._locations = locations
        self._counts: dict[str, int] = {}

    async def write(self, target: str, event: Buffer) -> None:
        """Stores an event at the end of the target.

        Raises SegmentOver if the target is sealed or missing, RetriesExhausted, TokenRefused, NotSupported,
        ProtocolViolation, Closed. If cancelled, the whole event is stored or nothing of it.
        """
        attempt = _Attempt(target, event, self._counts.get(target, _NO_VALUE))
        what = f"an event of {len(event)} bytes for {target}"
        attempts = Attempts(self._settings, what, segment=target, random=self._pool.random)
        while True:
            try:
                await self._once(attempt)
            except _CounterRefused as refused:
                self.exactly_once = False
                log.warning(
                    "%s refuses the counter of large events on %s: they are now written at least once (%s)",
                    attempt.endpoint,
                    target,
                    refused,
                    extra={"endpoint": str(attempt.endpoint), "segment": target},
                )
                continue
            except SegmentOver:
                self._counts.pop(target, None)
                raise
            except _AGAIN as error:
                self.restarts += 1
                self._learn(attempt, error, in_doubt=attempts.failures > 0)
                pause_s = attempts.failed(error)
            else:
                if self.exactly_once:
                    self._counts[target] = attempt.count
                return
            await asyncio.sleep(pause_s)

    def _learn(self, attempt: _Attempt, error: ClientError, *, in_doubt: bool) -> None:
        learn(self._locations, attempt.target, error, attempt.endpoint, attempt.token, in_doubt=in_doubt)
        if attempt.merge_sent and not self.exactly_once:
            attempt.merge_sent = False
            self.unsure += 1
            log.warning(
                "a large event may be in %s twice: its merge was not answered (%s), and the store refuses the counter",
                attempt.target,
                error,
                extra=error.facts() | {"segment": attempt.target},
            )

    # --- one sequence -----------------------------------------------------------------------------------------------

    async def _once(self, attempt: _Attempt) -> None:
        target = attempt.target
        attempt.endpoint = endpoint = await self._locations.endpoint_of(target)
        attempt.token = token = await self._locations.token_for(target)
        async with await _Sequence.open(self._pool, endpoint, target, token) as sequence:
            if attempt.merge_sent and await self._is_counted(sequence, attempt):
                return
            await sequence.create()
            await sequence.append(attempt.event, self._settings.large_event_chunk_bytes)
            await self._merge(sequence, attempt)

    async def _merge(self, sequence: _Sequence, attempt: _Attempt) -> None:
        updates: tuple[ConditionalAttributeUpdate, ...] = ()
        if self.exactly_once:
            updates = (ConditionalAttributeUpdate(self.counter_id, _REPLACE_IF_EQUALS, attempt.count, attempt.counted),)
        sent_before, attempt.merge_sent = attempt.merge_sent, True
        reply = await sequence.merge(updates)
        match reply:
            case SegmentsMerged():
                return
            case SegmentAttributeUpdated() if updates:
                # Either a merge of an earlier sequence succeeded, or the store does not understand the condition.
                if await self._is_counted(sequence, attempt):
                    return
                why = "the condition fails although it should hold"
            case OperationUnsupported() if updates:
                why = "the operation is not supported"
            case ErrorMessage(error_code=ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION, message=why) if updates:
                pass  # the message is the reason
            case SegmentIsSealed() | NoSuchSegment():
                # The reply always names the source segment, even if the target is missing, which raises here.
                if await self._is_counted(sequence, attempt) and updates:
                    return
                attempt.merge_sent = sent_before
                if isinstance(reply, SegmentIsSealed):
                    target = attempt.target
                    raise SegmentSealed(f"{target} is sealed", endpoint=sequence.endpoint, segment=target)
                raise sequence.gone()
            case _:
                raise sequence.refused(reply)
        attempt.merge_sent = sent_before
        raise _CounterRefused(why)

    async def _is_counted(self, sequence: _Sequence, attempt: _Attempt) -> bool:
        """Whether the target has the event, according to the counter. Raises SegmentMissing."""
        value = await sequence.attribute(self.counter_id)
        return value != _NO_VALUE and value >= attempt.count


class _Attempt(msgspec.Struct):
    """State of one event across its sequences. counted: the counter before the event; count: after it."""

    target: str
    event: Buffer
    counted: int
    endpoint: Endpoint | None = None
    token: str = ""
    merge_sent: bool = False

    @property
    def count(self) -> int:
        return 1 if self.counted == _NO_VALUE else self.counted + 1


class _Sequence(FreedAfter):
    """One attempt: its flow, its transient segment and writer. Its steps run one at a time. Made by `open`."""

    flow: Flow
    endpoint: str

    def __init__(self, settings: ClientSettings, target: str, token: str) -> None:
        self._limit_ms = settings.request_timeout_ms
        self._target = target
        self._token = token
        self._writer_id: Final = uuid4()
        self._error: ClientError | None = None
        self._asked: int | None = None
        self._reply: Command | None = None
        self._acked = -1
        self._came = asyncio.Event()
        self._transient = ""
        self._merging = False

    @classmethod
    async def open(cls, pool: ConnectionPool, endpoint: Endpoint, target: str, token: str) -> Self:
        """Opens a flow to the store. Raises as `ConnectionPool.flow`, and NotSupported."""
        self = cls(pool.settings, target, token)
        self.flow = flow = await pool.flow(endpoint, self)
        self.endpoint = flow.endpoint
        if flow.hello.high_version < _FIRST_VERSION:
            flow.close()
            raise NotSupported(
                f"{flow.endpoint} has wire version {flow.hello.high_version}, but large events need {_FIRST_VERSION}",
                endpoint=flow.endpoint,
                segment=target,
                limit=_FIRST_VERSION,
                actual=flow.hello.high_version,
            )
        return self

    # --- steps ------------------------------------------------------------------------------------------------------

    async def create(self) -> None:
        """Creates a transient segment and sets up its writer."""
        writer_id, target, token = self._writer_id, self._target, self._token
        created = await self._ask(lambda id_: CreateTransientSegment(id_, writer_id, target, token))
        if type(created) is not SegmentCreated:
            raise self.refused(created)
        name = created.segment
        if not is_transient(name) or parent_of(name) != target:
            raise ProtocolViolation(
                f"{self.endpoint} answers the request for a transient segment of {target} with {name!r}",
                endpoint=self.endpoint,
                segment=target,
            )
        self._transient = name
        set_up = await self._ask(lambda id_: SetupAppend(id_, writer_id, name, token))
        if type(set_up) is not AppendSetup:
            raise self.refused(set_up)
        if set_up.last_event_number != _NO_VALUE:
            raise ProtocolViolation(
                f"{self.endpoint} has event {set_up.last_event_number} in the new segment {name}",
                endpoint=self.endpoint,
                segment=name,
            )

    async def append(self, event: Buffer, chunk_bytes: int) -> None:
        """Sends all chunks, as fast as the peer reads, and waits until all are acknowledged."""
        flow, start, last = self.flow, 0, -1
        for last, chunk in enumerate(_chunks(event, chunk_bytes)):
            await self._writable()
            flow.send(ConditionalBlockEnd(self._writer_id, last, start, chunk, flow.next_request_id()))
            start += len(chunk)
            flow.bytes_in_flight += len(chunk)
            flow.connection.outbox.bytes_in_flight += len(chunk)
            await asyncio.sleep(0)  # lets the connection write and detect back-pressure
        while self._acked < last:
            await self._wait(f"did not acknowledge chunk {self._acked + 1} of {self._transient}")
        flow.acknowledged(start)

    async def merge(self, updates: tuple[ConditionalAttributeUpdate, ...]) -> Command:
        """Requests the merge; returns the reply, which may be a failure."""
        self._merging = True
        target, source, token = self._target, self._transient, self._token
        return await self._ask(lambda id_: MergeSegments(id_, target, source, token, updates))

    async def attribute(self, attribute_id: UUID) -> int:
        """Returns an attribute of the target, -2^63 if it is missing. Raises the errors of failure replies."""
        target, token = self._target, self._token
        reply = await self._ask(lambda id_: GetSegmentAttribute(id_, target, attribute_id, token))
        if type(reply) is not SegmentAttribute:
            raise failure(reply, endpoint=self.endpoint, segment=target)
        return reply.value

    def refused(self, reply: Command) -> ClientError:
        """Returns the error for a failure reply. A sealed or missing transient segment is Retriable."""
        error = failure(reply, endpoint=self.endpoint, segment=self._target)
        return self.gone() if isinstance(error, SegmentOver) and error.segment != self._target else error

    def gone(self) -> ClientError:
        return PeerRefused(
            f"{self.endpoint} has no transient segment {self._transient} to write to or to merge",
            endpoint=self.endpoint,
            segment=self._target,
        )

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _ask(self, make: MakeRequest) -> Command:
        await self._writable()
        self._asked = request_id = self.flow.next_request_id()
        command = make(request_id)
        self.flow.send(command)
        try:
            while self._reply is None:
                await self._wait(f"did not answer {command.type_name} for {self._target}")
            return self._reply
        finally:
            self._asked = self._reply = None

    async def _writable(self) -> None:
        if self.flow.connection.outbox.paused:
            async with self._within(f"did not read what is written to {self._transient}"):
                await self.flow.connection.outbox.writable()
        self._check()

    async def _wait(self, otherwise: str) -> None:
        """Waits for the next event. Raises RequestTimedOut, and the error that ended the sequence."""
        self._check()
        self._came.clear()
        async with self._within(otherwise):
            await self._came.wait()
        self._check()

    def _within(self, otherwise: str) -> AbstractAsyncContextManager[None]:
        return within(self._limit_ms, f"{self.endpoint} {otherwise}", endpoint=self.endpoint, segment=self._target)

    def _check(self) -> None:
        if self._error is not None and self._reply is None:
            raise self._error.again() from self._error
        if self.flow.closed and self._reply is None:
            raise ConnectionLost(f"the connection to {self.endpoint} is gone", endpoint=self.endpoint)

    # --- replies ----------------------------------------------------------------------------------------------------

    def on_reply(self, reply: Command) -> None:
        if type(reply) is DataAppended:
            if reply.writer_id == self._writer_id:
                self._acked = max(self._acked, reply.event_number)
                self._came.set()
            else:
                self.on_lost(ProtocolViolation(f"{self.endpoint} acknowledges another writer", endpoint=self.endpoint))
        elif self._asked is not None and reply.request_id == self._asked:  # type: ignore[attr-defined]  # replies have
            self._reply = reply
            self._came.set()
        elif reply.is_failure or type(reply) is ConditionalCheckFailed:  # the reference does not count that as one
            self.on_lost(self.refused(reply))

    def on_lost(self, error: ClientError) -> None:
        self._error = self._error or error
        self._came.set()

    # --- shutdown ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Deletes an abandoned transient segment, unless a merge may still need it or the connection is lost."""
        flow = self.flow
        if not flow.closed:
            if self._transient and not self._merging and not flow.owns_connection:
                flow.send(DeleteSegment(flow.next_request_id(), self._transient, self._token))
            flow.close()
