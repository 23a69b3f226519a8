"""The newest traffic of a server, kept in memory: a trace whose oldest blocks are discarded.

`Traffic` is a recorder. Recording costs what `segstore.wire.trace.writer` costs; nothing is decoded until it is read.
`records` and `trace` read what is kept, at any time.

Invariants: whole records take at most `max_bytes`, and incomplete frames at most as much again; delegation tokens are
not kept. A record's number counts all records since the start, so it stays the same until the record is discarded.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.server.recording import TraceRecorder
from segstore.wire import MAX_FRAME_BYTES, WIRE_VERSION, WireError, decode
from segstore.wire.commands import SetupAppend
from segstore.wire.trace import (
    HEADER_BYTES,
    SECRET_CODES,
    Columns,
    Direction,
    Metadata,
    TraceWriter,
    make_mark,
    read_header,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from segstore.wire import Buffer
    from segstore.wire.trace import Record

KEPT_BYTES: Final = 16 * 1024 * 1024
_BLOCK_BYTES: Final = 1024 * 1024
"""As large as blocks must be for their checksums to cover a sample only."""
_NEVER_NS: Final = 1 << 62
_MOST_WRITERS: Final = 10_000
_MOST_CLOSED: Final = 1_000
_LONGEST_NAME: Final = 1_024
_CODE: Final = SetupAppend.code.to_bytes(4, "big")


class KeptBlock(NamedTuple):
    """Records of a capture. first: the number of the first one. records: how many there are."""

    first: int
    records: int
    data: bytes

    def columns(self) -> Columns:
        header = read_header(self.data, 0)
        return Columns(self.data[HEADER_BYTES : HEADER_BYTES + header.stored], header.records)


_first = attrgetter("first")


class Traffic(TraceRecorder):
    """Keeps the newest traffic.

    Attributes:
        max_bytes: the most that records take.
        started_ns: time of its start, in ns since 1970.
        last: number of the last record that `flush` has made readable; 0 if there is none.
        peers: facts about connections, by number: those that are open, and the last 1,000 that were closed.
        taker: called with each block, once it is readable; None for no such function.
        writers: the segment that each writer was last set up for, by the bytes of its id, for the last 10,000.
    """

    def __init__(
        self,
        max_bytes: int = KEPT_BYTES,
        *,
        recorder: str = "segstore",
        max_frame_bytes: int = MAX_FRAME_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        writer = TraceWriter(
            make_mark(os.urandom(8)),
            Metadata(WIRE_VERSION, recorder),
            redact=self._redacted,
            redact_codes=SECRET_CODES,
            block_bytes=_BLOCK_BYTES,
            flush_after_ns=_NEVER_NS,
            max_frame_bytes=max_frame_bytes,
            most_held_bytes=max_bytes,
        )
        super().__init__(writer, clock)
        self.max_bytes = max_bytes
        self.started_ns = clock()
        self.last = 0
        self.peers: dict[int, Mapping[str, str]] = {}
        self.writers: dict[bytes, str] = {}
        self.taker: Callable[[KeptBlock], None] | None = None
        self._closed: deque[int] = deque()
        self._blocks: deque[KeptBlock] = deque()
        self._bytes = 0

    # --- recording --------------------------------------------------------------------------------------------------

    def opened(self, **facts: str) -> int:
        number = super().opened(**facts)
        self.peers[number] = facts
        return number

    def closed(self, connection: int, by: Direction = Direction.REQUEST, **facts: str) -> None:
        super().closed(connection, by, **facts)
        self._closed.append(connection)
        if len(self._closed) > _MOST_CLOSED:
            self.peers.pop(self._closed.popleft(), None)

    def write(self, parts: list[Buffer]) -> None:
        data = b"".join(parts)
        if not data:
            return
        block = KeptBlock(self.last + 1, read_header(data, 0).records, data)
        self._blocks.append(block)
        self._bytes += len(data)
        self.last += block.records
        if self.taker is not None:
            self.taker(block)
        while self._bytes > self.max_bytes:
            self._bytes -= len(self._blocks.popleft().data)

    def _redacted(self, frame: bytes, whole: bool) -> bytes:
        if whole and frame.startswith(_CODE):
            self._set_up(frame)
        return redact(frame, whole)

    def _set_up(self, frame: bytes) -> None:
        """Remembers a writer's segment, which is needed after the record of its set-up was discarded."""
        try:
            command: Any = decode(frame)
        except WireError:
            return  # the store refuses it too
        if len(command.segment) > _LONGEST_NAME:
            return
        self.writers.pop(command.writer_id.bytes, None)
        self.writers[command.writer_id.bytes] = command.segment
        if len(self.writers) > _MOST_WRITERS:
            del self.writers[next(iter(self.writers))]

    # --- reading ----------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Makes all whole frames readable. Returns the number of the last record."""
        self.write(self._writer.take_parts())
        return self.last

    def clear(self) -> None:
        """Discards all records so far. Later ones continue their numbers."""
        self.flush()
        self._blocks.clear()
        self._bytes = 0

    @property
    def first(self) -> int:
        """Number of the oldest record kept; one more than `last` if none is."""
        return self._blocks[0].first if self._blocks else self.last + 1

    def records(self, first: int = 1, last: int | None = None) -> Iterator[tuple[int, Record]]:
        """Yields the records kept from number `first` to `last`, with their numbers. May continue after others were
        discarded."""
        blocks = tuple(self._blocks)
        last = self.last if last is None else last
        for block in blocks[max(0, bisect_right(blocks, first, key=_first) - 1) :]:
            if block.first > last:
                return
            columns = block.columns()
            for index in range(max(0, first - block.first), min(len(columns), last + 1 - block.first)):
                yield block.first + index, columns[index]

    def trace(self) -> list[bytes]:
        """Returns the pieces of a capture of everything kept."""
        self.flush()
        return [self.start, *(each.data for each in self._blocks)]

    @property
    def start(self) -> bytes:
        """The block with which a capture of this traffic starts."""
        return self._writer.start()

    @property
    def metadata(self) -> Metadata:
        """Of the trace."""
        return self._writer.metadata


def make_traffic(max_bytes: int, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> Traffic | None:
    """Makes what keeps the latest traffic; None for 0 bytes."""
    return Traffic(max_bytes, max_frame_bytes=max_frame_bytes) if max_bytes else None
