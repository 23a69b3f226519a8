"""Finds the frames in the bytes of recorded connections, without decoding them.

A header has the type code and the length of the body, so frames are found by hopping from header to header. Where no
plain whole frame follows, the caller takes over. Only the sizes of frames are kept: the columns of a block are made
from them when it is read or written.
"""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from segstore.wire.codec import HEADER_BYTES, or_in_c
from segstore.wire.commands import AppendBlock, Padding

if TYPE_CHECKING:
    from collections.abc import Collection

    from segstore.wire.schema import Buffer

_read_header = struct.Struct(">ii").unpack_from
_CODES: Final = 256
_NUMBERS: Final = struct.Struct("=qqq")
NUMBERS_BYTES: Final = _NUMBERS.size
SIZE_BYTES: Final = 4

numbers = _NUMBERS.pack
"""Returns a run, three int64 of this machine: a time in ns, a stream (`connection << 1 | direction`), and how many
frames of it were completed at this time."""
size_of_frame = struct.Struct("=i").pack
"""Returns the size of a frame as `whole_frames` does: int32 of this machine."""


_LOOKED_AT, _PART = 1, 2
_PARTS: Final = frozenset({AppendBlock.code % _CODES, Padding.code % _CODES})


def is_request(code: int) -> bool:
    """Whether a frame from a client is a request by itself: blocks of appends and padding are none.

    As `whole_frames`, it looks at the lowest byte of the type code only.
    """
    return code % _CODES not in _PARTS


def marked(codes: Collection[int]) -> bytes:
    """Returns a table by the lowest byte of type codes, for `whole_frames`, which stops at frames with these codes."""
    lowest = {code % _CODES for code in codes}
    return bytes(_LOOKED_AT * (code in lowest) | _PART * (code in _PARTS) for code in range(_CODES))


@or_in_c
def whole_frames(data: Buffer, at: int, max_body: int, looked_at: bytes) -> tuple[int, bytes, int]:
    """Finds whole frames in the data of a stream from a position on.

    It stops at a frame that is incomplete, has a length outside of 0 … `max_body`, or a type code that is to be looked
    at by the table from `marked`. Returns the position where it stopped, the sizes of the frames, int32 of this
    machine, and how many of the frames are requests, if they come from a client.
    """
    sizes, stop, requests = array("i"), len(data), 0
    while stop - at >= HEADER_BYTES:
        code, length = _read_header(data, at)
        mark = looked_at[code % _CODES]
        if not 0 <= length <= min(max_body, stop - at - HEADER_BYTES) or mark & _LOOKED_AT:
            break
        sizes.append(HEADER_BYTES + length)
        requests += mark < _PART
        at += HEADER_BYTES + length
    return at, sizes.tobytes(), requests


@or_in_c
def frames_into(columns: bytearray | memoryview, records: int, row: int, start: int, runs: bytes, sizes: bytes) -> None:
    """Writes frames, whose data begins at `start`, into the columns of a block of `records`, from `row` on.

    runs: from `numbers`. sizes: of all their frames, from `whole_frames`.
    """
    count = len(sizes) // SIZE_BYTES
    frames = [(ts_ns, stream) for ts_ns, stream, number in _NUMBERS.iter_unpack(runs) for _ in range(number)]
    ends = tuple(accumulate(array("i", sizes), initial=start))[1:]
    for column, numbers in enumerate(([ts_ns for ts_ns, _ in frames], [stream >> 1 for _, stream in frames], ends)):
        struct.pack_into(f"<{count}q", columns, 8 * (column * records + row), *numbers)
    columns[24 * records + row : 24 * records + row + count] = bytes([stream & 1 for _, stream in frames])
    columns[25 * records + row : 25 * records + row + count] = bytes(count)
