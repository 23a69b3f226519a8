"""The framing of events in a segment: type 0, length, payload. Pure.

Invariant: the decoder's memory grows with the bytes that came, not with a length that was announced. Refused: a type
other than 0, a negative length, an event above the limit. Follows `EventSegmentReaderImpl` (Pravega's client).
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
"""After so many events of one length in a row more are looked for."""
_header = struct.Struct(">ii")


E = TypeVar("E")
W = TypeVar("W")


class FramedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, where its header starts in the segment, and the segment."""

    data: bytes
    offset: int
    segment: str


def frame_header(length: int) -> bytes:
    """What stands before an event of so many bytes."""
    return _header.pack(0, length)


def frame_event(event: bytes) -> bytes:
    """The event as its segment holds it. Raises TypeError for what is no bytes."""
    try:
        return _header.pack(0, len(event)) + event
    except TypeError as error:
        raise TypeError(f"an event is bytes, not {type(event).__name__}") from error


class EventAssembler(Generic[E]):
    """Events of one segment, from chunks that follow one another.

    Attributes:
        offset: where the next event starts.
    """

    __slots__ = ("_held", "_limit", "_make", "_need", "_pieces", "_segment", "_where", "offset")

    def __init__(
        self, segment: str, offset: int, limit_bytes: int, make: Callable[[bytes, int, W], E], where: W
    ) -> None:
        """make: is given an event's bytes, where its header starts, and `where`; returns what `feed` is to give."""
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
        """Whether the beginning of an event is held."""
        return self._held > 0

    def feed(self, data: bytes) -> list[E]:
        """Takes the next bytes; returns the events that are complete. Raises EventTooLarge, ProtocolViolation."""
        make, where = self._make, self._where
        out: list[E] = []
        if self._held:
            missing = self._need - self._held
            if len(data) < missing:
                self._hold(data)
                return []
            if self._need > EVENT_HEADER_BYTES:  # the event that was begun: copied once, however large it is
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
        """Takes the events of this length that follow, which is cheaper together; returns where another begins."""
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
        """Keeps a part of an event; small parts are put together, so that they cost no more than they hold."""
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
                f"{self._segment} holds no event at {offset}: type {kind}, length {length}",
                segment=self._segment,
                offset=offset,
            )
        raise EventTooLarge(
            f"the event at {offset} of {self._segment} has {length} bytes, {self._limit} are allowed",
            segment=self._segment,
            limit=self._limit,
            actual=length,
            offset=offset,
        )


class EventDecoder(EventAssembler[FramedEvent]):
    """An assembler of events that name their segment."""

    __slots__ = ()

    def __init__(self, segment: str, offset: int, limit_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(segment, offset, limit_bytes, FramedEvent, segment)
