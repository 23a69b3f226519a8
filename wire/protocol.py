"""A connection to a segment store, sans I/O: the handshake, the direction of commands, requests and their replies.

`ClientProtocol` is the client's side: `hello` and `send` return bytes to write, `receive` takes the bytes that were
read and yields replies with the requests that they answer. `Requests` matches replies to requests, also for an observer
of both directions.

A reply answers the oldest request with its request id; Hello and KeepAlive, which carry no id, answer the oldest of
their kind. An append is answered by the first acknowledgement of its writer with its event number or a later number,
since one acknowledgement may cover many appends and a writer uses one id for all. A refused token of a read may carry
the read's offset in place of the request id (PDP-36.30).

Source: `ServerConnectionInboundHandler`, `FlowHandler` (Pravega).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from segstore.wire.blocks import Append
from segstore.wire.codec import OLDEST_COMPATIBLE_VERSION, WIRE_VERSION, encode, encoder, frame_decoder
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AuthTokenCheckFailed,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    Hello,
    KeepAlive,
    ReadSegment,
)
from segstore.wire.errors import OutOfOrder, WireError
from segstore.wire.schema import Command, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from segstore.wire.codec import FrameDecoder
    from segstore.wire.schema import Buffer

T = TypeVar("T")
K = TypeVar("K")

HELLO: Final = Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)
"""The supported wire versions."""

_NUMBERS: Final[Mapping[type, str]] = {
    Append: "event_number",
    AppendBlockEnd: "last_event_number",
    ConditionalAppend: "event_number",
    ConditionalBlockEnd: "event_number",
}
"""For each kind of append, the field with the number of its last event."""


ANSWERS: Final[dict[str, frozenset[str]]] = {
    request: frozenset(replies.split())
    for request, replies in {
        "HELLO": "HELLO",
        "KEEP_ALIVE": "KEEP_ALIVE",
        "SETUP_APPEND": "APPEND_SETUP",
        "APPEND_BLOCK_END": "DATA_APPENDED",
        "CONDITIONAL_APPEND": "DATA_APPENDED CONDITIONAL_CHECK_FAILED",
        "CONDITIONAL_BLOCK_END": "DATA_APPENDED CONDITIONAL_CHECK_FAILED",
        "READ_SEGMENT": "SEGMENT_READ",
        "GET_STREAM_SEGMENT_INFO": "STREAM_SEGMENT_INFO",
        "CREATE_SEGMENT": "SEGMENT_CREATED",
        "CREATE_TRANSIENT_SEGMENT": "SEGMENT_CREATED",
        "SEAL_SEGMENT": "SEGMENT_SEALED",
        "DELETE_SEGMENT": "SEGMENT_DELETED",
        "TRUNCATE_SEGMENT": "SEGMENT_TRUNCATED",
        "UPDATE_SEGMENT_POLICY": "SEGMENT_POLICY_UPDATED",
        "GET_SEGMENT_ATTRIBUTE": "SEGMENT_ATTRIBUTE",
        "UPDATE_SEGMENT_ATTRIBUTE": "SEGMENT_ATTRIBUTE_UPDATED",
        "LOCATE_OFFSET": "OFFSET_LOCATED SEGMENT_TRUNCATED",
        "MERGE_SEGMENTS": "SEGMENTS_MERGED SEGMENT_ATTRIBUTE_UPDATED",
        "MERGE_SEGMENTS_BATCH": "SEGMENTS_BATCH_MERGED",
        "GET_TABLE_SEGMENT_INFO": "TABLE_SEGMENT_INFO",
        "CREATE_TABLE_SEGMENT": "SEGMENT_CREATED",
        "DELETE_TABLE_SEGMENT": "SEGMENT_DELETED",
        "MERGE_TABLE_SEGMENTS": "SEGMENTS_MERGED",
        "SEAL_TABLE_SEGMENT": "SEGMENT_SEALED",
        "UPDATE_TABLE_ENTRIES": "TABLE_ENTRIES_UPDATED",
        "REMOVE_TABLE_KEYS": "TABLE_KEYS_REMOVED",
        "READ_TABLE": "TABLE_READ",
        "READ_TABLE_KEYS": "TABLE_KEYS_READ",
        "READ_TABLE_ENTRIES": "TABLE_ENTRIES_READ",
        "READ_TABLE_ENTRIES_DELTA": "TABLE_ENTRIES_DELTA_READ",
        "FLUSH_TO_STORAGE": "FLUSHED_TO_STORAGE",
        "LIST_STORAGE_CHUNKS": "STORAGE_CHUNKS_LISTED",
    }.items()
}
"""Request → the replies that answer it, except failures, which answer any request.

