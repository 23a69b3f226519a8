"""The framing of events in a segment: type 0, length, payload. Pure.

Invariant: the decoder's memory grows with the bytes received, not with the declared length. Refused: a type other than
0, a negative length, an event above the limit. Follows `EventSegmentReaderImpl` (Pravega's client).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from segstore.client.errors import EventTooLarge, ProtocolViolation
from segstore.wire import Buffer
from segstore.wire.blocks import EVENT_HEADER_BYTES, frame_header, split_events

MAX_EVENT_BYTES: Final = 1 << 30
_PIECE_BYTES: Final = 65_536
_header = struct.Struct(">ii")


E = TypeVar("E")
W = TypeVar("W")


class FramedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, the offset of its header, and its segment."""

    data: bytes
    offset: int
    segment: str


class StreamEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, the offset of its header, and the id of its segment."""

    data: bytes
    offset: int
    segment_id: int


def whole_event(event: Buffer) -> bytes:
    """Returns the event, a copy if it is not bytes. Raises TypeError if it is not a buffer."""
    if type(event) is bytes:
        return event
    try:
        return bytes(memoryview(event))
    except TypeError as error:
        raise TypeError(f"an event must be bytes, not {type(event).__name__}") from error


def frame_event(event: bytes) -> bytes:
    """Returns the event with its header."""
    return frame_header(len(event)) + event


class EventAssembler(Generic[E]):
    """Assembles the events of one segment from consecutive chunks.

    Attributes:
        offset: offset of the next event's header.
    """

    __slots__ = ("_held", "_limit", "_make", "_need", "_pieces", "_segment", "_where", "offset")

    def __init__(
        self, segment: str, offset: int, limit_bytes: int, make: Callable[[bytes, int, W], E], where: W
    ) -> None:
        """make: called with an event's bytes, its header's offset, and `where`; returns an item for `feed`."""
        self._segment = segment
        self._limit = limit_bytes
        self._make = make
        self._where = where
        self._pieces: list[Buffer] = []
        self._held = 0
        self._need = EVENT_HEADER_BYTES
        self.offset = offset

    @property
    def partial(self) -> bool:
        """Whether the start of an incomplete event is buffered."""
        return self._held > 0

    def feed(self, data: Buffer) -> list[E]:
        """Takes the next bytes; returns the events they complete. Raises EventTooLarge, ProtocolViolation.

        All of `data` may be held, so it must not change; a part of it is copied.
        """
        make, where = self._make, self._where
        out: list[E] = []
        if self._held:
            missing = self._need - self._held
            if len(data) < missing:
                self._hold(data)
                return []
            if self._need > EVENT_HEADER_BYTES:  # incomplete event: copied once, however large
                first, *others = self._pieces
                pieces = [memoryview(first)[EVENT_HEADER_BYTES:], *others, memoryview(data)[:missing]]
                out.append(make(b"".join(pieces), self.offset, where))
                data = data[missing:]
                self.offset += self._need
            else:
                data = b"".join([*self._pieces, data])
            self._pieces, self._held = [], 0
        at = split_events(data, 0, self._limit, self.offset, make, where, out)
        self._need = EVENT_HEADER_BYTES
        if len(data) - at >= EVENT_HEADER_BYTES:
            kind, length = _header.unpack_from(data, at)
            if kind != 0 or not 0 <= length <= self._limit:
                self._refuse(kind, length, self.offset + at)
            self._need += length
        self.offset += at
        if at < len(data):
            self._hold(bytes(data[at:]))
        return out

    def _hold(self, data: Buffer) -> None:
        """Buffers a part of an event; joins small parts to bound the overhead per part."""
        self._held += len(data)
        if len(data) >= _PIECE_BYTES:
            self._pieces.append(memoryview(data))
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += data
        else:
            self._pieces.append(bytearray(data))

    def _refuse(self, kind: int, length: int, offset: int) -> None:
        if kind != 0 or length < 0:
            raise ProtocolViolation(
                f"{self._segment} has no event at {offset}: type {kind}, length {length}",
                segment=self._segment,
                offset=offset,
            )
        raise EventTooLarge(
            f"the event at {offset} of {self._segment} has {length} bytes, the limit is {self._limit}",
            segment=self._segment,
            limit=self._limit,
            actual=length,
            offset=offset,
        )


class EventDecoder(EventAssembler[FramedEvent]):
    """An assembler of `FramedEvent`s."""

    __slots__ = ()

    def __init__(self, segment: str, offset: int, limit_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(segment, offset, limit_bytes, FramedEvent, segment)
