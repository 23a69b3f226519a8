"""Whole appends of one size that follow each other, as rows of fields: no value is made for a frame or a writer's id.

A whole append is an AppendBlock and the AppendBlockEnd right behind it, which says that the block was all whole events
and has no data of its own: what `framing.WholeAppend` is as one value. Nearly all appends travel so, and where many
writers have few in flight their frames make up a whole read.

Rows are read without a look at what they are: who takes one first compares what is the same in all of them. At the
first that differs the rows end for it, and the frame decoder goes on there, which knows everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from segstore.wire.commands import AppendBlock, AppendBlockEnd, DataAppended

LARGEST_BYTES: Final = 4096
"""Data of more bytes is better viewed than copied, so it is in no row."""

AppendRow = tuple[bytes, bytes, bytes, bytes, bytes, bytes, int, int, int]
"""The block's header, the writer's id, the data, the end's header, its writer's id, its sizes, how many events, the
number of the last, the request id."""

_HEADER: Final = Struct(">ii")
_WRITER: Final = Struct(">ii16s")
_SIZES: Final = Struct(">ii")
_ACK: Final = Struct(">24sqqqq")
_END: Final = Struct(">8s16s8siqq")
END_HEADER: Final = _HEADER.pack(AppendBlockEnd.code, _END.size - _HEADER.size)
"""Of the end of any whole append."""
_read_header = _HEADER.unpack_from


class AppendRows(NamedTuple):
    """Rows, each of `size` bytes, of a read. One is a whole append if it has this `header`, `END_HEADER`, these `sizes`
    and one writer's id twice.
    """

    header: bytes
    sizes: bytes
    size: int
    rows: Iterator[AppendRow]


def append_rows(view: memoryview, start: int, end: int, limit: int) -> AppendRows | None:
    """What lies between `start` and `end` as rows of the size of the append at `start`; None if no whole one is there.

    limit: the longest body that a frame may have.
    """
    if end - start < _WRITER.size + _END.size:
        return None
    code, length = _read_header(view, start)
    if code != AppendBlock.code or not 16 <= length <= min(limit, LARGEST_BYTES) or limit < _END.size - _HEADER.size:
        return None
    layout, header, sizes = _of_length(length)
    size = layout.size
    count = (end - start) // size
    if not count:
        return None
    return AppendRows(header, sizes, size, layout.iter_unpack(view[start : start + count * size]))


@lru_cache(maxsize=1024)
def _of_length(length: int) -> tuple[Struct, bytes, bytes]:
    size = length - 16
    layout = Struct(f">8s16s{size}s8s16s8siqq")
    return layout, _HEADER.pack(AppendBlock.code, length), _SIZES.pack(size, 0)


def acknowledgement_head(writer_id: bytes) -> bytes:
    """With what a writer's DataAppended begins."""
    return _WRITER.pack(DataAppended.code, _ACK.size - _HEADER.size, writer_id)


acknowledgement: Final = _ACK.pack
"""A DataAppended's frame from its head, number, number before, request id and length of the segment."""
