"""Drives a store with a trace: repeats its requests and compares the replies with those of the trace.

The order of the trace is kept over all its connections: a request is sent once the replies before it have arrived, as
it may depend on them. A reply is compared with the expected one that has its request id, a KeepAlive or Hello with the
oldest of its kind. Names of transient segments, which a store generates, are learnt from its replies and substituted in
later requests.

Invariants: the bytes sent are those of the trace, except such names; a difference lists the fields in which two replies
differ, in wire order; the wait for a reply is at most `timeout_s`; a finished run leaves no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from segstore.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    CreateTransientSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    Unknown,
    WireError,
    decode,
    encode,
)
from segstore.wire.inspect import describe, lines
from segstore.wire.protocol import answer_key
from segstore.wire.trace import (
    VARYING_FIELDS,
    Direction,
    Exchange,
    Exchanges,
    FieldDifference,
    Record,
    RecordKind,
    compare_frames,
)

_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
_FRAME_BYTES: Final = 256
"""Estimated overhead of a queued frame, in addition to its bytes."""


class ReplyDifference(NamedTuple):
    """A reply that is not what was expected.

    connection: as in the trace. number: that of the record in the trace, from 1. request: the frame of the request, if
    any. expected, actual: frames; None if no reply was expected, or none came. why: why none came.
    """

    connection: int
    number: int
    request: bytes | None
    expected: bytes | None
    actual: bytes | None
    fields: tuple[FieldDifference, ...]
    why: str = ""

    def __str__(self) -> str:
        asked = f" to {_name(self.request)}" if self.request is not None else ""
        where = f"record {self.number}, connection {self.connection}, the reply{asked}"
        if self.actual is None:
            return f"{where}: {_name(self.expected)} was expected, but {self.why or 'none came'}"
        if self.expected is None:
            return f"{where}: {_name(self.actual)} came, and nothing was expected"
        if _name(self.expected) != _name(self.actual):
            said = f"{where}: {_name(self.actual)} came instead of {_name(self.expected)}"
            there = SegmentAlreadyExists.type_name in (_name(self.expected), _name(self.actual))
            return f"{said}; a store is to be empty at the start, or it answers so" if there else said
        said = ", ".join(
            f"{each.field} is {'another' if each.secret else repr(each.right)}"
            + ("" if each.secret else f" instead of {each.left!r}")
            for each in self.fields
        )
        return f"{where}, {_name(self.actual)}: {said}"


class Drive(NamedTuple):
    """The result of a run: the differences, and the traffic as records of a trace."""

    differences: list[ReplyDifference]
    records: list[Record]
    requests: int
    replies: int


def _name(frame: bytes | None) -> str:
    if frame is None:
        return "nothing"
    command = describe(frame, unknown="keep").command
    return command.type_name if command is not None else "a malformed frame"


def report(difference: ReplyDifference, *, left: str = "expected", right: str = "actual") -> Iterator[str]:
    """A difference as text: a summary line, then the annotated bytes of both replies."""
    yield str(difference)
    for name, frame in ((left, difference.expected), (right, difference.actual)):
        if frame is not None:
            yield f"{name}:"
            yield from lines(describe(frame, unknown="keep"))


class _Peer:
    """A connection to the store, with the received frames that are not matched yet.

    came: frames, whether or not they decode, each with its time and its key from `_claim`. rest: the bytes after them,
    an incomplete frame. ended: why no more bytes are expected.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.came: deque[tuple[int, bytes, Any]] = deque()
        self.rest = bytearray()
        self.bytes = 0
        self.ended = ""
        self._framed = True
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(reader), name="segstore replay reads")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.rest += data
                self._cut(time.time_ns())
                self._news.set()
                if self.bytes + len(self.rest) > _MOST_WAITING_BYTES:
                    self.ended = f"the store sent more than {_MOST_WAITING_BYTES} bytes that were not expected"
                    return
            within = f" within a frame of {len(self.rest)} bytes" if self.rest else ""
            self.ended = self.ended or f"the store closed the connection{within}"
        except OSError as error:
            self.ended = self.ended or f"the connection broke: {error}"
        finally:
            self._news.set()

    def _cut(self, now_ns: int) -> None:
        """Moves complete frames from `rest` to `came`."""
        rest, at = self.rest, 0
        while self._framed and len(rest) - at >= HEADER_BYTES:
            length = int.from_bytes(rest[at + 4 : at + 8], "big", signed=True)
            size = HEADER_BYTES + length
            if length < 0 or size > MAX_FRAME_BYTES:
                self._framed = False
                self.ended = f"the store sent what is no frame: a header that announces {length} bytes"
            elif len(rest) - at < size:
                break
            else:
                frame = bytes(rest[at : at + size])
                self.came.append((now_ns, frame, _claim(frame)))
                self.bytes += size + _FRAME_BYTES
                at += size
        del rest[:at]

    async def unframed(self, size: int, timeout_s: float) -> bytes:
        """Takes up to `size` bytes after the last frame, waiting until the timeout or the end of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.rest) < size and not self._task.done():
                    self._news.clear()
                    await self._news.wait()
        found = bytes(self.rest[:size])
        del self.rest[:size]
        return found

    async def closes(self, timeout_s: float) -> bool:
        """Whether the store closes the connection within the timeout."""
        await asyncio.wait([self._task], timeout=timeout_s)
        return self._task.done()

    async def reply(self, expected: bytes, timeout_s: float) -> tuple[int, bytes] | None:
        """The reply that matches the expected one, else the first that came; None if none came.

        A reply that does not decode matches any expected one.
        """
        looked, wanted = 0, _claim(expected)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for index, (_, _, claim) in enumerate(islice(self.came, looked, None), looked):
                        if claim in (wanted, None):
                            return self._take(index)
                    looked = len(self.came)
                    if self.ended:
                        break
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self.ended = self.ended or ""
        return self._take(0) if self.came else None

    def _take(self, index: int) -> tuple[int, bytes]:
        at_ns, frame, _ = self.came[index]
        del self.came[index]
        self.bytes -= len(frame) + _FRAME_BYTES
        return at_ns, frame

    async def close(self, timeout_s: float) -> None:
        """Closes the connection when the store has read everything sent, or after `timeout_s`."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.writer.close()
        aborting = asyncio.get_running_loop().call_later(timeout_s, self.writer.transport.abort)
        try:
            await self.writer.wait_closed()
        except OSError:
            self.ended = self.ended or "the connection broke"
        finally:
            aborting.cancel()


