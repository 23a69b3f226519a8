"""One connection of a segment store, without its socket: commands and appends in, frames to write out.

Pure but for the store that it changes and the timers that it is given. Replies gather in `out`; whoever owns the socket
writes them, and looks at `ending` to see whether and how the connection ends.

Invariant: after `close` nothing in the store or in the service refers to the session, and its transient segments are
gone, once. A reply is in `out` only after the store has taken what it acknowledges. What a peer may have waiting, set
up or created is counted and bounded (`LimitSettings`).

Source: `AppendProcessor`, `WriterState`, `ServerConnectionInboundHandler`. The store here answers at once, so an append
is never overtaken by the next one. In flight with an append that fails is what came in the same read: it fails the same
way, where what comes later has no writer any more and ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from segstore.server.auth import AccessLevel, TokenError, TokenExpired
from segstore.server.connection.refusals import refusal
from segstore.server.connection.writers import WRITER_BYTES, SetUpWriter, run_of
from segstore.server.store import BadAttribute, BadOffset, StoreError, name_bytes
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
from segstore.wire.blocks import Append
from segstore.wire.codec import END_HEADER, acknowledgement
from segstore.wire.codec.generate import UUIDS
from segstore.wire.names import transient_name
from segstore.wire.protocol import compatible

if TYPE_CHECKING:
    from segstore.server.connection.service import StoreService, TimerHandle, WaitingRead
    from segstore.server.store import WakeReason
    from segstore.wire import FrameDecoder
    from segstore.wire.blocks import AppendBlockDecoder

WRITE_ABOVE_BYTES: Final = 1024 * 1024
"""When so much is in `out`, it is written before more is carried out."""

_WAITING_READ_BYTES: Final = 1024
_LOOK_THROUGH_AFTER: Final = 256


class Ending(Enum):
    """How a connection ends."""

    NOT_YET = auto()
    FLUSHED = auto()
    """After all replies were written."""
    DROPPED = auto()
    """At once: the replies to what came in the same read are not written, as in the reference."""


def _writer_bytes(key: tuple[str, bytes]) -> int:
    return WRITER_BYTES + name_bytes(key[0])


def _nobody() -> None:
    """Is told of replies when the connection is gone."""


class _Expiry:
    """When a token ends with which a writer was set up for a segment, and the timer for it."""

    __slots__ = ("at_s", "timer")

    def __init__(self, at_s: float, timer: TimerHandle) -> None:
        self.at_s = at_s
        self.timer = timer


class Session:
    """The state of one connection.

    Attributes:
        peer: "host:port" of the other side, for logs.
        admin: whether it came in on the admin port.
        out, out_bytes: frames to write and their size; taken with `take_out`.
        out_has_payload: whether there are payloads among them that were not copied.
        reads: its reads that wait for an answer.
        woken: those of them that could be answered, but the peer has too much to read already.
        has_asked: whether the peer has sent more than Hello and KeepAlive.
        full: set by the owner of the socket while the peer has too much to read.
        ending: whether the connection is to be closed, and how.
        why: one sentence on why it ends, "" for a peer that went of its own accord.
    """

    __slots__ = (
        "_at_hand",
        "_blocks",
        "_encode",
        "_encode_parts",
        "_expiries",
        "_gone",
        "_memory",
        "_on_reply",
        "_refused",
        "_service",
        "_set_ups",
        "_store_changes",
        "_transients",
        "_whole_frames",
        "_writers",
        "admin",
        "ending",
        "full",
        "has_asked",
        "out",
        "out_bytes",
        "out_has_payload",
        "peer",
        "reads",
        "why",
        "woken",
    )

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
        """on_reply: called when the output becomes non-empty or the session ends. blocks: the decoder of append blocks;
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
        self.has_asked = False
        self.ending = Ending.NOT_YET
        self.why = ""
        self._on_reply = on_reply
        self._service = service
        self._memory = service.store.pool.memory
        self._blocks = blocks
        self._encode = service.encode
        self._whole_frames = whole_frames
        self._encode_parts = service.encode_parts
        self._writers: dict[tuple[str, bytes], SetUpWriter] = {}
        self._refused: dict[tuple[str, bytes], StoreError] = {}
        self._at_hand: dict[bytes, SetUpWriter] = {}
        """Those of the writers that `append_plain` has found, by id alone, as the block decoder knows them."""
        self._store_changes = service.store.changes
        self._set_ups = 0
        """Number of set-ups since the writers were last checked."""
        self._gone: set[tuple[str, bytes]] = set()
        """The writers whose segments no longer existed at the last check."""
        self._expiries: dict[tuple[str, bytes], _Expiry] = {}
        self._transients: set[str] = set()

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be carried out for this peer."""
        return self.ending is not Ending.NOT_YET

    @property
    def crowded(self) -> bool:
        """Whether the peer should read before more is prepared for it."""
        return self.full or self.out_bytes > WRITE_ABOVE_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Memory that its waiting reads take, roughly."""
        return len(self.reads) * _WAITING_READ_BYTES

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, item: Command | Append) -> None:
        """Carries out one command or append, of which others may have come with it; its reply, if it has one now, is
        in `out`.
        """
        self.receive_all((item,), whole=False)

    def receive_all(self, items: Sequence[Command | Append], start: int = 0, *, whole: bool = True) -> int:
        """Carries out items in order, from `start`; returns how many of all are done.

        It stops early when the session has ended, when enough output is pending, and after a command that uses up the
        open slice. whole: these are all items of one read; later items were not in flight when one of these failed.
        """
        service = self._service
        now_s, until_s = service.queue.now_s, service.queue.until_s
        now_ms = service.now_ms()
        writers, containers, acknowledge = self._writers, service.store.containers, service.acknowledge
        done, total, appended = start, len(items), 0
        try:
            while done < total:
                item = items[done]
                done += 1
                if type(item) is not Append:
                    self._command(item)  # type: ignore[arg-type]  # not an Append
                    if now_s() >= until_s:
                        break
                else:
                    segment, writer_id, number = item.segment, item.writer_id, item.event_number
                    writer = writers.get((segment, writer_id.bytes))
                    if writer is None or number < writer.last_stored:
                        self._without_writer(item, writer)
                        if self.ending is not Ending.NOT_YET or self.out_bytes > WRITE_ABOVE_BYTES:
                            break
                        continue
                    container = writer.container
                    if containers.get(container.container_id) is not container:
                        # It has left the store since, and may have come back as another one.
                        if not self._find_container(item, writer):
                            continue
                        container = writer.container
                    expected = item.expected_offset
                    following: Any = items[done] if expected is None and done < total else None
                    if type(following) is Append and following.writer_id is writer_id:
                        run = run_of(items, done - 1)
                        if len(run) > 1:
                            stored = self._append_run(run, writer)
                            appended += stored
                            done += len(run) - 1
                            if self.ending is not Ending.NOT_YET or self.out_bytes > WRITE_ABOVE_BYTES:
                                break
                            continue
                    try:
                        length = container.append(
                            segment,
                            writer_id,
                            number,
                            item.event_count,
                            item.data,
                            last_event_number=writer.last_stored,
                            now_ms=now_ms,
                            expected_offset=-1 if expected is None else expected,
                        )
                    except StoreError as error:
                        self._append_failed(item, error)
                    else:
                        appended += 1
                        writer.last_stored = number
                        if writer.count is not None:
                            writer.count.events += item.event_count
                            writer.count.bytes += len(item.data)
                        previous = writer.last_acknowledged
                        if previous < number:
                            writer.last_acknowledged = number
                            frame = acknowledge(item.request_id, writer.id_bytes, number, previous, length)
                            out = self.out
                            out.append(frame)
                            self.out_bytes += len(frame)
                            if len(out) == 1:
                                self._on_reply()
                if self.ending is not Ending.NOT_YET or self.out_bytes > WRITE_ABOVE_BYTES:
                    break
        finally:
            service.counters.appends += appended
            if whole and done == total and (self._refused or self._set_ups >= _LOOK_THROUGH_AFTER):
                self.nothing_in_flight()
        return done

    def nothing_in_flight(self) -> None:
        """Call when all items of a read are applied: later items did not arrive together with a failed append."""
        self._refused.clear()
        if self._blocks is not None and self._set_ups >= max(_LOOK_THROUGH_AFTER, len(self._writers) // 8):
            self._forget_writers(self._blocks)

    def _forget_writers(self, blocks: AppendBlockDecoder) -> None:
        """Forgets writers whose segments did not exist at this check and the last one, so that an append sent before
        its segment was deleted is still answered. The amortised cost per set-up is constant.
        """
        gone = {key for key in self._writers if not self._service.has_segment(key[0])}
        for key in gone & self._gone:
            gone.discard(key)
            self._drop_writer(key)
            if (expiry := self._expiries.pop(key, None)) is not None:
                expiry.timer.cancel()
        self._gone, self._set_ups = gone, 0
        blocks.retain(self._writers)

    def append_plain(self, frames: FrameDecoder, read: memoryview, size: int) -> int:
        """Applies the plain appends at the start of a read of `size` bytes; returns the number of their bytes.

        The effect is that of `frames`, the block decoder and `receive_all`, in fewer steps; these process the rest. The
        caller makes sure that no block is open and `out` is empty, and writes what is added to `out`.
        """
        service, at_hand, out = self._service, self._at_hand, self.out
        store, now_ms = service.store, service.now_ms()
        if self._store_changes != store.changes:  # containers have left since, and may have come back as other ones
            self._store_changes = store.changes
            at_hand.clear()
        before: SetUpWriter | None = None
        at = 0
        try:
            while (run := frames.append_rows(read, at, size)) is not None:
                done = len(out)
                for header, id_bytes, data, end_header, end_id, sizes, events, number, request_id in run.rows:
                    if header != run.header or end_header != END_HEADER or end_id != id_bytes or sizes != run.sizes:
                        break
                    writer = at_hand.get(id_bytes) or self._take_to_hand(id_bytes)
                    if writer is None:
                        break
                    segment, taken, stored = writer.segment, writer.taken, writer.last_stored
                    if (
                        segment is None
                        or taken is None
                        or number <= stored
                        or number < taken.last_event_number
                        or events <= 0
                        or writer is before  # several of one writer are for `_append_run`
                    ):
                        break
                    length = writer.container.append_plain(
                        segment, writer.writer_id, number, events, data, stored, now_ms
                    )
                    if length < 0:
                        break
                    before = writer
                    writer.last_stored = writer.last_acknowledged = taken.last_event_number = number
                    if writer.count is not None:
                        writer.count.events += events
                        writer.count.bytes += len(data)
                    out.append(acknowledgement(writer.ack_head, number, stored, request_id, length))
                if len(out) == done:
                    break
                at += (len(out) - done) * run.size
        finally:
            service.counters.appends += len(out)
            self.out_bytes = sum(map(len, out))
        return at

    def _take_to_hand(self, id_bytes: bytes) -> SetUpWriter | None:
        taken = None if self._blocks is None else self._blocks.taken(UUIDS[id_bytes])
        writer = None if taken is None else self._writers.get((taken.segment, id_bytes))
        if taken is None or writer is None or writer.last_stored != writer.last_acknowledged:
            return None
        container = writer.container
        segment = container.segments.get(taken.segment)
        if segment is None or self._service.store.containers.get(container.container_id) is not container:
            return None
        writer.segment, writer.taken = segment, taken
        self._at_hand[id_bytes] = writer
        return writer

    def _append_run(self, run: Sequence[Append], writer: SetUpWriter) -> int:
        """Stores appends that follow each other, and queues an acknowledgement for each; returns how many."""
        first = run[0]
        segment, writer_id = first.segment, first.writer_id
        try:
            lengths = writer.container.append_run(
                segment, writer_id, run, last_event_number=writer.last_stored, now_ms=self._service.now_ms()
            )
        except StoreError as error:
            self._append_failed(first, error)
            for append in run[1:]:
                if self.ended:
                    break
                self._without_writer(append, self._writers.get((segment, writer_id.bytes)))
            return 0
        writer.last_stored = run[-1].event_number
        if writer.count is not None:
            writer.count.events += sum(append.event_count for append in run)
            writer.count.bytes += sum(len(append.data) for append in run)
        acknowledge, out, previous, size = self._service.acknowledge, self.out, writer.last_acknowledged, 0
        silent = not out
        for append, length in zip(run, lengths, strict=True):
            number = append.event_number
            if previous < number:
                frame = acknowledge(append.request_id, writer.id_bytes, number, previous, length)
                out.append(frame)
                size += len(frame)
                previous = number
        writer.last_acknowledged = previous
        self.out_bytes += size
        if silent and out:
            self._on_reply()
        return len(run)

    def _command(self, command: Command) -> None:
        special = _SPECIAL.get(type(command))
        if special is None:
            self.has_asked = True
            self._service.handle(self, command)
        else:
            special(self, command)

    def end(self, why: str, ending: Ending = Ending.DROPPED) -> None:
        """Ends the connection; the first call counts."""
        if self.ending is Ending.NOT_YET:
            self.ending = ending
            self.why = why
            self._on_reply()

    def forget_writer(self, segment: str, writer_id: UUID) -> None:
        """The writer is to be set up again before it appends; it ends the connection if it does not."""
        self._drop_writer((segment, writer_id.bytes))

    def _drop_writer(self, key: tuple[str, bytes]) -> None:
        writer = self._writers.pop(key, None)
        if writer is None:
            return
        if self._at_hand.get(writer.id_bytes) is writer:
            del self._at_hand[writer.id_bytes]
        if writer.count is not None:
            writer.count.connected -= 1
        self._memory.charge(-_writer_bytes(key))

    @property
    def writer_count(self) -> int:
        """Writers that are set up on it now."""
        return len(self._writers)

    def close(self) -> None:
        """The connection is gone: drops what waits and deletes the transient segments that it created."""
        while not self.close_some():
            pass

    def close_some(self) -> bool:
        """As `close`, until the open slice is used up, but at least one step; returns whether all is done."""
        self.end("")
        self.woken.clear()
        is_over = self._service.queue.is_over
        while True:
            if self.reads:
                self._service.forget_read(self.reads.pop())
            elif self._expiries:
                self._expiries.popitem()[1].timer.cancel()
            elif self._writers:
                self._drop_writer(next(reversed(self._writers)))
            elif self._transients:
                self._service.drop_transient(self._transients.pop())
            else:
                break
            if is_over():
                return False
        self._refused.clear()
        self.take_out()
        self._on_reply = _nobody  # the socket's owner refers to this: without a cycle both are freed at once
        return True

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
        """Queues a reply whose payload is not copied: the store's chunks never change while somebody views them."""
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

    def _hello(self, command: Hello) -> None:
        ours = self._service.hello
        self.reply(ours)
        if not compatible(command, ours):
            self.end(
                f"it speaks wire versions {command.low_version} to {command.high_version}, "
                f"this store {ours.low_version} to {ours.high_version}",
                # The reference's admin port closes before its queued replies, including its Hello, are written.
                Ending.DROPPED if self.admin else Ending.FLUSHED,
            )

    def _keep_alive(self, command: KeepAlive) -> None:
        self.reply(command)

    # --- appends ----------------------------------------------------------------------------------------------------

    def _setup_append(self, command: SetupAppend) -> None:
        self.has_asked = True
        if self.admin:
            self.end("SetupAppend is not served on the admin port")
            return
        service, segment, writer_id = self._service, command.segment, command.writer_id
        self._set_ups += 1
        try:
            token = service.authorize(segment, command.delegation_token, AccessLevel.READ_UPDATE)
            self._memory.check()
            last = service.store.setup_append(segment, writer_id, now_ms=service.now_ms())
            container = service.store.container_for(segment)
        except (StoreError, TokenError) as error:
            # A refusal may be about the segment's index, and names it then.
            named = error.segment if isinstance(error, StoreError) and error.segment else segment
            self._refuse_writer(error, command.request_id, named, writer_id, "setting up append", -1)
            return
        key = (segment, writer_id.bytes)
        limit = service.settings.limits.connection_writer_bytes
        if key not in self._writers and (len(self._writers) + 1) * WRITER_BYTES > limit:
            self.end(f"it has set up {len(self._writers)} writers, as many as {limit} bytes hold")
            return
        self._drop_writer(key)
        self._refused.pop(key, None)
        counts = service.writer_counts
        count = None if counts is None else counts.set_up(segment, writer_id)
        self._writers[key] = SetUpWriter(writer_id, container, last, count)
        self._memory.charge(_writer_bytes(key))
        self._at_hand.pop(writer_id.bytes, None)
        if token is not None and token.expires_s is not None:
            self._expire_at(token.expires_s, key)
        self.reply(AppendSetup(command.request_id, segment, writer_id, last))

    def _expire_at(self, at_s: float, key: tuple[str, bytes]) -> None:
        """Ends the connection then, if the writer is set up for the segment. A newer token does not prolong it."""
        pending = self._expiries.get(key)
        if pending is not None:
            if pending.at_s <= at_s:
                return
            pending.timer.cancel()
        self._expiries[key] = _Expiry(at_s, self._service.at(at_s, lambda: self._expire(key)))

    def _expire(self, key: tuple[str, bytes]) -> None:
        del self._expiries[key]
        if key in self._writers:
            self.end(f"the token of a writer of {key[0]!r} expired", Ending.FLUSHED)

    def _without_writer(self, append: Append, writer: SetUpWriter | None) -> None:
        """An append without a writer that may send it: it fails like the one before it that it came with, or ends the
        connection.
        """
        segment, writer_id = append.segment, append.writer_id
        if writer is None and (error := self._refused.get((segment, writer_id.bytes))) is not None:
            self._refuse_append(append, error)
        elif writer is None:
            self.end(f"writer {writer_id} appends to {segment!r} without having been set up")
        else:
            self.end(f"writer {writer_id} of {segment!r} sends event {append.event_number} after {writer.last_stored}")

    def _find_container(self, append: Append, writer: SetUpWriter) -> bool:
        self._at_hand.pop(writer.id_bytes, None)  # its segment is another one too
        try:
            writer.container = self._service.store.container_for(append.segment)
        except StoreError as error:
            self._append_failed(append, error)
            return False
        return True

    def _append_failed(self, append: Append, error: StoreError) -> None:
        writer_id, number = append.writer_id, append.event_number
        if isinstance(error, BadOffset):
            self.reply(ConditionalCheckFailed(writer_id, number, append.request_id))
            return
        key = (append.segment, writer_id.bytes)
        self._drop_writer(key)
        self._refused[key] = error
        self._refuse_append(append, error)

    def _refuse_append(self, append: Append, error: StoreError) -> None:
        number, writer_id = append.event_number, append.writer_id
        self._refuse_writer(error, append.request_id, append.segment, writer_id, "appending data", number)

    def _refuse_writer(
        self, error: Exception, request_id: int, segment: str, writer_id: UUID, operation: str, number: int
    ) -> None:
        reply = refusal(
            error,
            request_id=request_id,
            segment=segment,
            operation=operation,
            offset=number,
            writer_id=writer_id,
            with_trace=self._service.traces(self),
        )
        if reply is None:
            self.end(f"{operation} failed: {error}", Ending.FLUSHED)
            return
        self.reply(reply)
        if isinstance(error, (BadAttribute, TokenExpired)):
            self.end(f"{operation} failed: {error}", Ending.FLUSHED)

    def _create_transient(self, command: CreateTransientSegment) -> None:
        self.has_asked = True
        if self.admin:
            self.end("CreateTransientSegment is not served on the admin port")
            return
        service, parent, writer_id = self._service, command.parent_segment, command.writer_id
        random_part = service.random_hex32()
        name = transient_name(parent, writer_id, random_part)
        try:
            if service.settings.strict_auth:
                service.authorize(parent, command.delegation_token, AccessLevel.READ_UPDATE)
            limit = service.settings.limits.connection_transient_segments
            if len(self._transients) >= limit:
                self._transients = {each for each in self._transients if service.has_segment(each)}
            if len(self._transients) >= limit:
                self.end(f"it has {limit} transient segments, as many as one connection may have")
                return
            service.store.create_transient_segment(parent, writer_id, random_part, now_ms=service.now_ms())
        except (StoreError, TokenError) as error:
            self._refuse_writer(error, command.request_id, name, writer_id, "createTransientSegment", -1)
            return
        self._transients.add(name)
        self.reply(SegmentCreated(command.request_id, name))


_SPECIAL: dict[type, Callable[[Session, Any], None]] = {
    Hello: Session._hello,
    KeepAlive: Session._keep_alive,
    SetupAppend: Session._setup_append,
    CreateTransientSegment: Session._create_transient,
}
