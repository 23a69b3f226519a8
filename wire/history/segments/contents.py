"""The contents of a segment, put together from reads: the offsets and hashes of its events.

Reads are cut anywhere, overlap, and come from several readers. Events are found by their headers, from a place where
an event is known to start: offset 0, the end of an event, or, once all records are seen, a length that a store named.

Invariants: an event counts as read when all its bytes are, by reads that follow each other. Payloads are not held,
except for the last event of a read until it is whole. Events are hashed by `hash`: all folds of a key run in one
process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.history.facts import Place

MOST_EVENT_BYTES: Final = 1 << 28
"""A longer event counts as bytes that are no event."""
_MOST_RESTS: Final = 16
_RECORD_BITS: Final = 40
"""Bits of the number of a record."""
_RECORD_MASK: Final = (1 << _RECORD_BITS) - 1
_length: Final = Struct(">q")
"""The header of an event: the type, which is 0, and the length of the payload, as one number."""


def hashes_of(data: bytes) -> list[int] | None:
    """Returns the hashes of the payloads of whole events; None if the bytes are not whole events."""
    size = len(data)
    if size >= EVENT_HEADER_BYTES and _length.unpack_from(data)[0] == size - EVENT_HEADER_BYTES:  # nearly always
        return [hash(data[EVENT_HEADER_BYTES:])]
    hashes: list[int] = []
    end = _split(data, 0, [], hashes)[0]
    return hashes if end == size and hashes else None


def end_of(data: bytes, count: int) -> int:
    """Returns where the first `count` events end; there are as many."""
    at = 0
    for _ in range(count):
        at += EVENT_HEADER_BYTES + int(_length.unpack_from(data, at)[0])
    return at


def _split(data: bytes, base: int, offsets: list[int], hashes: list[int]) -> tuple[int, int]:
    """Adds offset and hash of each whole event; returns where they end, and the bytes that the next event needs.

    The bytes are 0 if no event starts there, or if it is longer than events can be.
    """
    unpack, add_offset, add_hash = _length.unpack_from, offsets.append, hashes.append
    at, size = 0, len(data)
    last = size - EVENT_HEADER_BYTES
    while at <= last:
        (length,) = unpack(data, at)
        if not 0 <= length <= MOST_EVENT_BYTES:
            return at, 0
        start = at + EVENT_HEADER_BYTES
        stop = start + length
        if stop > size:
            return at, stop - at
        add_offset(base + at)
        add_hash(hash(data[start:stop]))
        at = stop
    return at, EVENT_HEADER_BYTES


class PlaceList:
    """Places, in 24 bytes per place."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], int] = {}
        """File and connection → their index in `_names`."""
        self._names: list[tuple[str, int]] = []
        self._times, self._blocks, self._records = array("q"), array("q"), array("q")

    def add(self, place: Place) -> int:
        """Adds a place; returns its index."""
        file, block, record, connection, time_ns = place
        source = self._sources.get((file, connection))
        if source is None:
            source = self._sources[file, connection] = len(self._names)
            self._names.append((file, connection))
        self._times.append(time_ns)
        self._blocks.append(block)
        self._records.append(source << _RECORD_BITS | record)
        return len(self._times) - 1

    def __getitem__(self, index: int) -> Place:
        number = self._records[index]
        file, connection = self._names[number >> _RECORD_BITS]
        return Place(file, self._blocks[index], number & _RECORD_MASK, connection, self._times[index])


