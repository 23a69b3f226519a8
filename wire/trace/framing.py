"""Finds the frames in the bytes of recorded connections, without decoding them.

A header has the type code and the length of what follows, so frames are found by hopping from header to header. Where a
stream does not go on with a plain whole frame, the caller takes over.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.codec import HEADER_BYTES, or_in_c

if TYPE_CHECKING:
    from collections.abc import Collection

    from segstore.wire.schema import Buffer

_read_header = struct.Struct(">ii").unpack_from
_CODES: Final = 256


Piece = tuple[int, int, int, "Buffer", int, int]
"""Bytes that arrived together: time in ns, connection, direction, and where they are, from one position to another."""


def marked(codes: Collection[int]) -> bytes:
    """Returns a table by the lowest byte of type codes, for `whole_frames`: 1 where one of these codes has it."""
    lowest = {code % _CODES for code in codes}
    return bytes(each in lowest for each in range(_CODES))


@or_in_c()
def whole_frames(
    data: Buffer,
    pieces: list[Piece],
    index: int,
    at: int,
    shift: int,
    max_body: int,
    looked_at: bytes,
    held: dict[int, Any],
) -> tuple[int, int, int, int, int, bytes, bytes, bytes, bytes]:
    """Finds whole frames, in the pieces from `index` on, in the first one from position `at` of `data` on.

    It stops at a piece that is not behind the one before in `data`, or whose
    direction (`connection << 1 | direction`) is in `held`; and at a frame that is incomplete, has a length outside of
    0 … `max_body`, or a type code whose lowest byte is marked in `looked_at`.

    Returns the index of the piece and the position in it where it stopped; the size of the frames; the earliest and the
    latest time; and columns, as bytes: times, connections, ends plus `shift` (each int64 of this machine), directions
    (a byte each).
    """
    begin, size = at, 0
    first_ns = last_ns = 0
    times, connections, ends, directions = array("q"), array("q"), array("q"), bytearray()
    for number in range(index, len(pieces)):
        ts_ns, connection, direction, source, start, stop = pieces[number]
        if source is not data or (number != index and start != at):
            index, at = number, start
            break
        if held and connection << 1 | direction in held:
            index = number
            break
        already = len(ends)
        while stop - at >= HEADER_BYTES:
            code, length = _read_header(data, at)
            if not 0 <= length <= min(max_body, stop - at - HEADER_BYTES) or looked_at[code % _CODES]:
                break
            at += HEADER_BYTES + length
            ends.append(at + shift)
            size = at - begin
        if count := len(ends) - already:
            first_ns, last_ns = (min(first_ns, ts_ns), max(last_ns, ts_ns)) if already else (ts_ns, ts_ns)
            times.extend([ts_ns] * count)
            connections.extend([connection] * count)
            directions += bytes((direction,)) * count
        if at < stop:
            index = number
            break
    else:
        index = len(pieces)
    columns = times.tobytes(), connections.tobytes(), ends.tobytes(), bytes(directions)
    return index, at, size, first_ns, last_ns, *columns
