"""Executes requests for all connections of a segment store and answers reads that wait at a segment's tail.

Requests run to completion at once; only reads at a segment's tail wait. A caller that changes the store calls
`answer_waiting` afterwards, which answers the reads that the change woke.

Clock, timers and randomness are arguments, so that tests can fake them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.server.auth import Permission, TokenError, TokenVerifier
from segstore.server.clock import Clock, TimerHandle
from segstore.server.config import StoreSettings
from segstore.server.connection.requests import HANDLERS, handles, refuse
from segstore.server.connection.states import SessionEnding
from segstore.server.connection.writers import WriterCounts
from segstore.server.store import (
    NoSuchSegment,
    ReadResult,
    SegmentSealed,
    SegmentStore,
    SegmentTruncated,
    StoreError,
    WakeReason,
    read_length,
)
from segstore.wire import (
    OLDEST_COMPATIBLE_VERSION,
    Command,
    FrameDecoder,
    Hello,
    ReadSegment,
    SegmentIsTruncated,
    SegmentRead,
    UnknownCommand,
    WireError,
    WrongHost,
)
from segstore.wire.blocks import acknowledger
from segstore.wire.codec import Joined, encoder, frame_decoder, parts_encoder

if TYPE_CHECKING:
    from segstore.server.connection.session import Session

log = logging.getLogger(__name__)

_READ: Final = "readSegment"
_UNREAD_TIMES: Final = 16
"""A list is not decoded if it is longer than this multiple of the items that a request may name."""


class Counters(msgspec.Struct):
    """Counters since the start."""

    connections: int = 0
    connections_open: int = 0
    connections_refused: int = 0
    requests: int = 0
    appends: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    malformed_frames: int = 0
    protocol_violations: int = 0
    deadlines_missed: int = 0
    evictions: int = 0
    internal_errors: int = 0


class WaitingRead(msgspec.Struct, eq=False):
    """A read that waits at the tail, and its token in the store. Keeps the fields of the command that a reply needs."""

    session: Session
    segment: str
    offset: int
    length: int
    request_id: int
    timer: TimerHandle | None = None


class StoreService:
    """Serves the requests of all connections against one store.

    Attributes:
        settings, store, counters: public, to be inspected.
        hello: the reply to a Hello.
        encode, encode_parts: encode replies in `settings.wire_version`.
        acknowledge: encodes the acknowledgements of a run: see `acknowledger`.
        writer_counts: counts appends per writer, starting with its next set-up; None for no counting.
        now_ms: the time of changes, as in `Clock`.
    """

    def __init__(
        self, settings: StoreSettings, store: SegmentStore, clock: Clock, random_hex32: Callable[[], str]
    ) -> None:
        self.settings = settings
        self.store = store
        self.counters = Counters()
        self.writer_counts: WriterCounts | None = None
        self.hello = Hello(settings.wire_version, OLDEST_COMPATIBLE_VERSION)
        self.encode = encoder(settings.wire_version)
        self.encode_parts = parts_encoder(settings.wire_version)
        self.acknowledge = acknowledger(settings.wire_version)
        self.random_hex32 = random_hex32
        self._verifier = TokenVerifier(settings.signing_key)
        self._clock = clock
        self.now_ms = clock.now_ms

    # --- for sessions -----------------------------------------------------------------------------------------------

    def frame_decoder(self, joined: Joined | None = None) -> FrameDecoder:
        """Returns a decoder for a new connection, for frames of `settings.wire_version`.

        joined: as for `FrameDecoder`.
        """
        settings = self.settings
        return frame_decoder(
            settings.wire_version,
            max_frame_bytes=settings.limits.max_frame_bytes,
            strict=settings.strict_wire_version,
            joined=joined,
            most_elements=_UNREAD_TIMES * settings.limits.request_keys,
        )

    def unguarded(self) -> StoreService:
        """The same store for callers of this process: no tokens, default limits, the current wire version."""
        return StoreService(StoreSettings(), self.store, self._clock, self.random_hex32)

    def at(self, time_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Calls back at a given wall-clock time."""
        return self._clock.call_later(max(0.0, time_s - self._clock.wall_s()), callback)

    def authorize(self, segment: str, token: str, needed: Permission) -> float | None:
        """Checks a token; returns its expiry, None if it has none or tokens are not checked. Raises TokenError."""
        return self._verifier.verify(segment, token, needed, self._clock.wall_s())

    def drop_transient(self, name: str) -> None:
        """Deletes a transient segment whose connection has closed, unless it was merged or deleted before."""
        try:
            self.store.delete_segment(name)
        except NoSuchSegment:
            return
        except StoreError as error:
            log.warning("transient segment %s was not deleted with its connection: %s", name, error)

    def has_segment(self, name: str) -> bool:
        try:
            self.store.segment(name)
        except StoreError:
            return False
        return True

    def failed(self, session: Session, error: Exception) -> None:
        """Closes the connection of a request that failed with an unexpected error."""
        if isinstance(error, WireError):
            # In a wire version without a command for the reply, such an error closed the connection.
            ending = SessionEnding.FLUSHED if isinstance(error, UnknownCommand) else SessionEnding.DROPPED
            session.end(f"a reply cannot be written: {error}", ending)
            return
        self.counters.internal_errors += 1
        log.error("connection from %s: unexpected error in a request", session.peer, exc_info=error)
        session.end("unexpected error in a request")

    # --- requests ---------------------------------------------------------------------------------------------------

    def handle(self, session: Session, command: Command) -> None:
        """Executes any command except appends."""
        handler: Callable[[Any, Command], None] = HANDLERS.get(type(command), self.not_served)
        handler(session, command)

    def not_served(self, session: Session, command: Command) -> None:
        self.counters.requests += 1
        session.end(f"{command.type_name} is not served on this port")

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(self, session: Session, command: ReadSegment) -> None:
        """Answers a read, or lets it wait for data."""
        self.counters.requests += 1
        segment, offset, request_id = command.segment, command.offset, command.request_id
        try:
            self.authorize(segment, command.delegation_token, Permission.READ)
        except TokenError as error:
            # The reference puts the offset where the request id belongs (seed 36.30).
            refused_id = request_id if self.settings.strict_request_ids else offset
            refuse(session, error, refused_id, segment, _READ)
            return
        length = read_length(command.suggested_length)
        try:
            result = self.store.read(segment, offset, length)
            if result is None:
                # Keep the store's own string: the peer's copy of the name would cost each read up to 64 KiB.
                self._wait(WaitingRead(session, self.store.segment(segment).name, offset, length, request_id))
                return
        except SegmentTruncated as error:
            # The reference detects this without an exception, so the reply has no trace even if traces are configured.
            session.reply(SegmentIsTruncated(request_id, segment, error.start_offset, "", offset))
            return
        except StoreError as error:
            refuse(session, error, request_id, segment, _READ, offset)
            return
        self._answer(session, segment, request_id, result)

    def _answer(self, session: Session, segment: str, request_id: int, result: ReadResult) -> None:
        data = result.data[0] if len(result.data) == 1 else b"".join(result.data)
        session.reply_with_payload(
            SegmentRead(segment, result.offset, result.at_tail, result.end_of_segment, data, request_id)
        )

    def _wait(self, read: WaitingRead) -> None:
        session, limit = read.session, self.settings.limits.connection_waiting_reads
        if len(session.reads) >= limit:
            session.end(f"it has {limit} waiting reads, the limit for one connection (connection_waiting_reads)")
            return
        self.store.container_for(read.segment).wait(read.segment, read.offset, read)
        session.reads.add(read)
        read.timer = self._clock.call_later(self.settings.long_poll_s, partial(self._time_out, read))

    def _time_out(self, read: WaitingRead) -> None:
        """Answers a read empty, unless its session has ended: no data came in time."""
        self.forget_read(read)
        session = read.session
        try:
            if not session.ended:
                self._answer(session, read.segment, read.request_id, ReadResult(read.offset, [], True, False))
        except Exception as error:  # noqa: BLE001 — the session ends with it
            self.failed(session, error)

    def forget_read(self, read: WaitingRead) -> None:
        """Removes a waiting read, which is not answered here afterwards."""
        self.store.waiters.cancel(read)
        self._settle(read)

    @staticmethod
    def _settle(read: WaitingRead) -> None:
        read.session.reads.discard(read)
        if read.timer is not None:
            read.timer.cancel()

    def answer_waiting(self) -> None:
        """Answers the reads that changes of the store have woken, later if their peer has too many pending replies."""
        waiters = self.store.waiters
        while waiters.woken:
            for read, reason in waiters.take_woken():
                assert isinstance(read, WaitingRead)
                session = read.session
                if session.crowded:
                    assert read.timer is not None
                    read.timer.cancel()
                    session.woken.append((read, reason))
                    continue
                try:
                    self._answer_woken(read, reason)
                except Exception as error:  # noqa: BLE001 — it must not affect the connection that made the change
                    self.failed(session, error)

    def answer_later(self, session: Session) -> None:
        """Answers the reads of a session that were woken while its peer had too many pending replies."""
        while session.woken and not session.crowded and not session.ended:
            self._answer_woken(*session.woken.popleft())

    def _answer_woken(self, read: WaitingRead, reason: WakeReason) -> None:
        session, segment, offset, request_id = read.session, read.segment, read.offset, read.request_id
        self._settle(read)
        if session.ended:
            return
        if reason is WakeReason.DELETED:
            self._answer(session, segment, request_id, ReadResult(offset, [], True, False))
            return
        if reason is WakeReason.NOT_OWNED:
            session.reply(WrongHost(request_id, segment, "", ""))
            return
        try:
            if reason is WakeReason.SEALED:
                raise SegmentSealed(segment)
            result = self.store.read(segment, offset, read.length, woken=True)
            if result is None:
                self._wait(read)
                return
        except StoreError as error:
            refuse(session, error, request_id, segment, _READ, offset)
            return
        self._answer(session, segment, request_id, result)


handles(ReadSegment)(lambda session, command: session.service.read(session, command))
