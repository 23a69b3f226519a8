"""Reads captures, skipping damaged blocks.

Invariant: a capture truncated at any byte yields all whole blocks, and the start and size of the lost rest; after a
damaged block, reading resumes at the next block found by its mark. Refused: a capture of another version
(`TraceVersionError`), bytes that are not a capture (`NotATrace`).

No I/O: functions take the capture as a buffer, such as a memory map, or a function that reads it. Standard library
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.trace.blocks import (
    HEADER_BYTES,
    MAGIC,
    MAX_IN_VAIN,
    BlockHeader,
    BlockType,
    Columns,
    DamagedBlock,
    Metadata,
    Read,
    Record,
    TraceError,
    find_header,
    find_mark,
    read_body,
    read_header,
    read_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from segstore.wire.schema import Buffer


class NotATrace(TraceError):
    """The bytes do not hold a single block of a capture."""


class Block(NamedTuple):
    """One whole block: its offset, header and records; `metadata` for a metadata block, else None."""

    offset: int
    header: BlockHeader
    columns: Columns
    metadata: Metadata | None

    @property
    def size(self) -> int:
        """Number of bytes from this block to the next."""
        return self.header.size


class Damage(NamedTuple):
    """Unreadable bytes of a capture: `size` bytes from `offset`, up to the next block that can be found.

    torn: no such block follows, as at the end of a capture whose recorder was killed.
    """

    offset: int
    size: int
    torn: bool
    reason: str

    def __str__(self) -> str:
        if not self.size:
            return self.reason
        what = "the last block is torn" if self.torn else "a block is damaged"
        return f"{what}: {self.size} bytes at {self.offset} are lost: {self.reason}"


_COMPRESSED: Final = {bytes.fromhex("1f8b"): "gzip", bytes.fromhex("28b52ffd"): "zstd"}
"""First bytes of compressed files, and the programs that read them; reports and Spark decompress them."""


def mark_of(buffer: Buffer) -> bytes | None:
    """Returns the mark of a capture; None if only the start of a header is left. Raises NotATrace."""
    mark = find_mark(_reading(buffer), len(buffer))
    if mark is None:
        first = bytes(buffer[: len(MAGIC)])
        for start, program in _COMPRESSED.items():
            if first.startswith(start):
                raise NotATrace(f"this file is compressed: decompress it with {program} -d")
        if not MAGIC.startswith(first):
            raise NotATrace("this is no capture: there is no block in it (and a fixture starts with a JSON object)")
    return mark


def read_blocks(buffer: Buffer, start: int = 0, *, mark: bytes | None = None) -> Iterator[Block | Damage]:
    """Yields the blocks of a capture in order, with `Damage` in place of unreadable blocks.

    buffer: the whole capture, such as a memory map; blocks hold copies. start: the first block yielded is the first
    whose header starts here or later. mark: the capture's mark, if known. Raises NotATrace, TraceVersionError.
    """
    end, read = len(buffer), _reading(buffer)
    mark = mark or mark_of(buffer)
    if mark is not None:
        yield from blocks_between(read, mark, find_header(read, mark, start, end) if start else 0, end, end)
    elif start == 0:
        yield Damage(0, end, True, "not one block is whole" if end else "the file is empty")


def _reading(buffer: Any) -> Read:
    return lambda offset, size: bytes(buffer[offset : offset + size])


def blocks_between(
    read: Read, mark: bytes, start: int, stop: int, end: int, takes_block: Callable[[BlockHeader], bool] | None = None
) -> Iterator[Block | Damage]:
    """Yields the blocks whose headers are from `start` to before `stop`; the last one may reach up to `end`.

    takes_block: decides by its header whether the records of a block are wanted; other blocks come without records.
    Raises TraceVersionError.
    """
    at, in_vain = start, 0
    while at < stop:
        try:
            header = read_header(read(at, min(HEADER_BYTES, end - at)), 0, mark)
            body_bytes = min(header.stored, end - at)
            in_vain += body_bytes
            block = _block(read, at, end, header, takes_block)
        except DamagedBlock as error:
            from_ = at + 1 if in_vain <= MAX_IN_VAIN * (stop - start) else stop
            following = find_header(read, mark, from_, end)
            yield Damage(at, following - at, following == end, error.message)
            at = following
        else:
            in_vain -= body_bytes
            yield block
            at += header.size


def _block(
    read: Read, at: int, end: int, header: BlockHeader, takes_block: Callable[[BlockHeader], bool] | None
) -> Block:
    """Reads the block with this header."""
    if takes_block is not None and header.type == BlockType.RECORDS and not takes_block(header):
        return Block(at, header, Columns(b"", 0), None)
    body = read_body(read(at, min(HEADER_BYTES + header.stored, end - at)), 0, header)
    if header.type == BlockType.RECORDS:
        return Block(at, header, Columns(body, header.records), None)
    if header.type == BlockType.METADATA:
        return Block(at, header, Columns(b"", 0), read_metadata(body))
    raise DamagedBlock(f"there is no block type {header.type}", offset=at, actual=header.type)


def read_records(buffer: Buffer) -> Iterator[Record | Damage]:
    """Yields all records of a capture in order, with `Damage` for unreadable parts. Raises as `read_blocks`."""
    for block in read_blocks(buffer):
        if isinstance(block, Damage):
            yield block
        else:
            yield from block.columns
