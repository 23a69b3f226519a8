"""The newest traffic of a server, kept in memory: a trace whose oldest blocks are discarded.

`Traffic` is a recorder. Long reads stay in the memory in which they were received; other bytes are copied once, into
memory that is reused when its records are discarded. Nothing is decoded, and no block is built, before it is read.
`records` and `trace` read the kept traffic at any time.

Invariants: whole records, with the memory that they are in, take at most `max_bytes`, and incomplete frames at most as
much again; no record has a delegation token. Records are numbered since the start, and so are requests, on arrival and
by themselves: rules, the log of requests and the HTTP API name a request by this number.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from segstore.server.areas import HUGE_BYTES, Areas
from segstore.server.recording import TraceRecorder
from segstore.wire import MAX_FRAME_BYTES, WIRE_VERSION, WireError, decode
from segstore.wire.commands import SetupAppend
from segstore.wire.trace import (
    SECRET_CODES,
    Direction,
    Metadata,
    RecordKind,
    TraceWriter,
    is_request,
    make_mark,
    redact,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from segstore.wire.trace import Columns, Pending, Record

KEPT_BYTES: Final = 16 * 1024 * 1024
_BLOCKS: Final = 16
"""The number of blocks of a history that is smaller than `KEPT_BYTES`."""
_TAKEN_BYTES: Final = 1024 * 1024
"""The size of blocks for a taker, at most."""
_PART_BYTES: Final = 400
"""Size of a block's objects, per run of rows and per piece of data."""
_NEVER_NS: Final = 1 << 62
_MOST_WRITERS: Final = 10_000
_MOST_CLOSED: Final = 1_000
_LONGEST_NAME: Final = 1_024
_CODE: Final = SetupAppend.code.to_bytes(4, "big")


class _Block:
    """Records of a capture.

    Attributes:
        first: the number of the first record.
        first_request: the number of the first request in it, or behind it.
        pending: the records; None once discarded.
        areas: sizes of the memory areas with their data, by identity. own_bytes: their size without these areas.
    """

    __slots__ = ("areas", "first", "first_request", "own_bytes", "pending")

    def __init__(self, first: int, first_request: int, pending: Pending) -> None:
        self.first = first
        self.first_request = first_request
        self.pending: Pending | None = pending
        self.areas: dict[int, int] = {}
        self.own_bytes = _PART_BYTES * (len(pending.rows) + len(pending.data)) + sum(row.size for row in pending.rows)
        for data in pending.data:
            if isinstance(data, memoryview):
                self.areas[id(data.obj)] = len(data.obj)  # type: ignore[arg-type]  # bytes, whatever their kind
            else:
                self.own_bytes += len(data)


_REQUEST, _FRAME, _CALL = int(Direction.REQUEST), int(RecordKind.FRAME), int(RecordKind.CALL)
"""Plain numbers, because comparing members of an enum takes most of the time of a search through a block."""

_first = attrgetter("first")
_first_request = attrgetter("first_request")


def _is_request(columns: Columns, index: int) -> bool:
    """Whether a record has the next number of a request."""
    if columns.direction[index] != _REQUEST:
        return False
    kind = columns.kind[index]
    if kind == _FRAME:
        return is_request(columns.data[(columns.end[index - 1] if index else 0) + 3])
    return kind == _CALL


