"""Recorders of traffic, which listeners call with the bytes that they read and write.

A recorder numbers connections and receives their bytes as they are on the wire: once for each read, before it is
decoded, and once for each write, after all changes to it. Its methods return at once and raise nothing.

`TraceRecorder` makes a trace of them. `segstore.server.traffic.Traffic` keeps its newest part in memory, and
`segstore.traces.files.FileRecorder` writes it to a file. `together` makes one recorder of two.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from segstore.wire.trace import Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segstore.wire import Buffer
    from segstore.wire.trace import Call, TraceWriter

WITH_ROLE: Final = 1_000_000_000


class RecordedConnection:
    """One connection as its recorder knows it.

    Attributes:
        number: of the connection.
        is_numbering: whether the numbers of requests are taken with `take_numbers`.
    """

    __slots__ = ("_arrived", "_recorder", "is_numbering", "number")

    def __init__(self, recorder: Recorder, **facts: str) -> None:
        self.number = recorder.opened(**facts)
        self.is_numbering = False
        self._recorder = recorder
        self._arrived: deque[tuple[int, int]] = deque()
        """The first and the last number of the requests that a read has completed."""

    def received(self, data: Buffer, *, lasting: bool = False) -> bool:
        """As `TraceRecorder.received`."""
        recorder = self._recorder
        before = recorder.requests
        is_held = recorder.received(self.number, data, lasting=lasting)
        if self.is_numbering and recorder.requests > before:
            self._arrived.append((before + 1, recorder.requests))
        return is_held

    def take_numbers(self, most: int) -> tuple[int, int]:
        """Returns the number of the next request that has arrived, and how many, at most `most`, are numbered from it
        on. A request that the recorder did not find, because the connection's bytes are no frames any more, gets a
        number that no record has."""
        if not self._arrived:
            return self._recorder.skip_number(), 1
        first, last = self._arrived[0]
        count = min(most, last + 1 - first)
        if first + count > last:
            self._arrived.popleft()
        else:
            self._arrived[0] = first + count, last
        return first, count

    def sent(self, parts: Sequence[Buffer]) -> None:
        """As `TraceRecorder.sent`."""
        self._recorder.sent(self.number, parts)

    def closed(self, by: Direction, reason: str) -> None:
        """As `TraceRecorder.closed`. reason: "" for none."""
        self._recorder.closed(self.number, by, **({"reason": reason} if reason else {}))


class TraceRecorder(ABC):
    """Writes the traffic of connections as blocks of a capture, for `take_block`. Buffers belong to the caller.

    Connections are numbered from 1, connections with a `role`, such as the controller's, from `WITH_ROLE`; so
    connection numbers in fault rules do not depend on the controller.

    Attributes: connections, the number of connections opened so far; calls, the number of controller calls.
    """

    def __init__(
        self, writer: TraceWriter, clock: Callable[[], int] = time.time_ns, *, holds_reads: bool = False
    ) -> None:
        """holds_reads: whether to hold views of reads that last instead of copies."""
        self.connections = self.calls = 0
        self._with_role = 0
        self._writer = writer
        self._clock = clock
        self._holds_reads = holds_reads

    @property
    def requests(self) -> int:
        """The number of the last request that has come; requests are numbered from 1, over all connections."""
        return self._writer.requests

    def skip_number(self) -> int:
        """Returns the next number, for a request that is not recorded as a whole frame."""
        self.take_block()  # the numbers within a block have no gaps
        self._writer.requests += 1
        return self._writer.requests

    @abstractmethod
    def take_block(self) -> None:
        """Takes the pending records from the writer, as a block: it is full, or old enough."""

    def opened(self, **facts: str) -> int:
        """Called for a new connection; returns its number for the other calls."""
        self.connections += 1
        self._with_role += "role" in facts
        number = WITH_ROLE + self._with_role if "role" in facts else self.connections - self._with_role
        self._writer.opened(self._clock(), number, **facts)
        return number

    def received(self, connection: int, data: Buffer, *, lasting: bool = False) -> bool:
        """Called with bytes from the client, in arbitrary pieces.

        lasting: `data` is a memoryview of memory that is not written to while a view of it is held. Returns whether the
        recorder holds one instead of a copy.
        """
        lasting, before = lasting and self._holds_reads, self._writer.pieces
        is_due = self._writer.add(self._clock(), connection, 0, data, lasting)  # C takes no keyword
        is_held = lasting and self._writer.pieces > before
        if is_due:
            self.take_block()
        return is_held

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        """Called with the buffers that the store writes, in order."""
        for part in parts:
            if self._writer.add(self._clock(), connection, 1, part):
                self.take_block()

    def closed(self, connection: int, by: Direction = Direction.REQUEST, **facts: str) -> None:
        """Called for a closed connection. by: REQUEST if the client closed it, REPLY if the store did."""
        if self._writer.closed(self._clock(), connection, by, **facts):
            self.take_block()

    def called(self, direction: Direction, call: Call) -> None:
        """Called with the request of a controller call when it arrives, and with its answer when it is sent."""
        self.calls = max(self.calls, call.number)
        if self._writer.called(self._clock(), direction, call):
            self.take_block()

    def tick(self) -> None:
        """Writes pending data that is old enough."""
        if self._writer.due(self._clock()):
            self.take_block()


class _Together:
    """Passes all traffic to two recorders that had no connections before, so both give the same numbers."""

    def __init__(self, first: Recorder, second: Recorder) -> None:
        self._first = first
        self._second = second

    @property
    def requests(self) -> int:
        return self._first.requests

    def skip_number(self) -> int:
        return self._first.skip_number()

    def opened(self, **facts: str) -> int:
        self._second.opened(**facts)
        return self._first.opened(**facts)

    def received(self, connection: int, data: Buffer, *, lasting: bool = False) -> bool:
        is_held = self._first.received(connection, data, lasting=lasting)
        return self._second.received(connection, data, lasting=lasting) or is_held

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        self._first.sent(connection, parts)
        self._second.sent(connection, parts)

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        self._first.closed(connection, by, **facts)
        self._second.closed(connection, by, **facts)

    def called(self, direction: Direction, call: Call) -> None:
        self._first.called(direction, call)
        self._second.called(direction, call)


Recorder = TraceRecorder | _Together


def together(first: Recorder | None, second: Recorder) -> Recorder:
    """Returns a recorder that passes all traffic to both recorders, or `second` if `first` is None. Call it before the
    first connection."""
    return second if first is None else _Together(first, second)
