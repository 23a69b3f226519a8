"""One connection of a segment store, without its socket: commands and appends in, frames to write out.

Pure, except for the store that it changes and the timers passed to it. Replies are queued in `out`; the owner of the
socket writes them, and checks `ending` to see whether and how the connection ends.

Invariants: after `close`, the store and the service no longer refer to the session, and its transient segments are
deleted, once. A reply is in `out` only after the store has applied the acknowledged change. The peer's waiting reads,
writers and transient segments are counted and bounded (`LimitSettings`).

Source: `AppendProcessor`, `WriterState`, `ServerConnectionInboundHandler`. The store answers at once, so appends never
overtake each other. Appends in the same read as a failed append count as in flight and fail the same way; later appends
have no writer and end the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from segstore.server.auth import Permission, TokenError
from segstore.server.connection.requests import handles, refuse
from segstore.server.connection.states import SessionEnding
from segstore.server.connection.writers import WRITER_BYTES, Item, Writer
from segstore.server.store import BadOffset, StoreError, name_bytes
from segstore.wire import (
    AppendSetup,
    Buffer,
    Command,
    ConditionalCheckFailed,
    CreateTransientSegment,
    Hello,
    KeepAlive,
    SegmentCreated,
    SetupAppend,
)
from segstore.wire.blocks import Append, BlockWriter, Row, Run
from segstore.wire.names import transient_name
from segstore.wire.protocol import compatible

if TYPE_CHECKING:
    from segstore.server.clock import TimerHandle
    from segstore.server.connection.service import StoreService, WaitingRead
    from segstore.server.store import WakeReason
    from segstore.wire.blocks import AppendBlockDecoder

WRITE_ABOVE_BYTES: Final = 1024 * 1024
"""Size of `out` above which it is written before more is executed."""

_NOT_YET: Final = SessionEnding.NOT_YET
_WAITING_READ_BYTES: Final = 1024
_LOOK_THROUGH_AFTER: Final = 256


def _writer_bytes(key: tuple[str, bytes]) -> int:
    return WRITER_BYTES + name_bytes(key[0])


class _Expiry(NamedTuple):
    """The end of a writer's token, and its timer."""

    at_s: float
    timer: TimerHandle