Source: `WireCommands` and its request handler (Pravega).
"""

_WITHOUT_ID: Final = frozenset({Hello, KeepAlive})
_ACKNOWLEDGE: Final = (DataAppended, ConditionalCheckFailed)


def compatible(one: Hello, other: Hello) -> bool:
    """Whether two peers have a wire version in common."""
    return one.low_version <= other.high_version and other.low_version <= one.high_version


def frames_of(item: Command | Append) -> bytes:
    """A request as frames: an append as a block and its end."""
    if not isinstance(item, Append):
        return encode(item)
    if item.expected_offset is not None:
        return encode(
            ConditionalBlockEnd(item.writer_id, item.event_number, item.expected_offset, item.data, item.request_id)
        )
    end = AppendBlockEnd(item.writer_id, len(item.data), b"", item.event_count, item.event_number, item.request_id)
    return encode(AppendBlock(item.writer_id, item.data)) + encode(end)


def gathered(parts: Sequence[Buffer], large_bytes: int) -> list[Buffer]:
    """Joins runs of parts below `large_bytes`: the system takes a limited number of buffers at a time, and copying a
    small part is cheaper. Larger parts are the caller's own.
    """
    if parts and max(map(len, parts)) < large_bytes:  # nearly always
        return [b"".join(parts)]
    out: list[Buffer] = []
    for is_large, run in groupby(parts, lambda part: len(part) >= large_bytes):
        together = list(run)
        out += together if is_large else [b"".join(together)]
    return out


def answer_key(command: Any) -> int | str:
    """The key that a request shares with its reply: the request id, or else the type name."""
    request_id: int | None = None if type(command) in _WITHOUT_ID else getattr(command, "request_id", None)
    return str(command.type_name) if request_id is None else request_id


_Sent = tuple[Any, Any, Any]
"""A pending request: its key, the event number of an append or the offset of a read, and its owner's value.