def _claim(frame: bytes) -> Any:
    """The key that a reply shares with the expected one; None for a frame that does not decode."""
    try:
        command = decode(frame, unknown="keep")
    except WireError:
        return None
    return command.type_code if isinstance(command, Unknown) else answer_key(command)


@dataclass
class _Driver:
    """Repeats the requests of one trace; the arguments are those of `drive`."""

    address: tuple[str, int]
    timeout_s: float
    pace: float | None
    ignore: frozenset[str]
    compare: bool
    all_differences: bool
    differences: list[ReplyDifference] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    requests: int = 0
    replies: int = 0
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _exchanges: Exchanges = field(default_factory=Exchanges)
    _start: float = 0.0
    _first_ns: int | None = None
    _number: int = 0
    _late: set[int] = field(default_factory=set)

    async def run(self, records: Iterable[Record]) -> None:
        self._start = asyncio.get_running_loop().time()
        try:
            for self._number, record in enumerate(records, 1):
                seen = self._exchanges.see(record)
                await self._record(record, seen)
                if self.differences and not self.all_differences:
                    break
            else:
                for number in tuple(self._peers):
                    await self._end(number)
        finally:
            for peer in self._peers.values():
                await peer.close(self.timeout_s)

    async def _record(self, record: Record, seen: Exchange) -> None:
        number = record.connection
        match record.kind, record.direction:
            case RecordKind.CALL, _:
                return  # a store answers no calls
            case RecordKind.OPEN, _:
                await self._end(number)
                await self._open(number)
            case RecordKind.CLOSE, Direction.REPLY:
                await self._closed_by_store(number)
            case RecordKind.CLOSE, _:
                await self._end(number)
            case _, Direction.REQUEST:
                await self._request(record)
            case RecordKind.FRAME, _:
                await self._reply(record, seen)
            case RecordKind.BYTES, _:
                await self._unframed(record)

    def _keep(self, number: int, direction: Direction, kind: RecordKind, data: bytes, at_ns: int | None = None) -> None:
        self.records.append(Record(at_ns or time.time_ns(), number, direction, kind, data))

    def _differ(
        self,
        connection: int,
        expected: bytes | None,
        actual: bytes | None,
        why: str = "",
        *,
        request: bytes | None = None,
        fields: tuple[FieldDifference, ...] = (),
    ) -> None:
        if self.compare:
            found = ReplyDifference(connection, self._number, request, expected, actual, fields, why)
            self.differences.append(found)

    async def _open(self, number: int) -> _Peer:
        try:
            async with asyncio.timeout(self.timeout_s):
                connected = await asyncio.open_connection(*self.address)
        except OSError as error:
            host, port = self.address
            # The system's message reads better than asyncio's, which repeats the address.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            why = why or f"it did not answer in {self.timeout_s:g} s"
            raise ConnectionError(f"no connection to the store at {host}:{port}: {why}") from error
        peer = self._peers[number] = _Peer(*connected)
        self._keep(number, Direction.REQUEST, RecordKind.OPEN, b"{}")
        return peer

    async def _end(self, number: int) -> None:
        """Closes a connection from the client's side; each unexpected reply is a difference."""
        peer = self._peers.pop(number, None)
        if peer is None:
            return
        await peer.close(self.timeout_s)
        for at_ns, frame, _ in peer.came:
            self._keep(number, Direction.REPLY, RecordKind.FRAME, frame, at_ns)
            self._differ(number, None, frame)
        if peer.rest:
            self._keep(number, Direction.REPLY, RecordKind.BYTES, bytes(peer.rest))
            self._differ(number, None, bytes(peer.rest))
        self._keep(number, Direction.REQUEST, RecordKind.CLOSE, b"{}")

    async def _closed_by_store(self, number: int) -> None:
        peer = self._peers.get(number)
        if peer is not None and not await peer.closes(self.timeout_s):
            why = f"the store has not closed the connection within {self.timeout_s:g} s, as in the trace"
            self._differ(number, None, None, why)
        await self._end(number)

    async def _request(self, record: Record) -> None:
        if self._first_ns is None:
            self._first_ns = record.ts_ns
        if self.pace is not None:
            due = self._start + (record.ts_ns - self._first_ns) / 1e9 / self.pace
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        peer = self._peers.get(record.connection) or await self._open(record.connection)
        data = self._translated(record.data) if record.kind is RecordKind.FRAME else record.data
        self._keep(record.connection, Direction.REQUEST, record.kind, data)
        self.requests += 1
        if not peer.ended and not peer.writer.transport.is_closing():
            peer.writer.write(data)

    def _translated(self, frame: bytes) -> bytes:
        """A frame with the store's names of transient segments."""
        if not self._names or not any(name.encode() in frame for name in self._names):
            return frame
        try:
            command = decode(frame)
        except WireError:
            return frame  # its names cannot be located
        changes = {
            name: self._names[value]
            for name in command.__struct_fields__
            if isinstance(value := getattr(command, name), str) and value in self._names
        }
        return encode(msgspec.structs.replace(command, **changes)) if changes else frame

    async def _reply(self, record: Record, seen: Exchange) -> None:
        number = record.connection
        peer = self._peers.get(number) or await self._open(number)
        request = seen.answers[-1].record.data if seen.answers else None
        expected = self._translated(record.data)
        self.replies += 1
        # After a missing reply the timeout is short, so that a run with many missing replies ends soon.
        patience = self.timeout_s if number not in self._late else min(self.timeout_s, 0.05)
        found = await peer.reply(expected, patience)
        if found is None:
            self._late.add(number)
            self._differ(number, expected, None, peer.ended or f"none came within {patience:g} s", request=request)
            return
        at_ns, frame = found
        self._keep(number, Direction.REPLY, RecordKind.FRAME, frame, at_ns)
        self._learn(seen, record.data, frame)
        expected = self._translated(record.data)
        if not self.compare or frame == expected:
            return
        fields = tuple(
            each for each in compare_frames(expected, frame) if each.field.partition(".")[0] not in self.ignore
        )
        if fields:
            self._differ(number, record.data, frame, request=request, fields=fields)

    async def _unframed(self, record: Record) -> None:
        """Expects bytes that are no complete frame, such as half of one before the store closed."""
        number = record.connection
        peer = self._peers.get(number) or await self._open(number)
        found = await peer.unframed(len(record.data), self.timeout_s)
        if found:
            self._keep(number, Direction.REPLY, RecordKind.BYTES, found)
        if found != record.data:
            fields = compare_frames(record.data, found) if found else ()
            why = peer.ended or f"none came within {self.timeout_s:g} s"
            self._differ(number, record.data, found or None, why, fields=fields)

    def _learn(self, seen: Exchange, expected: bytes, actual: bytes) -> None:
        """Records the store's name for a transient segment of the trace."""
        if not seen.answers or not isinstance(seen.answers[-1].command, CreateTransientSegment):
            return
        traced, live = (describe(frame, unknown="keep").command for frame in (expected, actual))
        if isinstance(traced, SegmentCreated) and isinstance(live, SegmentCreated):
            self._names[traced.segment] = live.segment