class Session:
    """The state of one connection.

    Attributes:
        peer: "host:port" of the other side, for logs.
        admin: whether it came in on the admin port.
        service: executes its commands.
        out, out_bytes: frames to write and their size; taken with `take_out`.
        out_has_payload: whether they include payloads that were not copied.
        reads: its reads that wait for an answer. woken: reads whose answers wait because the peer has too much to read
            already.
        full: set by the owner of the socket while the peer has too much to read.
        ending: whether the connection is to be closed, and how.
        why: one sentence on why it ends; "" if the peer disconnected.
    """

    def __init__(
        self,
        service: StoreService,
        peer: str,
        *,
        admin: bool,
        on_reply: Callable[[], None],
        blocks: AppendBlockDecoder | None = None,
        whole_frames: bool = False,
    ) -> None:
        """on_reply: called when the output becomes non-empty or the session ends, except for acknowledgements of
        appends, which the caller of `receive_all` checks. blocks: the decoder of append blocks;
        None if no appends are received. whole_frames: each buffer of `out` is a whole frame.
        """
        self.peer = peer
        self.admin = admin
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.out_has_payload = False
        self.reads: set[WaitingRead] = set()
        self.woken: deque[tuple[WaitingRead, WakeReason]] = deque()
        self.full = False
        self.ending = _NOT_YET
        self.why = ""
        self._on_reply = on_reply
        self.service = service
        self._memory = service.store.pool.memory
        self._blocks = blocks
        if blocks is not None:
            blocks.new_writer = Writer
        self._encode = service.encode
        self._whole_frames = whole_frames
        self._encode_parts = service.encode_parts
        self._writers: dict[tuple[str, bytes], Writer] = {}
        self._refused: dict[tuple[str, bytes], StoreError] = {}
        """Why appends of this read were refused, by their writers."""
        self._set_ups = 0
        """Number of set-ups since the writers were last checked."""
        self._gone: set[tuple[str, bytes]] = set()
        """The writers whose segments no longer existed at the last check."""
        self._expiries: dict[tuple[str, bytes], _Expiry] = {}
        """The end of the token with which a writer was set up, and its timer."""
        self._transients: set[str] = set()

    @property
    def ended(self) -> bool:
        """Whether nothing more may be executed for this peer."""
        return self.ending is not _NOT_YET

    @property
    def crowded(self) -> bool:
        """Whether the peer should read before more is prepared for it."""
        return self.full or self.out_bytes > WRITE_ABOVE_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Memory that its waiting reads take, roughly."""
        return len(self.reads) * _WAITING_READ_BYTES

    # --- in -------------------------------------------------------------------------------------------------------

    def receive_all(self, items: Sequence[Item], *, whole: bool = True) -> int:
        """Executes items in order until the session has ended or enough output is pending; returns how many are done.

        whole: these are all items of one read; later items were not in flight when an append in them failed.
        """
        service, done, total = self.service, 0, len(items)
        now_ms = service.now_ms()
        try:
            while done < total:
                item = items[done]
                done += 1
                if type(item) is list:
                    self._append(item, now_ms)
                elif type(item) is Append:
                    writer, offset = BlockWriter(item.segment, item.writer_id), item.expected_offset
                    rows = [(item.event_number, item.event_count, item.data, item.request_id)]
                    self._append(((writer, rows),), now_ms, -1 if offset is None else offset)
                else:
                    service.handle(self, item)  # type: ignore[arg-type]  # nothing else is left
                if self.ending is not _NOT_YET or self.out_bytes > WRITE_ABOVE_BYTES:
                    break
        finally:
            if whole and done == total and (self._refused or self._set_ups >= _LOOK_THROUGH_AFTER):
                self.nothing_in_flight()
        return done

    def nothing_in_flight(self) -> None:
        """Call when all items of a read are applied: later items did not arrive together with a failed append."""
        self._refused.clear()
        if self._blocks is not None and self._set_ups >= max(_LOOK_THROUGH_AFTER, len(self._writers) // 8):
            self._forget_writers(self._blocks)

    def _forget_writers(self, blocks: AppendBlockDecoder) -> None:
        """Forgets writers whose segments were missing in the last two checks, so that an append sent before its segment
        was deleted is still answered. The amortised cost per set-up is constant.
        """
        gone = {key for key in self._writers if not self.service.has_segment(key[0])}
        for key in gone & self._gone:
            gone.discard(key)
            self.forget_writer(key)
            if (expiry := self._expiries.pop(key, None)) is not None:
                expiry.timer.cancel()
        self._gone, self._set_ups = gone, 0
        blocks.retain(self._writers)

    def _append(self, runs: Sequence[Run], now_ms: int, expected_offset: int = -1) -> None:
        """Stores runs in order, and queues an acknowledgement for each number that rises; or refuses. Ends early when
        the session has ended. expected_offset: as for `Container.append`.
        """
        service, acks, count = self.service, bytearray(), 0
        containers, acknowledge = service.store.containers, service.acknowledge
        try:
            for known, rows in runs:
                if self.ending is not _NOT_YET:
                    break
                if type(known) is Writer and known.is_set_up:
                    writer: Writer | None = known
                else:  # the block decoder may have the record of a later set-up
                    writer = self._writers.get((known.segment, known.writer_id.bytes))
                if writer is None or rows[0][0] < writer.last_stored:
                    self._acknowledge(acks)
                    self._without_writer(known, rows)
                    continue
                previous = writer.last_stored
                try:
                    container = containers.get(writer.container_id)
                    if container is None:
                        container = service.store.container_for(writer.segment)
                    offset = container.append(writer.segment, writer.id_bytes, rows, previous, now_ms, expected_offset)
                except StoreError as error:
                    self._acknowledge(acks)
                    self._append_failed(writer, rows, error)
                    continue
                if writer.count is not None:
                    writer.count.stored(rows)
                writer.last_stored = acknowledge(rows, writer.id_bytes, previous, offset, acks)
                count += len(rows)
        finally:
            service.counters.appends += count
            self._acknowledge(acks)

    def _acknowledge(self, acks: bytearray) -> None:
        """Queues acknowledgements, which are cleared."""
        if acks:
            self.out.append(bytes(acks))
            self.out_bytes += len(acks)
            acks.clear()

    def end(self, why: str, ending: SessionEnding = SessionEnding.DROPPED) -> None:
        """Ends the connection; the first call counts."""
        if self.ending is _NOT_YET:
            self.ending = ending
            self.why = why
            self._on_reply()

    def forget_writer(self, key: tuple[str, bytes]) -> None:
        """The writer is to be set up again before it appends; it ends the connection if it does not."""
        writer = self._writers.pop(key, None)
        if writer is None:
            return
        writer.is_set_up = False
        if writer.count is not None:
            writer.count.connected -= 1
        self._memory.charge(-_writer_bytes(key))

    @property
    def writer_count(self) -> int:
        """Writers that are set up on it now."""
        return len(self._writers)

    def close(self) -> None:
        """Drops waiting requests and deletes the transient segments of the closed connection."""
        self.end("")
        self.woken.clear()
        while self.reads:
            self.service.forget_read(self.reads.pop())
        while self._expiries:
            self._expiries.popitem()[1].timer.cancel()
        for key in tuple(self._writers):
            self.forget_writer(key)
        while self._transients:
            self.service.drop_transient(self._transients.pop())
        self._refused.clear()
        self.take_out()
        self._on_reply = lambda: None  # the socket's owner refers to this: without a cycle both are freed at once

    # --- out ------------------------------------------------------------------------------------------------------

    def reply(self, command: Command) -> None:
        """Queues a reply, all of it copied."""
        frame = self._encode(command)
        out = self.out
        out.append(frame)
        self.out_bytes += len(frame)
        if len(out) == 1:
            self._on_reply()

    def reply_with_payload(self, command: Command) -> None:
        """Queues a reply whose payload is not copied: the store's chunks never change while a view of them exists."""
        if self._whole_frames:
            self.reply(command)
            return
        first = not self.out
        for part in self._encode_parts(command):
            self.out.append(part)
            self.out_bytes += len(part)
        self.out_has_payload = True
        if first:
            self._on_reply()

    def take_out(self) -> list[Buffer]:
        """The queued frames, in order; the caller writes them."""
        out, self.out, self.out_bytes, self.out_has_payload = self.out, [], 0, False
        return out

    # --- commands of the connection ---------------------------------------------------------------------------------

    @handles(Hello)
    def _hello(self, command: Hello) -> None:
        ours = self.service.hello
        self.reply(ours)
        if not compatible(command, ours):
            self.end(
                f"it speaks wire versions {command.low_version} to {command.high_version}, "
                f"this store {ours.low_version} to {ours.high_version}",
                # The reference's admin port closes before its queued replies, including its Hello, are written.
                SessionEnding.DROPPED if self.admin else SessionEnding.FLUSHED,
            )

    @handles(KeepAlive)
    def _keep_alive(self, command: KeepAlive) -> None:
        self.reply(command)

    # --- appends ----------------------------------------------------------------------------------------------------

    @handles(SetupAppend)
    def _setup_append(self, command: SetupAppend) -> None:
        if self.admin:
            self.end("SetupAppend is not served on the admin port")
            return
        service, segment, writer_id = self.service, command.segment, command.writer_id
        self._set_ups += 1
        try:
            expires_s = service.authorize(segment, command.delegation_token, Permission.READ_UPDATE)
            self._memory.check()
            last = service.store.setup_append(segment, writer_id, now_ms=service.now_ms())
            container = service.store.container_for(segment)
        except (StoreError, TokenError) as error:
            # A refusal may be about the segment's index, and names it then.
            named = error.segment if isinstance(error, StoreError) and error.segment else segment
            refuse(self, error, command.request_id, named, "setting up append", writer_id=writer_id)
            return
        key = (segment, writer_id.bytes)
        limit = service.settings.limits.connection_writer_bytes
        if key not in self._writers and (len(self._writers) + 1) * WRITER_BYTES > limit:
            self.end(
                f"it has set up {len(self._writers)} writers, as many as {limit} bytes hold (connection_writer_bytes)"
            )
            return
        self.forget_writer(key)
        self._refused.pop(key, None)
        counts = service.writer_counts
        count = None if counts is None else counts.set_up(segment, writer_id)
        writer = self._writers[key] = self._lent(segment, writer_id)
        writer.set_up(container.container_id, last, count)
        self._memory.charge(_writer_bytes(key))
        if expires_s is not None:
            self._expire_at(expires_s, key)
        self.reply(AppendSetup(command.request_id, segment, writer_id, last))

    def _lent(self, segment: str, writer_id: UUID) -> Writer:
        """The record that the block decoder has of a writer; a new one if its id has moved on to another segment."""
        lent = None if self._blocks is None else self._blocks.writers.get(writer_id.bytes)
        return lent if isinstance(lent, Writer) and lent.segment == segment else Writer(segment, writer_id)

    def _expire_at(self, at_s: float, key: tuple[str, bytes]) -> None:
        """Ends the connection then, if the writer is set up for the segment. A newer token does not prolong it."""
        pending = self._expiries.get(key)
        if pending is not None:
            if pending.at_s <= at_s:
                return
            pending.timer.cancel()
        self._expiries[key] = _Expiry(at_s, self.service.at(at_s, lambda: self._expire(key)))

    def _expire(self, key: tuple[str, bytes]) -> None:
        del self._expiries[key]
        if key in self._writers:
            self.end(f"the token of a writer of {key[0]!r} expired", SessionEnding.FLUSHED)

    def _without_writer(self, known: BlockWriter, rows: Sequence[Row]) -> None:
        """Handles appends without a ready writer: they fail like the failed append in flight with them, or end the
        connection.
        """
        segment, writer_id = known.segment, known.writer_id
        key = segment, writer_id.bytes
        for number, _, _, request_id in rows:
            if self.ended:
                return
            if (writer := self._writers.get(key)) is not None:
                self.end(f"writer {writer_id} of {segment!r} sends event {number} after {writer.last_stored}")
            elif (error := self._refused.get(key)) is not None:
                refuse(self, error, request_id, segment, "appending data", number, writer_id)
            else:
                self.end(f"writer {writer_id} appends to {segment!r} without having been set up")

    def _append_failed(self, writer: Writer, rows: Sequence[Row], error: StoreError) -> None:
        """Answers each append of a run that failed. Its writer is to be set up again if not only a condition failed."""
        if isinstance(error, BadOffset):
            self.reply(ConditionalCheckFailed(writer.writer_id, rows[0][0], rows[0][3]))
            return
        key = writer.segment, writer.id_bytes
        self.forget_writer(key)
        self._refused[key] = error
        self._without_writer(writer, rows)

    @handles(CreateTransientSegment)
    def _create_transient(self, command: CreateTransientSegment) -> None:
        if self.admin:
            self.end("CreateTransientSegment is not served on the admin port")
            return
        service, parent, writer_id = self.service, command.parent_segment, command.writer_id
        random_part = service.random_hex32()
        name = transient_name(parent, writer_id, random_part)
        try:
            if service.settings.strict_auth:
                service.authorize(parent, command.delegation_token, Permission.READ_UPDATE)
            limit = service.settings.limits.connection_transient_segments
            if len(self._transients) >= limit:
                self._transients = {transient for transient in self._transients if service.has_segment(transient)}
            if len(self._transients) >= limit:
                self.end(f"it has {limit} transient segments, the limit (connection_transient_segments)")
                return
            service.store.container_for(parent).create_transient_segment(
                parent, writer_id, random_part, now_ms=service.now_ms()
            )
        except (StoreError, TokenError) as error:
            refuse(self, error, command.request_id, name, "createTransientSegment", writer_id=writer_id)
            return
        self._transients.add(name)
        self.reply(SegmentCreated(command.request_id, name))
