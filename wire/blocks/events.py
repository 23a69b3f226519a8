"""Events in the bytes of a segment: each behind a header with type 0 and its length. Pure."""

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, TypeVar

from segstore.wire.codec import or_in_c
from segstore.wire.commands import Event
from segstore.wire.schema import Buffer

E = TypeVar("E")

EVENT_HEADER_BYTES: Final = 8
_LARGE_BYTES: Final = 4096
"""From this size, passing an event on by reference is cheaper than copying it."""
_header = struct.Struct(">ii")


def frame_header(length: int) -> bytes:
    """Returns the header of an event of the given length."""
    return _header.pack(Event.code, length)


def framed(events: list[Buffer]) -> list[Buffer]:
    """Returns the events as they are stored, each behind its header. Small events are copied into one buffer."""
    headers = {length: frame_header(length) for length in set(map(len, events))}
    if len(headers) == 1 and len(events) > 1:  # nearly always: one call of `join` for all events
        ((length, header),) = headers.items()
        if length < _LARGE_BYTES:
            return [header + header.join(events)]
    parts = chain.from_iterable(zip(map(headers.__getitem__, map(len, events)), events, strict=True))
    return list(parts) if max(headers) >= _LARGE_BYTES else [b"".join(parts)]


@or_in_c
def split_events(
    data: Buffer, start: int, limit: int, base: int, make: Callable[[bytes, int, Any], E], where: Any, out: list[E]
) -> int:
    """Adds what `make` returns for each whole event from `start` on to `out`; returns where that ends.

    It ends before an event that is not whole, or not one of at most `limit` bytes. data: bytes, or a contiguous view of
    bytes. base: the offset of `data`.
    """
    at, end = start, len(data)
    while end - at >= EVENT_HEADER_BYTES:
        kind, length = _header.unpack_from(data, at)
        stop = at + EVENT_HEADER_BYTES + length
        if kind != Event.code or not 0 <= length <= limit or stop > end:
            break
        out.append(make(bytes(data[at + EVENT_HEADER_BYTES : stop]), base + at, where))
        at = stop
    return at
