"""Drives a store with a trace: repeats its requests and compares the replies with the trace's.

The order of the trace is kept over all its connections: a request is sent once the replies before it have arrived, as
it may depend on them. A reply is compared with the expected reply that has its request id, a KeepAlive or Hello with
the oldest of its kind. Controller calls are made in the same order, if the address of a controller is given. Ids that a
store or a controller generates, for transient segments and transactions, are learnt from its replies and substituted in
later requests.

Where a fault rule had closed a connection, its end is no difference: the replies that the rule withheld are not
compared, and requests that it withheld from the store are not sent.

Invariants: the bytes sent are the trace's, except such ids; a difference lists the fields in which two replies differ,
in wire order; every wait for a reply has an end; a finished run leaves no connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from segstore.server.replay import OfClients, check_pace
from segstore.traces.calls import Access, TracedCalls
from segstore.traces.reply_difference import ReplyDifference
from segstore.wire import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    CreateTransientSegment,
    ReadSegment,
    SegmentCreated,
    Unknown,
    WireError,
    decode,
    encode,
)
from segstore.wire.endpoint import Endpoint
from segstore.wire.inspect import describe
from segstore.wire.protocol import answer_key
from segstore.wire.trace import (
    CONTROLLER,
    VARYING_FIELDS,
    Direction,
    Exchange,
    Exchanges,
    FieldDifference,
    Record,
    RecordKind,
    Translation,
    compare_frames,
    put_ids,
    take_ids,
    unpack_data,
)

if TYPE_CHECKING:
    from segstore.server.replay import LeftOut

LONG_POLL_S: Final = 20.0
"""How long a read at the tail waits for data in a segment store (`--long-poll-s`)."""
_LONGEST_READ_S: Final = 600.0
"""Maximum wait for the data of a read; the times of a trace may be any."""
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
_FRAME_BYTES: Final = 256
"""Estimated overhead of a queued frame, in addition to its bytes."""


@dataclass
class Drive:
    """The result of a run: the differences, and the traffic as records of a trace.

    requests, replies: numbers of frames. calls: number of controller calls. left_out: records of controller calls that
    are no calls or cannot be made. cuts: connections that a recorded fault had closed, one per line.
    """

    differences: list[ReplyDifference] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    requests: int = 0
    replies: int = 0
    calls: int = 0
    left_out: Sequence[LeftOut] = ()
    cuts: list[str] = field(default_factory=list)


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
        self._received = asyncio.Event()
        self._task = asyncio.create_task(self._read(reader), name="segstore replay reads")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.rest += data
                self._cut(time.time_ns())
                self._received.set()
                if self.bytes + len(self.rest) > _MOST_WAITING_BYTES:
                    self.ended = f"the store sent more than {_MOST_WAITING_BYTES} bytes that were not expected"
                    return
            within = f" within a frame of {len(self.rest)} bytes" if self.rest else ""
            self.ended = self.ended or f"the store closed the connection{within}"
        except OSError as error:
            self.ended = self.ended or f"the connection broke: {error}"
        finally:
            self._received.set()

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
                    self._received.clear()
                    await self._received.wait()
        data = bytes(self.rest[:size])
        del self.rest[:size]
        return data

    async def closes(self, timeout_s: float) -> bool:
        """Whether the store closes the connection within the timeout."""
        await asyncio.wait([self._task], timeout=timeout_s)
        return self._task.done()

    async def reply(self, expected: bytes, timeout_s: float) -> tuple[int, bytes] | None:
        """Returns the reply that matches the expected reply, else the first that came; None if no reply came.

        A reply that does not decode matches any expected reply.
        """
        looked, wanted = 0, _claim(expected)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    for index, (_, _, claim) in enumerate(islice(self.came, looked, None), looked):
                        if claim in (wanted, None):
                            return self._take(index)
                    looked = len(self.came)
                    if self.ended:
                        break
                    self._received.clear()
                    await self._received.wait()
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


def _fault(record: Record) -> str:
    """Returns the fault for which the store has closed a connection, or ""."""
    reason = (unpack_data(record.data) or {}).get("reason", "") if record.kind is RecordKind.CLOSE else ""
    return str(reason) if str(reason).startswith("fault ") else ""


def _kept_back(records: Iterable[Record]) -> set[int]:
    """The ids of the records of requests that faults kept from the store, and of parts of replies that they cut.

    Of appends, the next set-up decides.
    """
    exchanges, kept = Exchanges(), set[int]()
    blocks: dict[int, Record] = {}
    starts: dict[int, int] = {}  # the records of blocks, by those of their ends
    parts: dict[int, int] = {}
    undecided: dict[Any, list[Exchange]] = {}
    for record in records:
        seen = exchanges.see(record)
        match seen.command:
            case AppendBlock():
                blocks[record.connection] = record
            case AppendBlockEnd() if record.connection in blocks:
                starts[id(record)] = id(blocks.pop(record.connection))
            case AppendSetup():
                for append in undecided.pop(seen.writer_id, ()):
                    assert isinstance(append.command, AppendBlockEnd)
                    is_stored = append.command.last_event_number <= seen.command.last_event_number
                    (kept.discard if is_stored else kept.add)(id(append.record))
        if record.kind is RecordKind.BYTES and record.direction is Direction.REPLY:
            parts[record.connection] = id(record)
        elif fault := _fault(record):
            kept.add(parts.pop(record.connection, 0))
            if fault.endswith("close before"):
                kept.update(id(request.record) for request in seen.pending)
            for request in seen.pending:
                if isinstance(request.command, AppendBlockEnd):
                    undecided.setdefault(request.writer_id, []).append(request)
    return kept | {starts[end] for end in kept if end in starts}


def _claim(frame: bytes) -> Any:
    """Returns the key that a reply shares with the expected reply; None for a frame that does not decode."""
    try:
        command = decode(frame, unknown="keep")
    except WireError:
        return None
    return command.type_code if isinstance(command, Unknown) else answer_key(command)


@dataclass
class _Driver:
    """Repeats the requests of one trace; the arguments are as for `drive`. calls: the calls to make, if any."""

    address: tuple[str, int]
    access: Access
    translation: Translation
    calls: TracedCalls | None
    timeout_s: float
    pace: float | None
    ignore: frozenset[str]
    compare: bool
    all_differences: bool
    result: Drive = field(default_factory=Drive)
    kept_back: set[int] = field(default_factory=set)
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _exchanges: Exchanges = field(default_factory=Exchanges)
    _start: float = 0.0
    _first_ns: int | None = None
    _number: int = 0
    _late: set[int] = field(default_factory=set)

    async def run(self, records: Sequence[Record]) -> None:
        self._start = asyncio.get_running_loop().time()
        is_of_clients, self.kept_back = None if self.calls is None else OfClients(), _kept_back(records)
        try:
            for self._number, record in enumerate(records, 1):
                if is_of_clients is not None and not is_of_clients(record):
                    continue  # a controller's request to its store, which a call causes again
                seen = self._exchanges.see(record)
                if id(record) not in self.kept_back:
                    await self._record(record, seen)
                if self.result.differences and not self.all_differences:
                    break
            else:
                for number in tuple(self._peers):
                    await self._end(number)
        finally:
            for peer in self._peers.values():
                await peer.close(self.timeout_s)
            if self.calls is not None:
                await self.calls.aclose()

    async def _record(self, record: Record, seen: Exchange) -> None:
        number = record.connection
        match record.kind, record.direction:
            case RecordKind.CALL, Direction.REQUEST:
                await self._call(record)
            case RecordKind.CALL, _:
                await self._answer()
            case RecordKind.OPEN, _:
                await self._end(number)
                await self._open(number)
            case RecordKind.CLOSE, Direction.REPLY:
                await self._closed_by_store(seen)
            case RecordKind.CLOSE, _:
                await self._end(number)
            case _, Direction.REQUEST:
                await self._request(record, seen)
            case RecordKind.FRAME, _:
                await self._reply(record, seen)
            case RecordKind.BYTES, _:
                await self._unframed(record)

    def _keep(self, number: int, direction: Direction, kind: RecordKind, data: bytes, at_ns: int | None = None) -> None:
        self.result.records.append(Record(at_ns or time.time_ns(), number, direction, kind, data))

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
            difference = ReplyDifference(connection, self._number, request, expected, actual, fields, why)
            self.result.differences.append(difference)

    async def _open(self, number: int) -> _Peer:
        try:
            async with asyncio.timeout(self.timeout_s):
                connected = await asyncio.open_connection(*self.address, ssl=self.access.tls)
        except OSError as error:
            host, port = self.address
            why = error.strerror or str(error) or f"it did not answer in {self.timeout_s:g} s"
            if error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
                why = os.strerror(error.errno)  # asyncio's message repeats the address
            raise ConnectionError(f"no connection to the store at {host}:{port}: {why}") from error
        peer = self._peers[number] = _Peer(*connected)
        self._keep(number, Direction.REQUEST, RecordKind.OPEN, b"{}")
        return peer

    async def _end(self, number: int, *, is_cut: bool = False) -> None:
        """Closes a connection from the client's side; each unexpected reply is a difference, unless a fault cut it."""
        peer = self._peers.pop(number, None)
        if peer is None:
            return
        await peer.close(self.timeout_s)
        for at_ns, frame, _ in peer.came:
            self._keep(number, Direction.REPLY, RecordKind.FRAME, frame, at_ns)
            if not is_cut:
                self._differ(number, None, frame)
        if peer.rest:
            self._keep(number, Direction.REPLY, RecordKind.BYTES, bytes(peer.rest))
            if not is_cut:
                self._differ(number, None, bytes(peer.rest))
        self._keep(number, Direction.REQUEST, RecordKind.CLOSE, b"{}")

    async def _closed_by_store(self, seen: Exchange) -> None:
        number, fault = seen.record.connection, _fault(seen.record)
        peer = self._peers.get(number)
        if peer is not None and fault:
            self.result.cuts.append(f"record {self._number}, connection {number}: closed by a recorded {fault}")
            waiting = [
                request
                for request in seen.pending
                if not isinstance(request.command, ReadSegment) and id(request.record) not in self.kept_back
            ]
            if waiting and (reply := await peer.reply(waiting[-1].record.data, self.timeout_s)) is not None:
                self._keep(number, Direction.REPLY, RecordKind.FRAME, reply[1], reply[0])
        elif peer is not None and not await peer.closes(self.timeout_s):
            why = f"the store has not closed the connection within {self.timeout_s:g} s, as in the trace"
            self._differ(number, None, None, why)
        await self._end(number, is_cut=bool(fault))

    async def _until_due(self, record: Record) -> None:
        """Waits for the time of a request."""
        if self._first_ns is None:
            self._first_ns = record.ts_ns
        if self.pace is not None:
            due = self._start + (record.ts_ns - self._first_ns) / 1e9 / self.pace
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _call(self, record: Record) -> None:
        if self.calls is None:
            return
        await self._until_due(record)
        call = await self.calls.make(self._number)
        if call is not None:
            self.result.calls += 1
            self._keep(CONTROLLER, Direction.REQUEST, RecordKind.CALL, call.pack())

    async def _answer(self) -> None:
        found = None if self.calls is None else await self.calls.answer(self._number)
        if found is None:
            return
        actual = None if found.actual is None else found.actual.pack()
        if actual is not None:
            self._keep(CONTROLLER, Direction.REPLY, RecordKind.CALL, actual)
        if actual is None or found.fields:
            asked = found.request.pack()
            self._differ(CONTROLLER, found.expected.pack(), actual, found.why, request=asked, fields=found.fields)

    async def _request(self, record: Record, seen: Exchange) -> None:
        await self._until_due(record)
        peer = self._peers.get(record.connection) or await self._open(record.connection)
        data = self._translated(seen)
        self._keep(record.connection, Direction.REQUEST, record.kind, data)
        self.result.requests += 1
        if not peer.ended and not peer.writer.transport.is_closing():
            peer.writer.write(data)

    def _translated(self, seen: Exchange) -> bytes:
        """A record's data with the ids of this run, where they are in fields of text, and with its token."""
        ids, command = self.translation.ids.right, seen.command
        if command is None or isinstance(command, Unknown):
            return seen.record.data
        changes: dict[str, Any] = {}
        for name in command.__struct_fields__ if ids else ():
            value = getattr(command, name)
            if isinstance(value, str):
                changes[name] = put_ids(value, ids)
            elif isinstance(value, tuple | list) and value and isinstance(value[0], str):
                changes[name] = type(value)(put_ids(text, ids) for text in value)
        changes |= self.access.fields(command)
        changes = {name: value for name, value in changes.items() if getattr(command, name) != value}
        return encode(msgspec.structs.replace(command, **changes)) if changes else seen.record.data

    async def _reply(self, record: Record, seen: Exchange) -> None:
        number = record.connection
        peer = self._peers.get(number) or await self._open(number)
        request = seen.answers[-1].record.data if seen.answers else None
        expected = self._translated(seen)
        self.result.replies += 1
        # After a missing reply the timeout is short, so that a run with many missing replies ends soon.
        patience = self._patience(record, seen) if number not in self._late else min(self.timeout_s, 0.05)
        received = await peer.reply(expected, patience)
        if received is None:
            self._late.add(number)
            self._differ(number, expected, None, peer.ended or f"none came within {patience:g} s", request=request)
            return
        at_ns, frame = received
        self._keep(number, Direction.REPLY, RecordKind.FRAME, frame, at_ns)
        self._learn(seen, record.data, frame)
        expected = self._translated(seen)
        if not self.compare or frame == expected:
            return
        fields = tuple(
            field_ for field_ in compare_frames(expected, frame) if field_.field.partition(".")[0] not in self.ignore
        )
        if fields:
            self._differ(number, record.data, frame, request=request, fields=fields)

    def _patience(self, record: Record, seen: Exchange) -> float:
        """The maximum wait for a reply, in seconds: a read may wait for data first."""
        if not seen.answers or not isinstance(seen.answers[-1].command, ReadSegment):
            return self.timeout_s
        recorded_s = (record.ts_ns - seen.answers[-1].record.ts_ns) / 1e9
        return self.timeout_s + min(max(LONG_POLL_S, recorded_s), _LONGEST_READ_S)

    async def _unframed(self, record: Record) -> None:
        """Expects bytes that are no complete frame, such as half a frame before the store closed."""
        number = record.connection
        peer = self._peers.get(number) or await self._open(number)
        received = await peer.unframed(len(record.data), self.timeout_s)
        if received:
            self._keep(number, Direction.REPLY, RecordKind.BYTES, received)
        if received != record.data:
            fields = compare_frames(record.data, received) if received else ()
            why = peer.ended or f"none came within {self.timeout_s:g} s"
            self._differ(number, record.data, received or None, why, fields=fields)

    def _learn(self, seen: Exchange, expected: bytes, actual: bytes) -> None:
        """Pairs the ids in the name of a transient segment with the ids in the store's name for it."""
        if not seen.answers or not isinstance(seen.answers[-1].command, CreateTransientSegment):
            return
        traced, live = (describe(frame, unknown="keep").command for frame in (expected, actual))
        if isinstance(traced, SegmentCreated) and isinstance(live, SegmentCreated):
            for pair in zip(take_ids(traced.segment)[1], take_ids(live.segment)[1], strict=False):
                self.translation.pair(*pair)


