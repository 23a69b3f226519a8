"""Append blocks: how a writer's appends become frames, and how the frames become appends again.

An append block is a frame whose body is many appends, followed by an end that tells how many of its bytes are whole
events, how many events there are and the number of the last. A writer can so send appends before it knows how many
there will be. An append that crosses the end of the block is cut: its first bytes travel as a PartialEvent inside the
block, the others in the end.

`AppendBlockEncoder` is a client's side of a connection, `AppendBlockDecoder` a server's. Both are pure state: bytes and
time come in as arguments, bytes and appends go out. Invariant: what the decoder gives back is every append that the
encoder took, each writer's in order; several appends of a writer may come back as one with their bytes joined, their
counts added and the last number.

Buffers. The encoder keeps and returns the caller's payloads without copying them: they must not change until the
returned list that holds them has been written. The decoder's `Append.data` is a view into the frame wherever the append
lies there in one piece, and then lives as long as that frame: with a `FrameDecoder`, until its next `feed`. What has to
outlive a call is copied here.

Refused: the encoder refuses what no decoder would accept (appends without a set-up, numbers that do not rise, counts
below 1, frames beyond the limit) and leaves its state as it was. The decoder raises `AppendViolation` and drops the
open block; a server closes the connection then.

Follows `CommandEncoder`, `AppendDecoder` and `CommandDecoder.parseCommand`. Deliberate differences: two writers with
one id on different segments both keep their pending appends; an append that would make the reference write a frame
beyond the limit is sent in a block of its own; a writer's state takes bounded memory in the decoder.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from struct import Struct as Layout
from typing import Any, Final
from uuid import UUID

import msgspec

from segstore.wire.block_size import BlockSizing
from segstore.wire.codec import MAX_FRAME_BYTES, encode_parts
from segstore.wire.commands.append import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    Padding,
    SetupAppend,
)
from segstore.wire.commands.session import Hello
from segstore.wire.errors import BadField, FrameTooLarge, OutOfOrder, WireError
from segstore.wire.schema import Buffer, Command

__all__ = [
    "MAX_PENDING_BYTES",
    "MAX_PENDING_EVENTS",
    "Append",
    "AppendBlockDecoder",
    "AppendBlockEncoder",
    "AppendRule",
    "AppendViolation",
]

MAX_PENDING_BYTES: Final = 1024 * 1024
MAX_PENDING_EVENTS: Final = 500

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1

_PADDING: Final = -1
_PARTIAL_EVENT: Final = -2
_EVENT: Final = 0
_APPEND_BLOCK: Final = 3
_APPEND_BLOCK_END: Final = 4

_HEADER: Final = Layout(">ii")
_BLOCK: Final = Layout(">ii16s")
_END: Final = Layout(">ii16siiiqq")  # an end without data
_END_HEAD: Final = Layout(">ii16sii")
_END_TAIL: Final = Layout(">iqq")
_BLOCK_FIELDS: Final = 16
_END_FIELDS: Final = 44


# Client's side -----------------------------------------------------------------------------------------------------


class _Session:
    """One writer of one segment: what it sent last, and what waits while another writer's block is open."""

    __slots__ = ("event_count", "last_event_number", "pending", "pending_bytes", "request_id", "writer", "writer_bytes")

    def __init__(self, writer_id: UUID, request_id: int) -> None:
        self.writer = writer_id
        self.writer_bytes = writer_id.bytes
        self.request_id = request_id
        self.last_event_number = -1
        self.event_count = 0
        """Events in the open block or pending; a writer never has both."""
        self.pending: list[Buffer] = []
        self.pending_bytes = 0

    def end(self, size_of_whole_events: int, rest: Buffer, out: list[Buffer]) -> None:
        size = len(rest)
        count, self.event_count = self.event_count, 0
        head = (_APPEND_BLOCK_END, _END_FIELDS + size, self.writer_bytes, size_of_whole_events, size)
        tail = (count, self.last_event_number, self.request_id)
        if size:
            out += (_END_HEAD.pack(*head), rest, _END_TAIL.pack(*tail))
        else:
            out.append(_END.pack(*head, *tail))


