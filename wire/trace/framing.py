"""Finds the frames in the bytes of recorded connections, without decoding them.

A header has the type code and the length of what follows, so frames are found by hopping from header to header. Where a
stream does not go on with a plain whole frame, the caller takes over. Frames that were found are counted only: their
columns are made when somebody reads them.
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
_NUMBERS: Final = struct.Struct("=qqq")
NUMBERS_BYTES: Final = _NUMBERS.size

numbers = _NUMBERS.pack
"""Returns three int64 of this machine: a time in ns, a stream (`connection << 1 | direction`), and a third number.

In pieces, which lie one behind the other in a buffer, it is the position where a piece ends. In runs it is how many
frames of the stream were completed at this time.
"""
numbers_at = _NUMBERS.unpack_from


def marked(codes: Collection[int]) -> bytes:
    """Returns a table by the lowest byte of type codes, for `whole_frames`: 1 where one of these codes has it."""
    lowest = {code % _CODES for code in codes}
    return bytes(each in lowest for each in range(_CODES))


@or_in_c()
def whole_frames(
    data: Buffer, pieces: Buffer, index: int, at: int, max_body: int, looked_at: bytes, held: dict[int, Any]
) -> tuple[int, int, int, int, int, bytes]:
    """Finds whole frames in the pieces from `index` on, in the first one from position `at` of `data` on.

    It stops at a piece whose stream is in `held`, and at a frame that is incomplete, has a length outside of
    0 … `max_body`, or a type code whose lowest byte is marked in `looked_at`.

    Returns the index of the piece and the position where it stopped, the number of frames, the earliest and the latest
    time, and runs: pieces and runs are as `numbers` makes them.
    """
    count = first_ns = last_ns = 0
    runs = bytearray()
    while index < len(pieces) // NUMBERS_BYTES:
        ts_ns, stream, stop = numbers_at(pieces, index * NUMBERS_BYTES)
        if stream in held:
            break
        found = 0
        while stop - at >= HEADER_BYTES:
            code, length = _read_header(data, at)
            if not 0 <= length <= min(max_body, stop - at - HEADER_BYTES) or looked_at[code % _CODES]:
                break
            at += HEADER_BYTES + length
            found += 1
        if found:
            runs += numbers(ts_ns, stream, found)
            first_ns, last_ns = (min(first_ns, ts_ns), max(last_ns, ts_ns)) if count else (ts_ns, ts_ns)
            count += found
        if at < stop:
            break
        index += 1
    return index, at, count, first_ns, last_ns, bytes(runs)


@or_in_c()
def columns_of_frames(data: Buffer, at: int, shift: int, runs: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns columns of the frames of runs, which lie one behind the other from position `at` of `data` on.

    These are times, connections, ends plus `shift` (int64 of this machine), and directions (a byte each). Raises
    ValueError if there are fewer frames.
    """
    times, connections, ends, directions = array("q"), array("q"), array("q"), bytearray()
    for ts_ns, stream, count in _NUMBERS.iter_unpack(runs):
        for _ in range(count):
            length = _read_header(data, at)[1] if len(data) - at >= HEADER_BYTES else -1
            if not 0 <= length <= len(data) - at - HEADER_BYTES:
                raise ValueError(f"no whole frame is at {at} of {len(data)} bytes")
            at += HEADER_BYTES + length
            ends.append(at + shift)
        times.extend([ts_ns] * count)
        connections.extend([stream >> 1] * count)
        directions += bytes((stream & 1,)) * count
    return times.tobytes(), connections.tobytes(), ends.tobytes(), bytes(directions)


@or_in_c()
def copy_into(memory: memoryview, at: int, data: Buffer) -> None:
    """Copies bytes that are not read soon into memory, to position `at`. C writes them past the processor's cache."""
    memory[at : at + len(data)] = data