async def drive(
    records: Iterable[Record],
    host: str,
    port: int,
    *,
    controller: tuple[str, int] | None = None,
    access: Access | None = None,
    timeout_s: float = 5.0,
    pace: float | None = None,
    ignore: frozenset[str] = VARYING_FIELDS,
    compare: bool = True,
    all_differences: bool = False,
) -> Drive:
    """Repeats the requests of a trace and compares the replies.

    controller: (host, port) of the controller to which the controller calls of the trace are made; requests of the
    recorded controller to its stores are then left out. None to make no calls. access: TLS, credentials and tokens, if
    needed. timeout_s: the maximum wait for a reply, for a read in addition to its wait for data: the long poll of
    stores, or its time in the trace if that is longer, at most 600 s. pace: 1 sends at the times of the trace, 2 twice
    as fast; None as soon as the earlier replies have come. ignore: fields that may differ. all_differences: continue
    after the first. Raises OSError if a connection cannot be opened, ValueError for a pace out of range.
    """
    check_pace(pace)
    access = access or Access()
    records, translation, calls = list(records), Translation(ignore), None
    if controller is not None:
        where = Endpoint(*controller)
        access.warn(where)
        calls = TracedCalls(records, where, Endpoint(host, port), translation, access, timeout_s)
    driver = _Driver((host, port), access, translation, calls, timeout_s, pace, ignore, compare, all_differences)
    if calls is not None:
        driver.result.left_out = calls.left_out
    await driver.run(records)
    return driver.result


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