Of several appends: the list of their event numbers and keys, the last event number, and one value for all.
"""


class Requests(Generic[T]):
    """The pending requests of one connection, each represented by a value of its owner; the requests are not held.

    Iteration yields these values. most: the maximum number of pending requests, None for no bound.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._count = 0
        self._others: dict[int | str, deque[_Sent]] = {}
        self._appends: dict[bytes, deque[_Sent]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        for queues in (self._others, self._appends):
            for queue in queues.values():
                for _, _, value in queue:
                    yield value

    def add(self, request: Command | Append, value: T) -> bool:
        """Registers a request. Returns False if all earlier requests were dropped because there were too many."""
        name = _NUMBERS.get(type(request))
        if name is None and not cast("Command", request).is_request:
            return True  # such as a block: its end is answered
        room = self._most is None or self._count < self._most
        if not room:
            self._count, self._others, self._appends = 0, {}, {}
        self._count += 1
        key = answer_key(request)
        if name is None:
            number = request.offset if type(request) is ReadSegment else None
            self._others.setdefault(key, deque()).append((key, number, value))
        else:
            number, writer = getattr(request, name), request.writer_id.bytes  # type: ignore[union-attr]  # all have one
            queue = self._appends.get(writer)
            if queue is None:
                queue = self._appends[writer] = deque()
            queue.append((key, number, value))
        return room

    def add_appends(self, writer: bytes, appends: list[tuple[int, int]], value: T) -> None:
        """Registers appends of one writer, by event number and request id, as one request: it is answered when all are.

        `appends` is not empty and becomes the property of this object.
        """
        self._count += 1
        self._appends.setdefault(writer, deque()).append((appends, appends[-1][0], value))

    def separate(self, each_of: Callable[[T, list[tuple[int, int]]], Iterable[T]]) -> None:
        """Splits appends that were registered together into single requests. each_of: returns a value per append."""
        for writer, queue in self._appends.items():
            apart: deque[_Sent] = deque()
            for sent in queue:
                if type(several := sent[0]) is not list:
                    apart.append(sent)
                    continue
                values = each_of(sent[2], several)
                apart += [(key, number, value) for (number, key), value in zip(several, values, strict=True)]
            self._count += len(apart) - len(queue)
            self._appends[writer] = apart

    def answered(self, reply: Command) -> list[T]:
        """Removes and returns the values of the requests that a reply answers, oldest first."""
        if isinstance(reply, _ACKNOWLEDGE):
            return self.acknowledged(reply.writer_id.bytes, reply.event_number)
        key = answer_key(reply)
        if key in self._others:
            return [self._take(self._others, key)]
        # A failed append: the reply has its request id, which may be that of other appends too.
        for writer, queue in self._appends.items():
            oldest = queue[0][0]
            if oldest == key:
                return [self._take(self._appends, writer)]
            if type(oldest) is list and oldest[0][1] == key:
                del oldest[0]
                return [] if oldest else [self._take(self._appends, writer)]
        if isinstance(reply, AuthTokenCheckFailed):
            for other, queue in self._others.items():
                if queue[0][1] == key:
                    return [self._take(self._others, other)]
        return []

    def acknowledged(self, writer: bytes, number: int) -> list[T]:
        """Removes and returns the values of a writer's appends up to an event number, oldest first."""
        answered: list[T] = []
        queue = self._appends.get(writer)
        if queue is None:
            return answered
        while queue and queue[0][1] <= number:
            answered.append(queue.popleft()[2])
        self._count -= len(answered)
        if not queue:
            del self._appends[writer]
        elif type(several := queue[0][0]) is list:
            del several[: bisect_right(several, number, key=itemgetter(0))]
        return answered

    def forget(self, request: Command) -> None:
        """Removes the oldest request with this one's id; appends stay."""
        if (key := answer_key(request)) in self._others:
            self._take(self._others, key)

    def _take(self, queues: dict[K, deque[_Sent]], key: K) -> T:
        queue = queues[key]
        value: T = queue.popleft()[2]
        self._count -= 1
        if not queue:
            del queues[key]
        return value


class ClientProtocol(Generic[T]):
    """The client's side of one connection. Its owner must write all returned bytes, in order.

    Attributes:
        peer: the store's Hello, None until it has come.
        requests: the pending requests.
    """

    def __init__(self, version: int = WIRE_VERSION, *, decoder: FrameDecoder | None = None) -> None:
        """version: the wire version. decoder: for replies; None for a decoder that rejects unknown commands."""
        self.peer: Hello | None = None
        self.requests: Requests[T] = Requests()
        self._hello = Hello(version, OLDEST_COMPATIBLE_VERSION)
        self._encode = encoder(version)
        self._decoder = frame_decoder(version) if decoder is None else decoder

    def hello(self) -> bytes:
        """The first bytes to write."""
        return self._encode(self._hello)

    def send(self, request: Command | Append, value: T) -> bytes:
        """Encodes a request and registers it as pending. Raises WireError if it cannot be encoded."""
        data = frames_of(request) if isinstance(request, Append) else self._encode(request)
        self.requests.add(request, value)
        return data

    def receive(self, data: Buffer) -> Iterator[tuple[Command, list[T]]]:
        """The replies in the bytes that were read, each with the requests that it answers, oldest first.

        Payloads are valid until the next call. Raises WireError for an invalid frame, and OutOfOrder for a request or a
        Hello with no common version, after yielding the replies before it.
        """
        problem: WireError | None = None
        commands: Sequence[Command]
        try:
            commands = self._decoder.feed(data)
        except WireError as error:
            commands, problem = error.decoded, error
        for command in commands:
            if isinstance(command, Hello):
                if not compatible(command, self._hello):
                    raise OutOfOrder(
                        f"no wire version in common: the store sent {command}, this side {self._hello}",
                        type_name=Hello.type_name,
                    )
                self.peer = command
            elif not (command.is_reply or command.is_failure or isinstance(command, Unknown)):
                raise OutOfOrder("the store sent a request", type_name=command.type_name)
            yield command, self.requests.answered(command)
        if problem is not None:
            raise problem