async def drive(
    records: Iterable[Record],
    host: str,
    port: int,
    *,
    timeout_s: float = 5.0,
    pace: float | None = None,
    ignore: frozenset[str] = VARYING_FIELDS,
    compare: bool = True,
    all_differences: bool = False,
) -> Drive:
    """Repeats the requests of a trace and compares the replies.

    timeout_s: the maximum wait for a reply. pace: 1 sends at the times of the trace, 2 twice as fast; None as soon as
    the earlier replies have come. ignore: fields that may differ. all_differences: continue after the first.
    Raises OSError if a connection cannot be opened.
    """
    if pace is not None and pace <= 0:
        raise ValueError(f"pace must be above 0, not {pace}")
    driver = _Driver((host, port), timeout_s, pace, ignore, compare, all_differences)
    await driver.run(records)
    return Drive(driver.differences, driver.records, driver.requests, driver.replies)


async def diff_stores(
    records: Iterable[Record],
    left: tuple[str, int],
    right: tuple[str, int],
    *,
    timeout_s: float = 5.0,
    ignore: frozenset[str] = VARYING_FIELDS,
) -> Drive:
    """Sends the requests of a trace to one store, then to another, and compares the replies."""
    first = await drive(records, *left, timeout_s=timeout_s, compare=False)
    return await drive(first.records, *right, timeout_s=timeout_s, ignore=ignore, all_differences=True)