class AppendBlockEncoder:
    """Commands and appends of one connection in, buffers to write in this order out.

    `sizing` gives for a flow (`request_id >> 32` of the append) what decides its block sizes, or None; without it every
    append is a block of its own. `leftover_ms` bounds the wait of appends that stay behind when another writer's flush
    closes the open block and its timer: None leaves them until the next command or append of theirs, as the reference
    does; a client that wants progress sets it. `max_frame_bytes` is what a peer accepts, headers included.

    The caller writes what `append`, `command`, `tick`, `flush` and `remove` return, calls `tick` when `deadline()` is
    reached, and may look at `flush_required` to see whether the last call's bytes ask to be written at once.
    """

    def __init__(
        self,
        sizing: Callable[[int], BlockSizing | None] | None = None,
        *,
        leftover_ms: float | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._sizing = sizing
        self._leftover_ms = leftover_ms
        self._max_frame_bytes = max_frame_bytes
        self._sessions: dict[tuple[int, str], _Session] = {}
        self._pending: dict[_Session, None] = {}
        self._owner: _Session | None = None
        self._block_bytes = 0
        self._left = 0
        self._block_deadline: float | None = None
        self._leftover_deadline: float | None = None
        self._flush_required = False

    @property
    def flush_required(self) -> bool:
        """Whether what the last call returned should be written now rather than with what follows."""
        return self._flush_required

    @property
    def block_open(self) -> bool:
        """Whether a block has been begun whose end is not written yet."""
        return self._owner is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of appends that were taken and not returned yet."""
        return sum(session.pending_bytes for session in self._pending)

    @property
    def pending_writers(self) -> int:
        """Writers with appends that were taken and not returned yet."""
        return len(self._pending)

    def deadline(self) -> float | None:
        """When `tick` has something to do, in the milliseconds that were passed in; None if no timer runs."""
        if self._block_deadline is None or self._leftover_deadline is None:
            return self._leftover_deadline if self._block_deadline is None else self._block_deadline
        return min(self._block_deadline, self._leftover_deadline)

    def command(self, command: Command) -> list[Buffer]:
        """Any command but an append. Closes the open block and sends what is pending before it.

        A SetupAppend registers its writer, or starts it anew. Raises `OutOfOrder` for a Hello while a block is open or
        appends are pending, and what encoding raises; nothing has changed then.
        """
        self._flush_required = False
        if isinstance(command, Hello) and (self._owner is not None or self._pending):
            raise OutOfOrder(
                f"a Hello cannot follow appends that are not finished: block open {self.block_open}, "
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
    ) -> list[Buffer]:
        """Takes `event_count` events, already serialised into `data`, of which `event_number` is the last.

        `request_id` names the flow whose sizing decides; the frames carry the request id of the writer's SetupAppend.
        Raises `OutOfOrder` without a set-up or when the number does not rise, `BadField` for a count or number out of
        range, `FrameTooLarge` for data that no frame can hold; nothing has changed then.
        """
        self._flush_required = False
        session = self._sessions.get((writer_id.int, segment))
        if type(data) is memoryview and data.nbytes != len(data):
            data = data.cast("B")
        size = len(data)
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
        """Closes the block and sends what is pending if a timer has run out by `now_ms`, else returns nothing."""
        self._flush_required = False
        deadline = self.deadline()
        return self.flush() if deadline is not None and now_ms >= deadline else []

    def flush(self) -> list[Buffer]:
        """Pads and closes the open block, if there is one, and sends all that is pending."""
        out: list[Buffer] = []
        self._break(out)
        self._flush_all(out)
        self._flush_required = True
        return out

    def remove(self, segment: str, writer_id: UUID) -> list[Buffer]:
        """Forgets a writer; flushes first if anything of it was not sent yet. An unknown writer is no error."""
        self._flush_required = False
        session = self._sessions.pop((writer_id.int, segment), None)
        return self.flush() if session is not None and session.event_count else []

    def _check(
        self,
        session: _Session | None,
        segment: str,
        writer_id: UUID,
        event_number: int,
        event_count: int,
        size: int,
    ) -> _Session:
        if not 1 <= event_count <= _MAX_INT32:
            raise BadField(
                f"an append of writer {writer_id} holds 1 to {_MAX_INT32} events, not {event_count}",
                field="event_count",
                limit=_MAX_INT32,
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
        if event_number > _MAX_INT64:
            raise BadField(
                f"event number {event_number} of writer {writer_id} exceeds {_MAX_INT64}",
                field="event_number",
                limit=_MAX_INT64,
                actual=event_number,
            )
        limit = self._max_frame_bytes - _BLOCK.size
        if size > limit:
            raise FrameTooLarge(
                f"an append of {size} bytes does not fit a frame, which holds {limit}", limit=limit, actual=size
            )
        return session

    def _fits(self, session: _Session, event_count: int, size: int) -> bool:
        """Whether one more append can join what the writer has open or pending, within the limits of the wire."""
        if session.event_count + event_count > _MAX_INT32:
            return False
        if session is self._owner:
            return _END.size + size - self._left <= self._max_frame_bytes
        return _BLOCK.size + session.pending_bytes + size <= self._max_frame_bytes

    def _begin(
        self,
        session: _Session,
        data: Buffer,
        size: int,
        sizing: BlockSizing | None,
        now_ms: float,
        out: list[Buffer],
    ) -> None:
        wanted = sizing.block_size() if sizing is not None else 0
        wanted = min(wanted, self._max_frame_bytes - _BLOCK.size - _HEADER.size)
        if sizing is None or wanted <= size:
            out += (_BLOCK.pack(_APPEND_BLOCK, _BLOCK_FIELDS + size, session.writer_bytes), data)
            session.end(size, b"", out)
            self._flush_required = True
            return
        # The last frame inside the block, padding or a partial event, needs room for its header.
        length = _BLOCK_FIELDS + wanted + _HEADER.size
        out += (_BLOCK.pack(_APPEND_BLOCK, length, session.writer_bytes), data)
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
        out += (_HEADER.pack(_PARTIAL_EVENT, left), view[:left])
        session.end(whole, view[left:], out)
        self._close_block()
        self._flush_all(out)
        self._flush_required = True

    def _break(self, out: list[Buffer]) -> None:
        session = self._owner
        if session is None:
            return
        out += (_HEADER.pack(_PADDING, self._left), bytes(self._left))
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
        size = session.pending_bytes
        out.append(_BLOCK.pack(_APPEND_BLOCK, _BLOCK_FIELDS + size, session.writer_bytes))
        out += session.pending
        session.pending = []
        session.pending_bytes = 0
        session.end(size, b"", out)

    def _flush_all(self, out: list[Buffer]) -> None:
        for session in list(self._pending):
            self._flush(session, out)


# Server's side -----------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, gc=False):
    """What a writer appends: `event_count` events, serialised in `data`, of which `event_number` is the last.

    `expected_offset` is None for an unconditional append. See the module on how long `data` lives.
    """

    segment: str
    writer_id: UUID
    event_number: int
    event_count: int
    data: Buffer
    expected_offset: int | None
    request_id: int


class AppendRule(StrEnum):
    """What a sequence of append commands must keep to."""

    WRITER_UNKNOWN = "a writer is set up before it appends"
    BLOCK_OPEN = "an append block is followed by its end before any other append command"
    WRITER_MISMATCH = "the end of a block names the block's writer"
    WHOLE_SIZE = "the whole events lie within the block"
    NO_EVENTS = "an append holds at least one event"
    NUMBER_BACKWARDS = "a writer's event numbers do not go backwards"
    BLOCK_TAIL = "a block ends with padding or a partial event"
    PADDED_DATA = "the end of a padded block has no data"
    TOO_MANY_WRITERS = "the writers of a connection fit into its memory"


class AppendViolation(OutOfOrder):
    """A sequence of appends breaks `rule`; `writer_id` and `segment` say whose, where that is known."""

    def __init__(
        self,
        rule: AppendRule,
        detail: str,
        writer_id: UUID | None = None,
        segment: str | None = None,
        *,
        command: Command | None = None,
        field: str | None = None,
        limit: int | None = None,
        actual: Any = None,
    ) -> None:
        whose = "" if writer_id is None else f", writer {writer_id}"
        where = "" if segment is None else f" of {segment!r}"
        super().__init__(
            f"{rule}: {detail}{whose}{where}",
            code=None if command is None else command.code,
            type_name=None if command is None else command.type_name,
            field=field,
            limit=limit,
            actual=actual,
        )
        self.rule = rule
        self.writer_id = writer_id
        self.segment = segment

    def facts(self) -> dict[str, Any]:
        known = {"rule": self.rule.name, "writer_id": self.writer_id, "segment": self.segment}
        return super().facts() | {name: value for name, value in known.items() if value is not None}


class _Writer:
    """The segment of a writer and its last event number, which starts at 0."""

    __slots__ = ("last_event_number", "segment")

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self.last_event_number = 0

    def cost(self) -> int:
        """Memory that it takes, roughly and not less: objects, dictionary entry, a string of wide characters."""
        return 320 + 4 * len(self.segment)


class AppendBlockDecoder:
    """Commands of one connection in, appends and all other commands out.

    State is kept by writer id alone: setting a writer up again, also on another segment, starts it anew. Between a
    block and its end any command may pass that has nothing to do with appends. After a violation the block is gone, the
    writers stay.

    At most `max_state_bytes` are taken by the names and numbers of writers, and one frame by the open block.
    """

    def __init__(self, *, max_state_bytes: int = 8 * 1024 * 1024) -> None:
        self._writers: dict[int, _Writer] = {}
        self._state_bytes = 0
        self._max_state_bytes = max_state_bytes
        self._block_writer: UUID | None = None
        self._block_data: Buffer = b""

    @property
    def block_open(self) -> bool:
        """Whether a block waits for its end."""
        return self._block_writer is not None

    @property
    def block_bytes(self) -> int:
        """Bytes held by the open block."""
        return len(self._block_data)

    def feed(self, command: Command) -> Command | Append | None:
        """One command: the append that it completes, None if it was only a part of one, else the command itself.

        The data of an open block is copied. Raises `AppendViolation`.
        """
        result = self._step(command)
        if self._block_writer is not None:
            self._own_block()
        return result

    def feed_all(self, commands: Iterable[Command]) -> list[Command | Append]:
        """The commands of one read, in order. A block whose end is among them is not copied.

        Raises `AppendViolation`, whose `decoded` holds what came before the command that broke the rule.
        """
        out: list[Command | Append] = []
        step = self._step
        try:
            for command in commands:
                result = step(command)
                if result is not None:
                    out.append(result)
        except WireError as error:
            error.decoded = out
            raise
        if self._block_writer is not None:
            self._own_block()
        return out

    def forget(self, writer_id: UUID) -> None:
        """Drops a writer: its next append is a violation unless it is set up again."""
        writer = self._writers.pop(writer_id.int, None)
        if writer is not None:
            self._state_bytes -= writer.cost()

    def _own_block(self) -> None:
        if type(self._block_data) is not bytes:
            self._block_data = bytes(self._block_data)

    def _step(self, command: Command) -> Command | Append | None:
        if isinstance(command, AppendBlockEnd):
            # The way of nearly every append: few operations, and a check that fails leaves for the slow ones.
            writer_id, number, count = command.writer_id, command.last_event_number, command.num_events
            writer = self._writers.get(writer_id.int)
            if writer is None or number < writer.last_event_number or count <= 0:
                raise self._bad_end(command)
            data = command.data if self._block_writer is None else self._reassemble(command)
            writer.last_event_number = number
            return Append(writer.segment, writer_id, number, count, data, None, command.request_id)
        if type(command) not in _APPENDING:
            return command
        if self._block_writer is not None:
            writer_id = self._block_writer
            self._drop_block()
            raise AppendViolation(
                AppendRule.BLOCK_OPEN, f"{command.type_name} came before the end", writer_id, command=command
            )
        if isinstance(command, AppendBlock):
            self._writer(command)
            self._block_writer = command.writer_id
            self._block_data = command.data
            return None
        if isinstance(command, SetupAppend):
            self._set_up(command)
            return command
        if isinstance(command, ConditionalBlockEnd):
            return self._conditional(command, command.data)
        if isinstance(command, ConditionalAppend):
            data = command.event.data
            # The event is stored as it travels, with its header.
            return self._conditional(command, b"".join((_HEADER.pack(_EVENT, len(data)), data)))
        return None  # padding between frames fills nothing and means nothing

    def _set_up(self, command: SetupAppend) -> None:
        key = command.writer_id.int
        known = self._writers.get(key)
        writer = _Writer(command.segment)
        state_bytes = self._state_bytes + writer.cost() - (0 if known is None else known.cost())
        if state_bytes > self._max_state_bytes:
            raise AppendViolation(
                AppendRule.TOO_MANY_WRITERS,
                f"one more would take {state_bytes} of {self._max_state_bytes} bytes",
                command.writer_id,
                command=command,
                field="segment",
                limit=self._max_state_bytes,
                actual=state_bytes,
            )
        self._state_bytes = state_bytes
        self._writers[key] = writer

    def _bad_end(self, command: AppendBlockEnd) -> AppendViolation:
        self._drop_block()
        writer = self._writer(command)
        if command.num_events <= 0:
            return AppendViolation(
                AppendRule.NO_EVENTS,
                f"{command.num_events} events",
                command.writer_id,
                writer.segment,
                command=command,
                field="num_events",
                limit=1,
                actual=command.num_events,
            )
        return self._backwards(command, writer, "last_event_number", command.last_event_number)

    def _conditional(self, command: ConditionalAppend | ConditionalBlockEnd, data: Buffer) -> Append:
        writer = self._writer(command)
        number = command.event_number
        if number < writer.last_event_number:
            raise self._backwards(command, writer, "event_number", number)
        writer.last_event_number = number
        return Append(writer.segment, command.writer_id, number, 1, data, command.expected_offset, command.request_id)

    def _reassemble(self, end: AppendBlockEnd) -> Buffer:
        """The whole events of the open block, and the event that continues in its end."""
        opened, block = self._block_writer, self._block_data
        self._drop_block()
        if opened != end.writer_id:
            raise AppendViolation(
                AppendRule.WRITER_MISMATCH,
                f"the block is of writer {opened}",
                end.writer_id,
                command=end,
                field="writer_id",
            )
        whole, size = end.size_of_whole_events, len(block)
        if not 0 <= whole <= size:
            raise AppendViolation(
                AppendRule.WHOLE_SIZE,
                f"{whole} bytes in a block of {size}",
                end.writer_id,
                command=end,
                field="size_of_whole_events",
                limit=size,
                actual=whole,
            )
        if whole == size:
            # Nothing is left for a tail; the reference does not look at the end's data then.
            return block
        view = memoryview(block)
        kind, last = self._block_tail(end, view, whole)
        if kind == _PADDING:
            if len(end.data):
                raise AppendViolation(
                    AppendRule.PADDED_DATA,
                    f"{len(end.data)} bytes",
                    end.writer_id,
                    command=end,
                    field="data",
                    limit=0,
                    actual=len(end.data),
                )
            return view[:whole]
        return b"".join((view[:whole], last, end.data))

    def _block_tail(self, end: AppendBlockEnd, block: memoryview, whole: int) -> tuple[int, memoryview]:
        """The frame behind the whole events: its type and its body. What follows it is ignored."""
        left = len(block) - whole
        start = whole + _HEADER.size
        if left < _HEADER.size:
            detail = f"{left} bytes are left behind the whole events, a header takes {_HEADER.size}"
        else:
            kind, length = _HEADER.unpack_from(block, whole)
            if kind != _PADDING and kind != _PARTIAL_EVENT:
                detail = f"type {kind} is neither"
            elif not 0 <= length <= left - _HEADER.size:
                detail = f"its frame claims {length} bytes of {left - _HEADER.size}"
            else:
                return kind, block[start : start + length]
        raise AppendViolation(AppendRule.BLOCK_TAIL, detail, end.writer_id, command=end, limit=len(block), actual=whole)

    def _writer(self, command: AppendBlock | AppendBlockEnd | ConditionalAppend | ConditionalBlockEnd) -> _Writer:
        writer = self._writers.get(command.writer_id.int)
        if writer is None:
            raise AppendViolation(
                AppendRule.WRITER_UNKNOWN,
                f"{command.type_name} came before SETUP_APPEND",
                command.writer_id,
                command=command,
                field="writer_id",
            )
        return writer

    def _backwards(
        self,
        command: AppendBlockEnd | ConditionalAppend | ConditionalBlockEnd,
        writer: _Writer,
        field: str,
        number: int,
    ) -> AppendViolation:
        return AppendViolation(
            AppendRule.NUMBER_BACKWARDS,
            f"{number} after {writer.last_event_number}",
            command.writer_id,
            writer.segment,
            command=command,
            field=field,
            limit=writer.last_event_number,
            actual=number,
        )

    def _drop_block(self) -> None:
        self._block_writer = None
        self._block_data = b""


_APPENDING: Final = frozenset((Padding, SetupAppend, AppendBlock, ConditionalAppend, ConditionalBlockEnd))
