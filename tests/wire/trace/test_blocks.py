"""Blocks of captures: their bytes, and what is refused."""

import struct
import zlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.trace import (
    Damage,
    Direction,
    Record,
    RecordKind,
    TraceVersionError,
    blocks,
    read_blocks,
    read_records,
)
from tests.looped import looped
from tests.wire.trace.traces import MARK, METADATA, capture, frame, record, records

HEADER = struct.Struct("<16sHBBIQQqqII")


def rewritten(block: bytes, body: bytes | None = None, **changes: int) -> bytes:
    """A block with another body or header, its checksums set right."""
    found = blocks.read_header(block, 0)
    body = block[64 : 64 + found.stored] if body is None else body
    changed = found._replace(stored=len(body), raw=len(body), body_crc=zlib.crc32(body))._replace(**changes)
    head = HEADER.pack(*changed[:-1], 0)[:60]
    return head + struct.pack("<I", zlib.crc32(head)) + body + bytes(-len(body) % 8)


def only_damage(data: bytes) -> Damage:
    (found,) = read_blocks(data)
    assert isinstance(found, Damage)
    return found


def test_a_block_is_laid_out_as_its_module_says() -> None:
    block = capture([record(frame(100), at=7, connection=3), record(frame(9, b"xy"), at=5, connection=4, reply=True)])
    block = block[blocks.read_header(block, 0).size :]
    mark, version, kind, flags, count, stored, raw, first, last, crc, header_crc = HEADER.unpack_from(block)
    assert (mark, version, kind, flags, count) == (MARK, 3, 2, 0, 2)
    assert (first, last) == (5, 7)
    assert header_crc == zlib.crc32(block[:60])
    body = block[64 : 64 + stored]
    assert (raw, crc) == (stored, zlib.crc32(body))
    assert struct.unpack_from("<6q", body) == (7, 5, 3, 4, 8, 18)
    assert body[48:52] == bytes((0, 1, 0, 0)), "directions, then kinds"
    assert body[52:56] == bytes(4), "zeros up to a multiple of 8"
    assert body[56:] == frame(100) + frame(9, b"xy")
    assert len(block) % 8 == 0


@given(st.lists(records(), max_size=8), st.booleans())
def test_records_come_back_as_they_were(drawn: list[Record], compress: bool) -> None:
    assert list(read_records(capture(drawn, compress=compress))) == drawn


@looped("body", [b"", b"[]", b"{", b'{"x": 1}', b'{"recorder": 5}', b'{"values": {"a": 1}}', b"\xff"])
def test_metadata_that_cannot_be_read_is_damage(body: bytes) -> None:
    assert "metadata" in only_damage(rewritten(blocks.metadata_block(MARK, METADATA), body)).reason


def test_a_block_type_that_does_not_exist_is_damage() -> None:
    assert "block type 9" in only_damage(rewritten(blocks.metadata_block(MARK, METADATA), type=9)).reason


def of_columns(*ends: int, direction: int = 0, kind: int = 0, data: bytes = b"") -> bytes:
    count = len(ends)
    numbers, ways, kinds = bytes(8 * count), bytes([direction] * count), bytes([kind] * count)
    rows = blocks.TraceRows(numbers, numbers, array("q", ends).tobytes(), ways, kinds)
    return b"".join(blocks.Pending([rows], [data], 0, 0).block(MARK))


@looped(
    "block",
    [
        of_columns(5, 4, data=b"four"),
        of_columns(-1, 4, data=b"four"),
        of_columns(3, data=b"four"),
        of_columns(5, data=b"four"),
        of_columns(data=b"four"),
        of_columns(4, data=b"four", direction=2),
        of_columns(4, data=b"four", kind=5),
        rewritten(of_columns(4, data=b"four"), records=3),
        rewritten(of_columns(4, data=b"four"), records=0xFFFFFFFF),
        rewritten(of_columns(4, data=b"four"), flags=1),
        rewritten(of_columns(4, data=b"four"), raw=1 << 62),
        rewritten(of_columns(4, data=b"four"), raw=5),
        rewritten(of_columns(4, data=b"four"), stored=1 << 62),
    ],
)
def test_inconsistent_columns_are_damage(block: bytes) -> None:
    found = only_damage(block)
    assert (found.offset, found.size) == (0, len(block))


def test_a_body_that_grows_beyond_its_length_is_not_decompressed_further() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    assert "bytes, not 100" in only_damage(rewritten(of_columns(), bomb, flags=1, raw=100)).reason


@looped("version", [0, 2, 4])
def test_another_version_is_refused_with_both_numbers(version: int) -> None:
    with pytest.raises(TraceVersionError) as caught:
        list(read_blocks(rewritten(blocks.metadata_block(MARK, METADATA), version=version)))
    assert (caught.value.actual, caught.value.limit) == (version, blocks.FORMAT_VERSION)


def test_a_checksum_of_a_sample_is_that_of_the_columns_and_of_every_512th_byte() -> None:
    data = frame(100, bytes(range(256)) * 40)
    rows = blocks.TraceRows(*(array("q", (each,)).tobytes() for each in (7, 3, len(data))), b"\0", b"\0")
    block = bytearray(b"".join(blocks.Pending([rows], [data], 7, 7, sample=True).block(MARK)))
    header = blocks.read_header(block, 0)
    assert (header.flags, header.sampled) == (2, True)
    body = blocks.read_body(block, 0, header)
    assert header.body_crc == zlib.crc32(body[:32] + body[32::512])
    assert [each.data for each in blocks.Columns(body, 1)] == [data]
    for at in (64, 64 + 31, 64 + 32, 64 + 32 + 512):
        changed = block.copy()
        changed[at] ^= 1
        with pytest.raises(blocks.DamagedBlock, match="the checksum of its body"):
            blocks.read_body(changed, 0, header)
    page = block.copy()
    page[4096:8192] = bytes(4096)
    with pytest.raises(blocks.DamagedBlock, match="the checksum of its body"):
        blocks.read_body(page, 0, header)


def test_a_block_that_no_reader_would_take_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 100)
    with pytest.raises(blocks.TraceError, match="exceeds 100"):
        capture([record(bytes(100))])


@looped("mark", [b"", b"x" * 16, blocks.MAGIC])
def test_a_mark_that_is_none_is_refused(mark: bytes) -> None:
    with pytest.raises(ValueError, match="a mark"):
        blocks.metadata_block(mark, METADATA)


def test_kinds_and_directions_keep_their_numbers() -> None:
    assert {kind.name: int(kind) for kind in RecordKind} == {"FRAME": 0, "OPEN": 1, "CLOSE": 2, "BYTES": 3, "CALL": 4}
    assert {way.name: int(way) for way in Direction} == {"REQUEST": 0, "REPLY": 1}
