"""Finds the frames in the bytes of recorded connections, without decoding them.

A header has the type code and the length of what follows, so frames are found by hopping from header to header. Where a
stream does not go on with a plain whole frame, the caller takes over. Of frames that were found, the sizes are kept:
the columns of a block are made of them when it is read or written.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from segstore.wire.codec import HEADER_BYTES, or_in_c

if TYPE_CHECKING:
    from collections.abc import Collection

    from segstore.wire.schema import Buffer

_read_header = struct.Struct(">ii").unpack_from
_CODES: Final = 256
_NUMBERS: Final = struct.Struct("=qqq")
NUMBERS_BYTES: Final = _NUMBERS.size
SIZE_BYTES: Final = 4

numbers = _NUMBERS.pack
"""Returns three int64 of this machine: a time in ns, a stream (`connection << 1 | direction`), and a third number.

In pieces, which lie one behind the other in a buffer, it is the position where a piece ends. In runs it is how many
frames of the stream were completed at this time.
"""
numbers_at = _NUMBERS.unpack_from
size_of_frame = struct.Struct("=i").pack
"""Returns the size of a frame as `whole_frames` does: int32 of this machine."""


def marked(codes: Collection[int]) -> bytes:
    """Returns a table by the lowest byte of type codes, for `whole_frames`: 1 where one of these codes has it."""
    lowest = {code % _CODES for code in codes}
    return bytes(each in lowest for each in range(_CODES))


@or_in_c()
def whole_frames(
    data: Buffer, pieces: Buffer, index: int, at: int, max_body: int, looked_at: bytes, held: dict[int, Any]
) -> tuple[int, int, int, int, bytes, bytes]:
    """Finds whole frames in the pieces from `index` on, in the first one from position `at` of `data` on.

    It stops at a piece whose stream is in `held`, and at a frame that is incomplete, has a length outside of
    0 … `max_body`, or a type code whose lowest byte is marked in `looked_at`.

    Returns the index of the piece and the position where it stopped, the earliest and the latest time, and runs and
    sizes: pieces and runs are as `numbers` makes them; sizes are those of the frames, int32 of this machine.
    """
    first_ns = last_ns = 0
    runs, sizes = bytearray(), array("i")
    while index < len(pieces) // NUMBERS_BYTES:
        ts_ns, stream, stop = numbers_at(pieces, index * NUMBERS_BYTES)
        if stream in held:
            break
        before = len(sizes)
        while stop - at >= HEADER_BYTES:
            code, length = _read_header(data, at)
            if not 0 <= length <= min(max_body, stop - at - HEADER_BYTES) or looked_at[code % _CODES]:
                break
            sizes.append(HEADER_BYTES + length)
            at += HEADER_BYTES + length
        if len(sizes) > before:
            first_ns, last_ns = (min(first_ns, ts_ns), max(last_ns, ts_ns)) if runs else (ts_ns, ts_ns)
            runs += numbers(ts_ns, stream, len(sizes) - before)
        if at < stop:
            break
        index += 1
    return index, at, first_ns, last_ns, bytes(runs), sizes.tobytes()


@or_in_c()
def frames_into(columns: bytearray | memoryview, records: int, row: int, start: int, runs: bytes, sizes: bytes) -> None:
    """Writes frames, whose data begins at `start`, into the columns of a block of `records`, from `row` on.

    runs, sizes: from `whole_frames`.
    """
    count = len(sizes) // SIZE_BYTES
    found = [(ts_ns, stream) for ts_ns, stream, number in _NUMBERS.iter_unpack(runs) for _ in range(number)]
    ends = tuple(accumulate(array("i", sizes), initial=start))[1:]
    for column, numbers in enumerate(([ts_ns for ts_ns, _ in found], [stream >> 1 for _, stream in found], ends)):
        struct.pack_into(f"<{count}q", columns, 8 * (column * records + row), *numbers)
    columns[24 * records + row : 24 * records + row + count] = bytes([stream & 1 for _, stream in found])
    columns[25 * records + row : 25 * records + row + count] = bytes(count)


@or_in_c()
def copy_into(memory: memoryview, at: int, data: Buffer) -> None:
    """Copies bytes into memory, to position `at`. C writes many of them past the processor's cache."""
    memory[at : at + len(data)] = data


@or_in_c()
def add_piece(memory: memoryview, at: int, data: Buffer, pieces: bytearray, ts_ns: int, stream: int) -> int:
    """As `copy_into`, and adds a piece to `pieces`; returns where it ends."""
    stop = at + len(data)
    memory[at:stop] = data
    pieces += numbers(ts_ns, stream, stop)
    return stop
