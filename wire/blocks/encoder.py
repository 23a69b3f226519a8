"""Encodes a client's appends into frames. The package docstring states its invariants and refusals.

Follows `CommandEncoder` (Pravega). Deliberate differences: two writers with one id on different segments both keep
their pending appends; an append that would make the reference exceed the frame limit or the range of a count starts a
new block.
"""

from collections.abc import Callable
from struct import Struct as Layout
from typing import Final
from uuid import UUID

from segstore.wire.blocks.rules import AppendRule, AppendViolation
from segstore.wire.blocks.size import BlockSizeTracker
from segstore.wire.codec import encode_parts
from segstore.wire.commands import AppendBlock, AppendBlockEnd, Hello, Padding, PartialEvent, SetupAppend
from segstore.wire.errors import BadField, FrameTooLarge, OutOfOrder
from segstore.wire.names import MAX_INT32, MAX_INT64
from segstore.wire.schema import MAX_FRAME_BYTES, Buffer, Command

MAX_PENDING_BYTES: Final = 1024 * 1024
MAX_PENDING_EVENTS: Final = 500


_HEADER: Final = Layout(">ii")
_BLOCK: Final = Layout(">ii16s")
_END: Final = Layout(">ii16siiiqq")  # a block end without data
_END_HEAD: Final = Layout(">ii16sii")
_END_TAIL: Final = Layout(">iqq")
_FIRST_BUCKETS: Final = 16
BLOCK_BYTES: Final = _BLOCK.size
"""Bytes of an append block's frame without its data."""
_BLOCK_FIELDS: Final = _BLOCK.size - _HEADER.size
_END_FIELDS: Final = _END.size - _HEADER.size


def frames_of_append(
    writer: bytes, pieces: list[Buffer], size: int, event_count: int, event_number: int, request_id: int
) -> list[Buffer]:
    """Returns the frames of an append that is a block of its own: the block with all `pieces`, and its end.

    writer: the writer's id as bytes. size: of all pieces. event_number: that of the last event. The caller has checked
    all values.
    """
    block = _BLOCK.pack(AppendBlock.code, _BLOCK_FIELDS + size, writer)
    end = _END.pack(AppendBlockEnd.code, _END_FIELDS, writer, size, 0, event_count, event_number, request_id)
    return [block, *pieces, end]


class _Session:
    """One writer of one segment: its last event number, and appends pending while another writer's block is open."""

    def __init__(self, writer_id: UUID, request_id: int) -> None:
        self.writer = writer_id
        self.writer_bytes = writer_id.bytes
        self.request_id = request_id
        self.last_event_number = -1
        self.event_count = 0
        """Events in the open block or pending; a writer never has both kinds."""
        self.pending: list[Buffer] = []
        self.pending_bytes = 0

    def whole(self, pieces: list[Buffer], out: list[Buffer]) -> None:
        """Adds a block of its own with `pieces`."""
        count, self.event_count = self.event_count, 0
        size = sum(map(len, pieces))
        out += frames_of_append(self.writer_bytes, pieces, size, count, self.last_event_number, self.request_id)

    def end(self, size_of_whole_events: int, rest: Buffer, out: list[Buffer]) -> None:
        size = len(rest)
        count, self.event_count = self.event_count, 0
        head = (AppendBlockEnd.code, _END_FIELDS + size, self.writer_bytes, size_of_whole_events, size)
        tail = (count, self.last_event_number, self.request_id)
        if size:
            out += (_END_HEAD.pack(*head), rest, _END_TAIL.pack(*tail))
        else:
            out.append(_END.pack(*head, *tail))


def _bucket(writer: UUID, buckets: int) -> int:
    """Returns the bucket of a UUID in a java.util.HashMap; buckets: a power of two."""
    halves = (writer.int >> 64) ^ (writer.int & 0xFFFF_FFFF_FFFF_FFFF)
    hashed = (halves >> 32) ^ (halves & 0xFFFF_FFFF)
    return (hashed ^ (hashed >> 16)) & (buckets - 1)


