"""The append decoder: reassembles appends from frames; and the acknowledgements of the runs that come from it.
`segstore.wire.blocks` states its invariants and refusals.

Follows `AppendDecoder`, `CommandDecoder.parseCommand` and `AppendProcessor.storeAppend` (Pravega). Deliberate
difference: the state of a connection's writers takes bounded memory.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from struct import Struct as Layout
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from segstore.wire.blocks.rules import AppendRule, AppendViolation
from segstore.wire.codec import ACCELERATOR, WIRE_VERSION, Acknowledged, Joined, encoder
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    Event,
    Padding,
    PartialEvent,
    SetupAppend,
)
from segstore.wire.errors import WireError
from segstore.wire.schema import Buffer, Command

_HEADER: Final = Layout(">ii")


class Append(msgspec.Struct, frozen=True, gc=False):
    """An append of a writer: `event_count` events, serialised in `data`, of which `event_number` is the last.

    `expected_offset` is None for an unconditional append. `segstore.wire.blocks` documents how long `data` is valid.
    """

    segment: str
    writer_id: UUID
    event_number: int
    event_count: int
    data: Buffer
    expected_offset: int | None
    request_id: int


class BlockWriter:
    """A writer as the decoder needs it: its segment and its last event number, which starts at 0."""

    __slots__ = ("last_event_number", "segment", "writer_id")

    def __init__(self, segment: str, writer_id: UUID) -> None:
        self.segment = segment
        self.writer_id = writer_id
        self.last_event_number = 0

    def cost(self) -> int:
        """Upper estimate of its memory: objects, dictionary entry, a string of wide characters."""
        return 320 + 4 * len(self.segment)


Row = tuple[int, int, Buffer, int]
"""An append of a run: its event number, its count of events, its data, its request id."""
Run = tuple[BlockWriter, list[Row]]
"""Consecutive unconditional appends of one writer that break no rule; its record has their last number."""


_APPENDING: Final[frozenset[type[Command]]] = frozenset(
    (Padding, SetupAppend, AppendBlock, ConditionalAppend, ConditionalBlockEnd)
)

WHOLE_APPENDS: Final = Joined(
    AppendBlock,
    AppendBlockEnd,
    BlockWriter,
    key="writer_id",
    sized="size_of_whole_events",
    number="last_event_number",
    events="num_events",
    row=("last_event_number", "num_events", "data", "request_id"),
    changes=(*_APPENDING, AppendBlockEnd),
)
"""An append of two frames whose block has only whole events, as nearly all appends travel: for a `FrameDecoder` that
may return the appends of `AppendBlockDecoder.writers` as runs."""


def one_by_one(items: Iterable[Command | Append | list[Run]]) -> list[Command | Append]:
    """Returns the items, with runs split into their appends."""
    out: list[Command | Append] = []
    for item in items:
        if isinstance(item, list):
            for writer, rows in item:
                segment, writer_id = writer.segment, writer.writer_id
                out += [Append(segment, writer_id, n, count, data, None, id_) for n, count, data, id_ in rows]
        else:
            out.append(item)
    return out


R = TypeVar("R", bound=list[Run])


class AppendBlockDecoder:
    """Turns the commands of one connection into appends and all other commands.

    State is kept by writer id alone: setting a writer up again, also on another segment, resets it. Commands unrelated
    to appends may come between a block and its end. A violation drops the open block; the writers stay.

    Names and numbers of writers take at most `max_state_bytes`, the open block at most one frame.

    Attributes:
        writers: the writers that are set up, by the bytes of their ids; read-only.
        block_open: whether a block waits for its end.
        new_writer: makes the record of a writer that is set up. A caller that keeps more about writers sets it to its
            own class, and gets its records back in runs.
    """

    def __init__(self, *, max_state_bytes: int = 8 * 1024 * 1024) -> None:
        self.writers: dict[bytes, BlockWriter] = {}
        self.new_writer: Callable[[str, UUID], BlockWriter] = BlockWriter
        self._state_bytes = 0
        self._max_state_bytes = max_state_bytes
        self.block_open = False
        self._block_writer: UUID | None = None
        self._block_data: Buffer = b""

    @property
    def block_bytes(self) -> int:
        """Bytes held by the open block."""
        return len(self._block_data)

    def feed(self, command: Command) -> Command | Append | None:
        """Takes one command. Returns the append that it completes, None for a part of an append, else the command.

        The data of an open block is copied. Raises `AppendViolation`.
        """
        result = self._step(command)
        if self.block_open:
            self._own_block()
        return result

    def feed_all(self, commands: Iterable[Command | R]) -> list[Command | Append | R]:
        """Takes the commands of one read, in order. A block whose end is among them is not copied; runs stay as they
        are.

        Raises `AppendViolation`, whose `decoded` holds the results before the command that broke the rule.
        """
        out: list[Command | Append | R] = []
        step = self._step
        try:
            for command in commands:
                result = command if type(command) is list else step(command)  # type: ignore[arg-type]
                if result is not None:
                    out.append(result)
        except WireError as error:
            error.decoded = out
            raise
        if self.block_open:
            self._own_block()
        return out

    def retain(self, known: Container[tuple[str, bytes]]) -> None:
        """Drops writers whose segment and id (as bytes) are not in `known`.

        Their next append is a violation unless they are set up again. Call it when everything received is applied.
        """
        for key, writer in list(self.writers.items()):
            if (writer.segment, key) not in known:
                del self.writers[key]
                self._state_bytes -= writer.cost()

    def _own_block(self) -> None:
        if type(self._block_data) is not bytes:
            self._block_data = bytes(self._block_data)

    def _step(self, command: Command) -> Command | Append | None:
        if isinstance(command, AppendBlockEnd):
            # Nearly every append takes this path: few operations, and a check that fails goes to the slow path.
            writer_id, number, count = command.writer_id, command.last_event_number, command.num_events
            writer = self.writers.get(writer_id.bytes)
            if writer is None or number < writer.last_event_number or count <= 0:
                raise self._bad_end(command)
            data = command.data if not self.block_open else self._reassemble(command)
            writer.last_event_number = number
            return Append(writer.segment, writer_id, number, count, data, None, command.request_id)
        if type(command) not in _APPENDING:
            return command
        if self.block_open:
            opened = self._block_writer
            self.drop_block()
            detail = f"{command.type_name} came before the end"
            raise AppendViolation(AppendRule.BLOCK_OPEN, detail, opened, command=command)
        if isinstance(command, AppendBlock):
            self._writer(command)
            self.block_open, self._block_writer, self._block_data = True, command.writer_id, command.data
            return None
        if isinstance(command, SetupAppend):
            self._set_up(command)
            return command
        if isinstance(command, ConditionalBlockEnd):
            return self._conditional(command, command.data)
        if isinstance(command, ConditionalAppend):
            data = command.event.data
            # The event is stored as it travels, with its header.
            return self._conditional(command, b"".join((_HEADER.pack(Event.code, len(data)), data)))
        return None  # padding between frames fills nothing and means nothing

    def _set_up(self, command: SetupAppend) -> None:
        key = command.writer_id.bytes
        known = self.writers.get(key)
        writer = self.new_writer(command.segment, command.writer_id)
        state_bytes = self._state_bytes + writer.cost() - (0 if known is None else known.cost())
        if state_bytes > self._max_state_bytes:
            raise AppendViolation(
                AppendRule.TOO_MANY_WRITERS,
                f"one more would take {state_bytes} of {self._max_state_bytes} bytes",
                command=command,
                field="segment",
                limit=self._max_state_bytes,
                actual=state_bytes,
            )
        self._state_bytes = state_bytes
        self.writers[key] = writer

    def _bad_end(self, command: AppendBlockEnd) -> AppendViolation:
        self.drop_block()
        writer = self._writer(command)
        if command.num_events <= 0:
            return AppendViolation(
                AppendRule.NO_EVENTS,
                f"{command.num_events} events",
                segment=writer.segment,
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
        self.drop_block()
        if opened != end.writer_id:
            raise AppendViolation(
                AppendRule.WRITER_MISMATCH, f"the block is of writer {opened}", command=end, field="writer_id"
            )
        whole, size = end.size_of_whole_events, len(block)
        if not 0 <= whole <= size:
            raise AppendViolation(
                AppendRule.WHOLE_SIZE,
                f"{whole} bytes in a block of {size}",
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
        if kind == Padding.code:
            if len(end.data):
                raise AppendViolation(
                    AppendRule.PADDED_DATA,
                    f"{len(end.data)} bytes",
                    command=end,
                    field="data",
                    limit=0,
                    actual=len(end.data),
                )
            return view[:whole]
        return b"".join((view[:whole], last, end.data))

    def _block_tail(self, end: AppendBlockEnd, block: memoryview, whole: int) -> tuple[int, memoryview]:
        """Returns type and body of the frame behind the whole events. Bytes behind it are ignored."""
        left = len(block) - whole
        start = whole + _HEADER.size
        if left < _HEADER.size:
            detail = f"{left} bytes are left behind the whole events, a header takes {_HEADER.size}"
        else:
            kind, length = _HEADER.unpack_from(block, whole)
            if kind != Padding.code and kind != PartialEvent.code:
                detail = f"type {kind} is neither"
            elif not 0 <= length <= left - _HEADER.size:
                detail = f"its frame claims {length} bytes of {left - _HEADER.size}"
            else:
                return kind, block[start : start + length]
        raise AppendViolation(AppendRule.BLOCK_TAIL, detail, command=end, limit=len(block), actual=whole)

    def _writer(self, command: AppendBlock | AppendBlockEnd | ConditionalAppend | ConditionalBlockEnd) -> BlockWriter:
        writer = self.writers.get(command.writer_id.bytes)
        if writer is None:
            raise AppendViolation(
                AppendRule.WRITER_UNKNOWN,
                f"{command.type_name} came before SETUP_APPEND",
                command=command,
                field="writer_id",
            )
        return writer

    def _backwards(
        self,
        command: AppendBlockEnd | ConditionalAppend | ConditionalBlockEnd,
        writer: BlockWriter,
        field: str,
        number: int,
    ) -> AppendViolation:
        return AppendViolation(
            AppendRule.NUMBER_BACKWARDS,
            f"{number} after {writer.last_event_number}",
            segment=writer.segment,
            command=command,
            field=field,
            limit=writer.last_event_number,
            actual=number,
        )

    def drop_block(self) -> None:
        """Drops any open block."""
        self.block_open, self._block_writer, self._block_data = False, None, b""


# --- acknowledgements -------------------------------------------------------------------------------------------------

Acknowledge = Callable[[Sequence[Row], bytes, int, int, bytearray], int]


def acknowledger(version: int) -> Acknowledge:
    """Returns `acknowledge(rows, writer, previous, offset, out)`, which adds a DataAppended of a wire version to `out`
    for each row whose number rises, and returns the last of these numbers.

    writer: the 16 bytes of its id. previous: the number acknowledged last. offset: where the first append was stored;
    as appends are answered at once, the offset of an acknowledgement is the end of its append.
    """
    if version == WIRE_VERSION and ACCELERATOR is not None:
        return ACCELERATOR.acknowledger(_DATA_APPENDED)
    encode = encoder(version)

    def acknowledge(rows: Sequence[Row], writer: bytes, previous: int, offset: int, out: bytearray) -> int:
        writer_id, frames = UUID(bytes=writer), []
        for number, _, data, request_id in rows:
            offset += len(data)
            if previous < number:
                frames.append(encode(DataAppended(request_id, writer_id, number, previous, offset)))
                previous = number
        out += b"".join(frames)
        return previous

    return acknowledge


_DATA_APPENDED = Acknowledged(
    DataAppended,
    key="writer_id",
    number="event_number",
    before="previous_event_number",
    total="current_segment_write_offset",
    row=("event_number", "count", "data", "request_id"),
)
