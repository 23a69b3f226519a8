"""The framing of events in a segment: type 0, length, payload. Pure.

Invariant: the decoder's memory grows with the bytes received, not with the declared length. Refused: a type other than
0, a negative length, an event above the limit. Follows `EventSegmentReaderImpl` (Pravega's client).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import repeat
from typing import Final, Generic, TypeVar

import msgspec

from segstore.client.errors import EventTooLarge, ProtocolViolation

EVENT_HEADER_BYTES: Final = 8
MAX_EVENT_BYTES: Final = 1 << 30
_PIECE_BYTES: Final = 65_536
_ALIKE: Final = 8
"""After this many consecutive events of one length, further ones are decoded together."""
_header = struct.Struct(">ii")


E = TypeVar("E")
W = TypeVar("W")


class FramedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, the offset of its header, and its segment."""

    data: bytes
    offset: int
    segment: str


def frame_header(length: int) -> bytes:
    """Returns the header of an event of the given length."""
    return _header.pack(0, length)


def frame_event(event: bytes) -> bytes:
    """Returns the event with its header. Raises TypeError if it is not bytes."""
    try:
        return _header.pack(0, len(event)) + event
    except TypeError as error:
        raise TypeError(f"an event must be bytes, not {type(event).__name__}") from error


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
        self._pieces: list[bytes | bytearray] = []
        self._held = 0
        self._need = EVENT_HEADER_BYTES
        self.offset = offset

    @property
    def partial(self) -> bool:
        """Whether the start of an incomplete event is buffered."""
        return self._held > 0

    def feed(self, data: bytes) -> list[E]:
        """Takes the next bytes; returns the events they complete. Raises EventTooLarge, ProtocolViolation."""
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
        at, end, base = 0, len(data), self.offset
        unpack_from = _header.unpack_from
        limit, last, alike = self._limit, -1, 0
        while end - at >= EVENT_HEADER_BYTES:
            kind, length = unpack_from(data, at)
            if kind != 0 or not 0 <= length <= limit:
                self._refuse(kind, length, base + at)
            start = at + EVENT_HEADER_BYTES
            stop = start + length
            if stop > end:
                self._need = EVENT_HEADER_BYTES + length
                break
            out.append(make(data[start:stop], base + at, where))
            at = stop
            alike = alike + 1 if length == last else 0
            last = length
            if alike >= _ALIKE:
                at, alike = self._alike(data, at, length, out), 0
        else:
            self._need = EVENT_HEADER_BYTES
        self.offset = base + at
        if at < end:
            self._hold(data[at:])
        return out

    def _alike(self, data: bytes, at: int, length: int, out: list[E]) -> int:
        """Decodes a run of events of the same length together, which is cheaper; returns where the run ends."""
        step, header = EVENT_HEADER_BYTES + length, frame_header(length)
        whole = memoryview(data)[at : at + (len(data) - at) // step * step]
        events: list[bytes] = []
        for found, event in struct.iter_unpack(f"{EVENT_HEADER_BYTES}s{length}s", whole):
            if found != header:
                break
            events.append(event)
        begin, stop = self.offset + at, at + len(events) * step
        out += map(self._make, events, range(begin, self.offset + stop, step), repeat(self._where))
        return stop

    def _hold(self, data: bytes) -> None:
        """Buffers a part of an event; joins small parts to bound the overhead per part."""
        self._held += len(data)
        if len(data) >= _PIECE_BYTES:
            self._pieces.append(data)
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