class Traffic(TraceRecorder):
    """Keeps the newest traffic.

    Attributes:
        start, mark, metadata: the first block of a capture of this traffic, the mark of its blocks, and its metadata.
        max_bytes: maximum size of all records.
        started_ns: time of its start, in ns since 1970.
        last, last_request: numbers of the last record and request that `flush` has made readable; 0 if there is none.
        peers: facts about connections, by number: open connections, and the last 1,000 closed connections, with the
            reason as `ended`.
        writers: the segment that each writer was last set up for, by the bytes of its id, for the last 10,000.
    """

    def __init__(
        self,
        max_bytes: int = KEPT_BYTES,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        holds_reads = max_bytes >= KEPT_BYTES
        self._block_bytes = HUGE_BYTES if holds_reads else max(1, max_bytes // _BLOCKS)
        self._areas = Areas(self._block_bytes)
        self.mark, self.metadata = make_mark(os.urandom(8)), Metadata(WIRE_VERSION, "segstore")
        writer = TraceWriter(
            self.mark,
            self.metadata,
            redact=self._redacted,
            redact_codes=SECRET_CODES,
            block_bytes=self._block_bytes,
            flush_after_ns=_NEVER_NS,
            max_frame_bytes=max_frame_bytes,
            memory=self._areas.take(),
            more=self._areas.take,
            most_held_bytes=max_bytes,
        )
        super().__init__(writer, clock, holds_reads=holds_reads)
        self.start = writer.start()
        self.max_bytes = max_bytes
        self.started_ns = clock()
        self.last = self.last_request = 0
        self.peers: dict[int, Mapping[str, str]] = {}
        self.writers: dict[bytes, str] = {}
        self._taker: Callable[[Pending], None] | None = None
        self._closed: deque[int] = deque()
        self._blocks: deque[_Block] = deque()
        self._users: dict[int, int] = {}
        """The number of blocks with data in an area of memory, by its identity."""
        self._bytes = 0

    # --- recording --------------------------------------------------------------------------------------------------

    def opened(self, **facts: str) -> int:
        number = super().opened(**facts)
        self.peers[number] = facts
        return number

    def closed(self, connection: int, by: Direction = Direction.REQUEST, **facts: str) -> None:
        super().closed(connection, by, **facts)
        self.peers[connection] = {**self.peers.get(connection, {}), "ended": facts.get("reason", "")}
        self._closed.append(connection)
        if len(self._closed) > _MOST_CLOSED:
            self.peers.pop(self._closed.popleft(), None)

    def skip_number(self) -> int:
        self.last_request = super().skip_number()
        return self.last_request

    def take_block(self) -> None:
        """Keeps the pending records."""
        pending = self._writer.take_pending()
        if pending is None:
            return
        block = _Block(self.last + 1, self.last_request + 1, pending)
        self._blocks.append(block)
        self._bytes += block.own_bytes
        for area, size in block.areas.items():
            users = self._users[area] = self._users.get(area, 0) + 1
            self._bytes += size if users == 1 else 0
        self.last += pending.records
        self.last_request = self.requests
        if self._taker is not None:
            self._taker(pending)
        while self._bytes > self.max_bytes:
            self._discard(self._blocks.popleft())

    def _discard(self, block: _Block) -> None:
        self._bytes -= block.own_bytes
        for area, size in block.areas.items():
            self._users[area] -= 1
            if self._users[area] == 0:
                del self._users[area]
                self._bytes -= size
        block.pending = None

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

    def give_to(self, taker: Callable[[Pending], None] | None) -> None:
        """Calls a function with the records of each block from now on, valid during the call; None ends it."""
        self._taker = taker
        self._writer.block_bytes = self._block_bytes if taker is None else min(self._block_bytes, _TAKEN_BYTES)

    # --- reading ----------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Makes all whole frames readable. Returns the number of the last record."""
        self.take_block()
        self._areas.trim()
        return self.last

    def clear(self) -> None:
        """Discards all records so far. Later ones continue their numbers."""
        self.flush()
        while self._blocks:
            self._discard(self._blocks.popleft())

    @property
    def first(self) -> int:
        """Returns the number of the oldest record kept; `last` + 1 without records."""
        return self._blocks[0].first if self._blocks else self.last + 1

    @property
    def first_request(self) -> int:
        """Number of the oldest request kept; one more than `last_request` if none is."""
        return self._blocks[0].first_request if self._blocks else self.last_request + 1

    def records(self, first: int = 1, last: int | None = None) -> Iterator[tuple[int, int, Record]]:
        """Yields the records kept from number `first` to `last`, after this number and that of the request, 0 if it is
        none. May continue after others were discarded."""
        blocks = tuple(self._blocks)
        last = self.last if last is None else last
        for block in blocks[max(0, bisect_right(blocks, first, key=_first) - 1) :]:
            if block.first > last:
                return
            if block.pending is None:
                continue
            columns, request = block.pending.columns(), block.first_request
            start = max(0, first - block.first)
            request += sum(_is_request(columns, index) for index in range(start))
            for index in range(start, min(len(columns), last + 1 - block.first)):
                is_next = _is_request(columns, index)
                yield block.first + index, request if is_next else 0, columns[index]
                request += is_next

    def place_of(self, request: int) -> int:
        """Returns the number of the record of a request; 0 if it is not kept."""
        blocks = tuple(self._blocks)
        at = bisect_right(blocks, request, key=_first_request) - 1
        if at < 0:
            return 0
        block, number = blocks[at], blocks[at].first_request - 1
        if block.pending is None:
            return 0
        columns = block.pending.columns()
        for index in range(len(columns)):
            number += _is_request(columns, index)
            if number == request:
                return block.first + index
        return 0

    def trace(self) -> Iterator[bytes]:
        """Returns the pieces of a capture of everything kept. Each is built when it is reached, so that slow readers
        take no memory; without records that were discarded by then.
        """
        self.flush()
        blocks = tuple(self._blocks)
        built = (b"".join(block.pending.block(self.mark)) for block in blocks if block.pending is not None)
        return chain((self.start,), built)


def make_traffic(max_bytes: int, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> Traffic | None:
    """Returns a store for the latest traffic; None for 0 bytes."""
    return Traffic(max_bytes, max_frame_bytes=max_frame_bytes) if max_bytes else None
