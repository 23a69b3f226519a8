"""Entries of revisioned streams: records of a state that processes share, and the watermarks of a stream. Pure.

A record is an int32, 1 followed by an initial state, or 2 followed by updates, each an int32 length and its bytes.

Invariant: records and watermarks round-trip; later revisions of a watermark are ignored. Refused (`ValueError`): other
entries, lengths beyond the data, a time range or a key range that ends before it starts. Follows
`UpdateOrInitSerializer` (Pravega's client), `Watermark` and `SegmentWithRange` (Pravega).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from segstore.wire.versioned import Input, Output, decode_object, encode_object

_INITIAL: Final = 1
_UPDATES: Final = 2


def encode_initial(initial: bytes) -> bytes:
    """Encodes a record with an initial state."""
    return bytes(Output().integer(_INITIAL).data) + initial


def encode_updates(updates: Sequence[bytes]) -> bytes:
    """Encodes a record with updates."""
    record = Output().integer(_UPDATES)
    for update in updates:
        record.integer(len(update)).data += update
    return bytes(record.data)


def decode_record(record: bytes) -> tuple[bytes | None, list[bytes]]:
    """Decodes a record: the initial state, or None and the updates. Raises ValueError."""
    data = Input(record)
    kind = data.integer()
    if kind == _INITIAL:
        return record[data.at :], []
    if kind != _UPDATES:
        raise ValueError(f"a record of unknown kind {kind}, expected 1 or 2")
    updates: list[bytes] = []
    while data.at < len(record):
        updates.append(data.take(data.integer()))
    return None, updates


class MarkedSegment(NamedTuple):
    """A segment in a watermark's cut, with its key range and an offset."""

    segment_id: int
    low: float
    high: float
    offset: int


class Mark(NamedTuple):
    """A watermark: the range of the writers' times when they were at most at a cut."""

    lower: int
    upper: int
    segments: tuple[MarkedSegment, ...]


def encode_mark(mark: Mark) -> bytes:
    """Encodes a watermark as the content of an entry."""
    content = Output().long(mark.lower).long(mark.upper).count(len(mark.segments))
    for segment_id, low, high, offset in mark.segments:
        content.data += encode_object([Output().long(segment_id).range((low, high))])
        content.long(offset)
    return encode_object([content])


def decode_mark(data: bytes) -> Mark:
    """Returns the watermark in an entry. Raises ValueError."""
    content = decode_object(Input(data))[0]
    lower, upper = content.long(), content.long()
    if upper < lower:
        raise ValueError(f"the times from {lower} to {upper} are no range")
    return Mark(lower, upper, tuple(_segment(content) for _ in range(content.count())))


def _segment(content: Input) -> MarkedSegment:
    segment = decode_object(content)[0]
    segment_id, keys = segment.long(), segment.range()
    if segment_id < 0 or keys is None or not keys[0] < keys[1] <= 1:
        raise ValueError(f"segment {segment_id} with the keys {keys} is no segment")
    return MarkedSegment(segment_id, *keys, content.long())