class ReadSpan:
    """Events that were read without a hole. reads, places: offsets, and the reads that brought the bytes from there."""

    __slots__ = ("end", "hashes", "offsets", "places", "reads", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.offsets, self.hashes = array("q"), array("q")
        self.reads, self.places = array("q"), array("q")

    def add(self, offsets: list[int], hashes: list[int], end: int, place: int) -> None:
        self.offsets.extend(offsets)
        self.hashes.extend(hashes)
        self.reads.append(self.end)
        self.places.append(place)
        self.end = end

    def join(self, follower: ReadSpan) -> None:
        """Adds the span that starts at the end of this one."""
        for name in ("offsets", "hashes", "reads", "places"):
            getattr(self, name).extend(getattr(follower, name))
        self.end = follower.end

    def read_of(self, offset: int) -> int:
        """Returns the place of the first read that completed the event at an offset."""
        return self.places[bisect_right(self.reads, offset) - 1]


class _Rest(NamedTuple):
    """The beginning of an event that is not whole. needed: bytes that make it whole, or its header."""

    start: int
    parts: list[bytes]
    size: int
    needed: int


class Contents:
    """The contents of one segment, as far as they were read.

    Attributes:
        spans: by their starts. A span that starts neither at 0 nor at a known place may be cut wrongly: see `certain`.
        foreign: offsets at which no event starts although the event before ends there → the place of the read.
    """

    def __init__(self) -> None:
        self.spans: list[ReadSpan] = []
        self.foreign: dict[int, int] = {}
        self._starts: list[int] = []
        self._rests: dict[int, _Rest] = {}
        """The end of a read → the beginning of the event that it cuts."""

    def read(self, offset: int, data: bytes, place: int) -> tuple[int, int] | None:
        """Takes bytes that were read.

        Returns the offset of the first event that differs from what an earlier read showed there, and the place of that
        read; None if all agree.
        """
        end = offset + len(data)
        rest = self._rests.pop(offset, None)
        if rest is not None:
            rest.parts.append(data)
            size = rest.size + len(data)
            if size < rest.needed:
                self._hold(end, rest._replace(size=size))
                return None
            offset, data = rest.start, b"".join(rest.parts)
        elif (span := self._span(offset)) is not None and offset < span.end:
            index = bisect_left(span.offsets, offset)
            start = span.offsets[index] if index < len(span.offsets) else span.end
            data, offset = data[start - offset :], start
        elif any(rest.start < offset < rest.start + rest.size for rest in self._rests.values()):
            return None  # from the middle of an event that another reader has not read to its end
        offsets: list[int] = []
        hashes: list[int] = []
        stop, needed = _split(data, offset, offsets, hashes)
        differing = self._take(offsets, hashes, offset + stop, place) if offsets else None
        if not needed:
            self.foreign.setdefault(offset + stop, place)
        elif stop < len(data):
            self._hold(end, _Rest(offset + stop, [data[stop:]], len(data) - stop, needed))
        return differing

    def unknown_in(self, low: int, high: int) -> list[int]:
        """Returns the offsets in a range at which bytes begin that are no whole event."""
        rests = (rest.start for end, rest in self._rests.items() if end >= high)
        return [offset for offset in (*self.foreign, *rests) if low <= offset < high]

    def _hold(self, end: int, rest: _Rest) -> None:
        self._rests[end] = rest
        if len(self._rests) > _MOST_RESTS:
            del self._rests[next(iter(self._rests))]

    def _span(self, offset: int) -> ReadSpan | None:
        index = bisect_right(self._starts, offset) - 1
        return self.spans[index] if index >= 0 and offset <= self.spans[index].end else None

    def _take(self, offsets: list[int], hashes: list[int], end: int, place: int) -> tuple[int, int] | None:
        """Takes whole events, which end at `end`. Returns as `read`."""
        at, count = 0, len(offsets)
        while at < count:
            offset = offsets[at]
            span = self._span(offset)
            if span is not None and offset < span.end:  # read before
                index = bisect_left(span.offsets, offset)
                known, held = span.hashes[index : index + count - at], span.offsets[index : index + count - at]
                read, read_at = array("q", hashes[at : at + len(known)]), array("q", offsets[at : at + len(known)])
                if not known or held[0] != offset:  # either read began in the middle of an event
                    return None
                if known != read or held != read_at:
                    events = zip(read_at, known, read, strict=True)
                    return next(((start, span.read_of(start)) for start, old, new in events if old != new), None)
                at += len(known)
                continue
            if span is None:
                span = ReadSpan(offset)
                index = bisect_right(self._starts, offset)
                self._starts.insert(index, offset)
                self.spans.insert(index, span)
            index = bisect_right(self._starts, span.start)
            follower = self.spans[index] if index < len(self.spans) else None
            upto = count if follower is None else bisect_left(offsets, follower.start, at)
            stop = offsets[upto] if upto < count else end
            span.add(offsets[at:upto], hashes[at:upto], stop, place)
            if follower is not None and stop >= follower.start:
                del self.spans[index], self._starts[index]
                if stop == follower.start:
                    span.join(follower)
            at = upto
        return None

    def certain(self, boundaries: Iterable[Iterable[int]]) -> Iterator[ReadSpan]:
        """Yields the spans that start at offset 0, or at an offset at which an event is known to start."""
        starts = {start for start in self._starts if start}
        known = {0}.union(*(starts.intersection(offsets) for offsets in boundaries)) if starts else {0}
        return (span for span in self.spans if span.start in known)
