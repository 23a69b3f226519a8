"""Reads captures, skipping damaged blocks.

Invariant: a capture truncated at any byte yields all whole blocks, and the start and size of the lost rest; after a
damaged block, reading resumes at the next block found by its mark. Refused: a capture of another version
(`TraceVersionError`), bytes that are not a capture (`NotATrace`).

No I/O: functions take the capture as a buffer, such as a memory map. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.trace.blocks import (
    MAGIC,
    MAX_IN_VAIN,
    BlockHeader,
    BlockType,
    Columns,
    DamagedBlock,
    Metadata,
    Record,
    TraceError,
    find_header,
    read_body,
    read_header,
    read_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    try:
        return read_header(buffer, 0).mark
    except DamagedBlock as cause:
        offset = _find(buffer, MAGIC, 1)
        if offset is not None:
            return read_header(buffer, offset).mark
        first = bytes(buffer[: len(MAGIC)])
        if program := next((name for start, name in _COMPRESSED.items() if first.startswith(start)), None):
            raise NotATrace(f"this file is compressed: decompress it with {program} -d") from cause
        if not MAGIC.startswith(first):
            problem = "this is no capture: there is no block in it (and a fixture starts with a JSON object)"
            raise NotATrace(problem) from cause
    return None


def read_blocks(buffer: Buffer, start: int = 0, *, mark: bytes | None = None) -> Iterator[Block | Damage]:
    """Yields the blocks of a capture in order, with `Damage` in place of unreadable blocks.

    buffer: the whole capture, such as a memory map; blocks hold copies. start: the first block yielded is the first
    whose header starts here or later. mark: the capture's mark, if known. Raises NotATrace, TraceVersionError.
    """
    end = len(buffer)
    mark = mark or mark_of(buffer)
    if mark is None:
        if start == 0:
            yield Damage(0, end, True, "not one block is whole" if end else "the file is empty")
        return
    at, in_vain = start, 0
    if start > 0:
        first = _find(buffer, mark, start)
        at = end if first is None else first
    while at < end:
        try:
            header = read_header(buffer, at, mark)
            in_vain += min(header.stored, end - at)
            body = read_body(buffer, at, header)
            block = _block(at, header, body)
        except DamagedBlock as error:
            following = _find(buffer, mark, at + 1) if in_vain <= MAX_IN_VAIN * end else None
            upto = end if following is None else following
            yield Damage(at, upto - at, following is None, error.message)
            at = upto
        else:
            in_vain -= header.stored
            yield block
            at += header.size


def _block(offset: int, header: BlockHeader, body: bytes) -> Block:
    if header.type == BlockType.RECORDS:
        return Block(offset, header, Columns(body, header.records), None)
    if header.type == BlockType.METADATA:
        return Block(offset, header, Columns(b"", 0), read_metadata(body))
    raise DamagedBlock(f"there is no block type {header.type}", offset=offset, actual=header.type)


def read_records(buffer: Buffer) -> Iterator[Record | Damage]:
    """Yields all records of a capture in order, with `Damage` for unreadable parts. Raises as `read_blocks`."""
    for block in read_blocks(buffer):
        if isinstance(block, Damage):
            yield block
        else:
            yield from block.columns


def _find(buffer: Any, mark: bytes, at: int) -> int | None:
    """Returns the offset of the next whole header from `at` whose mark starts with `mark`."""
    return find_header(lambda offset, size: bytes(buffer[offset : offset + size]), mark, at, len(buffer))