class AppendBlockEncoder:
    """Encodes the commands and appends of one connection into buffers, to be written in the order returned.

    sizing: returns the `BlockSizeTracker` of a flow (`request_id >> 32` of the append), or None; without a sizing, each
    append is its own block. leftover_ms: maximum wait of appends that stay pending when another writer's flush closes
    the open block and its timer; None leaves them until their writer's next command or append, as the reference does.
    Clients that need progress set it. max_frame_bytes: the longest frame that the peer accepts, header included.

    The caller writes what `append`, `command`, `tick`, `flush` and `remove` return, calls `tick` when `deadline()` is
    reached, and may check `flush_required`: whether the last call's bytes should be written at once, not with later
    bytes.
    """

    def __init__(
        self,
        sizing: Callable[[int], BlockSizeTracker | None] | None = None,
        *,
        leftover_ms: float | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._sizing = sizing
        self._leftover_ms = leftover_ms
        self._max_frame_bytes = max_frame_bytes
        self._sessions: dict[tuple[int, str], _Session] = {}
        self._pending: dict[_Session, None] = {}
        self._buckets = _FIRST_BUCKETS
        self._owner: _Session | None = None
        self._block_bytes = 0
        self._left = 0
        self._block_deadline: float | None = None
        self._leftover_deadline: float | None = None
        self.flush_required = False

    @property
    def block_open(self) -> bool:
        """Whether a block has been started whose end is not yet written."""
        return self._owner is not None

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of appends accepted but not yet returned."""
        return sum(session.pending_bytes for session in self._pending)

    def deadline(self) -> float | None:
        """Returns when to call `tick`, on the clock of `now_ms`; None if no timer is running."""
        if self._block_deadline is None or self._leftover_deadline is None:
            return self._leftover_deadline if self._block_deadline is None else self._block_deadline
        return min(self._block_deadline, self._leftover_deadline)

    def command(self, command: Command) -> list[Buffer]:
        """Encodes any command except an append, after closing the open block and flushing pending appends.

        A SetupAppend registers its writer or resets it. Raises `OutOfOrder` for a Hello while a block is open or
        appends are pending, and the errors of encoding; an error changes nothing.
        """
        self.flush_required = False
        if isinstance(command, Hello) and (self._owner is not None or self._pending):
            raise OutOfOrder(
                f"a Hello cannot follow pending appends: block open {self.block_open}, "
                f"{len(self._pending)} writers pending",
                code=Hello.code,
                type_name=Hello.type_name,
            )
        parts = encode_parts(command)
        out = self.flush()
        if isinstance(command, SetupAppend):
            key = command.writer_id.int, command.segment
            self._sessions[key] = _Session(command.writer_id, command.request_id)
        out += parts
        return out

    def append(
        self,
        segment: str,
        writer_id: UUID,
        event_number: int,
        event_count: int,
        data: Buffer,
        request_id: int,
        now_ms: float,
        *,
        expected_length: int | None = None,
    ) -> list[Buffer]:
        """Takes `event_count` events, already serialised into `data`; `event_number` is the number of the last.

        `request_id` selects the flow whose sizing applies; frames carry the request id of the writer's SetupAppend.
        Raises `OutOfOrder` without a set-up or if the number does not increase, `BadField` for a count or number out of
        range or any `expected_length`, `FrameTooLarge` for data that no frame can hold. An error changes nothing.
        """
        self.flush_required = False
        session = self._sessions.get((writer_id.int, segment))
        if type(data) is memoryview and data.nbytes != len(data):
            data = data.cast("B")
        size = len(data)
        if expected_length is not None:
            raise BadField(
                f"an append of {writer_id} to {segment!r} cannot have an expected length: send a ConditionalAppend",
                field="expected_length",
                actual=expected_length,
            )
        session = self._check(session, segment, writer_id, event_number, event_count, size)
        sizing = self._sizing(request_id >> 32) if self._sizing is not None else None
        if sizing is not None:
            sizing.record_append(event_number, size, now_ms)
        out: list[Buffer] = []
        if session.event_count and not self._fits(session, event_count, size):
            self._break(out)
            self._flush(session, out)
        owner = self._owner
        session.last_event_number = event_number
        session.event_count += event_count
        if owner is session:
            self._continue(session, data, size, out)
        elif owner is None and session.event_count == event_count:
            self._begin(session, data, size, sizing, now_ms, out)
        else:
            self._pending[session] = None
            if len(self._pending) * 4 > self._buckets * 3:
                self._buckets *= 2
            if size:
                session.pending.append(data)
                session.pending_bytes += size
            if owner is None:
                self._flush(session, out)
            elif session.pending_bytes > MAX_PENDING_BYTES or session.event_count > MAX_PENDING_EVENTS:
                self._break(out)
                self._flush(session, out)
        if self._pending and self._owner is None and self._leftover_ms is not None and self._leftover_deadline is None:
            self._leftover_deadline = now_ms + self._leftover_ms
        return out

    def tick(self, now_ms: float) -> list[Buffer]:
        """Closes the block and flushes pending appends if a timer has expired by `now_ms`, else returns []."""
        self.flush_required = False
        deadline = self.deadline()
        return self.flush() if deadline is not None and now_ms >= deadline else []

    def flush(self) -> list[Buffer]:
        """Pads and closes the open block, if any, and flushes all pending appends."""
        out: list[Buffer] = []
        self._break(out)
        self._flush_all(out)
        self.flush_required = True
        return out

    def remove(self, segment: str, writer_id: UUID) -> list[Buffer]:
        """Removes a writer, after flushing if it has unsent appends. An unknown writer is a no-op."""
        self.flush_required = False
        session = self._sessions.pop((writer_id.int, segment), None)
        return self.flush() if session is not None and session.event_count else []

    def _check(
        self, session: _Session | None, segment: str, writer_id: UUID, event_number: int, event_count: int, size: int
    ) -> _Session:
        if not 1 <= event_count <= MAX_INT32:
            raise BadField(
                f"an append of writer {writer_id} holds 1 to {MAX_INT32} events, not {event_count}",
                field="event_count",
                limit=MAX_INT32,
                actual=event_count,
            )
        if session is None:
            raise AppendViolation(AppendRule.WRITER_UNKNOWN, "no SetupAppend was sent", writer_id, segment)
        if event_number <= session.last_event_number:
            raise AppendViolation(
                AppendRule.NUMBER_BACKWARDS,
                f"event number {event_number} does not follow {session.last_event_number}",
                writer_id,
                segment,
                limit=session.last_event_number,
                actual=event_number,
            )
        if event_number > MAX_INT64:
            raise BadField(
                f"event number {event_number} of writer {writer_id} exceeds {MAX_INT64}",
                field="event_number",
                limit=MAX_INT64,
                actual=event_number,
            )
        limit = self._max_frame_bytes - _BLOCK.size
        if size > limit:
            raise FrameTooLarge(
                f"an append of {size} bytes does not fit a frame, which holds {limit}", limit=limit, actual=size
            )
        return session

    def _fits(self, session: _Session, event_count: int, size: int) -> bool:
        """Whether the append can join the writer's open block or pending appends within the wire's limits."""
        if session.event_count + event_count > MAX_INT32:
            return False
        if session is self._owner:
            return _END.size + size - self._left <= self._max_frame_bytes
        return _BLOCK.size + session.pending_bytes + size <= self._max_frame_bytes

    def _begin(
        self,
        session: _Session,
        data: Buffer,
        size: int,
        sizing: BlockSizeTracker | None,
        now_ms: float,
        out: list[Buffer],
    ) -> None:
        wanted = sizing.block_size() if sizing is not None else 0
        wanted = min(wanted, self._max_frame_bytes - _BLOCK.size - _HEADER.size)
        if sizing is None or wanted <= size:
            session.whole([data], out)
            self.flush_required = True
            return
        # The last frame in the block, padding or a partial event, needs room for its header.
        length = _BLOCK_FIELDS + wanted + _HEADER.size
        out += (_BLOCK.pack(AppendBlock.code, length, session.writer_bytes), data)
        self._owner = session
        self._block_bytes = wanted
        self._left = wanted - size
        self._block_deadline = now_ms + sizing.timeout_ms

    def _continue(self, session: _Session, data: Buffer, size: int, out: list[Buffer]) -> None:
        left = self._left
        if left > size:
            self._left = left - size
            out.append(data)
            return
        view = memoryview(data)
        whole = self._block_bytes - left
        out += (_HEADER.pack(PartialEvent.code, left), view[:left])
        session.end(whole, view[left:], out)
        self._close_block()
        self._flush_all(out)
        self.flush_required = True

    def _break(self, out: list[Buffer]) -> None:
        session = self._owner
        if session is None:
            return
        out += (_HEADER.pack(Padding.code, self._left), bytes(self._left))
        session.end(self._block_bytes - self._left, b"", out)
        self._close_block()

    def _close_block(self) -> None:
        self._owner = None
        self._block_bytes = self._left = 0
        self._block_deadline = None

    def _flush(self, session: _Session, out: list[Buffer]) -> None:
        if not session.event_count:
            return
        self._pending.pop(session, None)
        if not self._pending:
            self._leftover_deadline = None
        session.whole(session.pending, out)
        session.pending = []
        session.pending_bytes = 0

    def _flush_all(self, out: list[Buffer]) -> None:
        if not self._pending:
            return
        # The iteration order of the reference's HashMap of writers.
        for session in sorted(self._pending, key=lambda each: _bucket(each.writer, self._buckets)):
            self._flush(session, out)
