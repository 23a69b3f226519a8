"""A capture on a store is cut without looking at its blocks, or by its index; either way its rows are the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import fsspec
import pytest

from segstore.pipeline.blocks import write_index
from segstore.pipeline.storage import Storage
from segstore.pipeline.trace.files import FileRange, RecordChunk, Skipped, find_files, plan
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import DataAppended
from segstore.wire.trace import MARK_BYTES, Record
from tests.processes import invoke
from tests.wire.trace.traces import capture, record

RECORDS = [record(DataAppended(number, UUID(int=1), number, 0, 0), at=number) for number in range(300)]
CAPTURE = capture(RECORDS, a_block=7)
SIZES = range(64, 3000, 211)
STORAGE = Storage()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A store in memory with the capture at `a.wtrace`."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/run/a.wtrace", CAPTURE)
    yield memory
    memory.rm("/run", recursive=True)


PATH = "memory://run/a.wtrace"


def read(pieces: list[FileRange]) -> tuple[list[Record], list[tuple[int, int]]]:
    """The records of pieces, and the offset and size of what is skipped."""
    found = [each for piece in pieces for each in read_piece(piece, storage=STORAGE)]
    records = [each.record for chunk in found if isinstance(chunk, RecordChunk) for each in chunk]
    return records, [(each.offset, each.size) for each in found if isinstance(each, Skipped)]


def starts() -> list[int]:
    """The offsets of the blocks of the capture."""
    found = []
    at = CAPTURE.find(CAPTURE[:MARK_BYTES])
    while at >= 0:
        found.append(at)
        at = CAPTURE.find(CAPTURE[:MARK_BYTES], at + 1)
    return found


# --- cut at bytes ---------------------------------------------------------------------------------------------------


def test_a_capture_on_a_store_gives_each_record_once_wherever_it_is_cut(store: Any) -> None:
    for piece_bytes in SIZES:
        pieces = plan([PATH], piece_bytes, STORAGE)
        assert len(pieces) == -(-len(CAPTURE) // piece_bytes)
        assert read(pieces) == (RECORDS, [])


@pytest.mark.parametrize("damage", ["a header", "a body", "the first header", "the end", "everything"])
def test_damage_is_skipped_once_wherever_a_capture_is_cut(store: Any, damage: str) -> None:
    data = bytearray(CAPTURE)
    blocks = starts()
    if damage == "everything":
        data[:] = bytes(len(data))
    elif damage == "the end":
        del data[-100:]
    else:
        data[{"a header": blocks[9], "a body": blocks[9] + 70, "the first header": 0}[damage]] ^= 1
    store.pipe_file("/run/a.wtrace", bytes(data))
    whole = read(plan([PATH], len(data), STORAGE))
    assert sum(size for _, size in whole[1]) > 0
    for piece_bytes in SIZES:
        assert read(plan([PATH], piece_bytes, STORAGE)) == whole


def test_a_capture_that_carries_its_own_bytes_is_reported_and_an_index_helps(store: Any) -> None:
    inner = capture(RECORDS[:3])
    data = capture([record(inner), *RECORDS], a_block=7)
    store.pipe_file("/run/a.wtrace", data)
    assert data.startswith(inner[:MARK_BYTES])
    expected, _ = read(plan([PATH], len(data), STORAGE))
    inside = data.index(inner)
    pieces = plan([PATH], inside - 8, STORAGE)
    found = [each for piece in pieces for each in read_piece(piece, storage=STORAGE)]
    ambiguous = [each for each in found if isinstance(each, Skipped) and "segstore trace index" in each.reason]
    assert [inside <= each.offset < inside + len(inner) for each in ambiguous] == [True]
    write_index(PATH, STORAGE)
    assert read(plan([PATH], inside - 8, STORAGE)) == (expected, [])


# --- cut by an index ------------------------------------------------------------------------------------------------


def test_an_index_gives_the_blocks_that_the_headers_give(store: Any, tmp_path: Path) -> None:
    local = tmp_path / "a.wtrace"
    local.write_bytes(CAPTURE)
    expected = [piece[1:] for piece in plan([str(local)], 1000)]
    result = invoke("trace", "index", local, PATH)
    assert result.output == f"{local}.index: {len(starts())} blocks\n{PATH}.index: {len(starts())} blocks\n"
    assert result.exit_code == 0
    assert (tmp_path / "a.wtrace.index").read_bytes() == store.cat_file("/run/a.wtrace.index")
    for path in (str(local), PATH):
        pieces = plan([path], 1000, STORAGE)
        assert [piece[1:] for piece in pieces] == expected
        assert read(pieces) == (RECORDS, [])
    assert find_files([str(tmp_path / "*"), "memory://run/"]) == [str(local), PATH]


def test_blocks_added_after_the_index_are_found(store: Any) -> None:
    cut = starts()[20]
    store.pipe_file("/run/a.wtrace", CAPTURE[:cut])
    write_index(PATH, STORAGE)
    store.pipe_file("/run/a.wtrace", CAPTURE)
    pieces = plan([PATH], 1000, STORAGE)
    assert not any(piece.end for piece in pieces)
    assert read(pieces) == (RECORDS, [])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("index cut", "not the index of a capture, or not a whole one"),
        ("index flipped", "its checksum is wrong"),
        ("capture cut", "the capture had at least"),
        ("capture replaced", "the capture has been replaced"),
    ],
)
def test_an_index_that_does_not_belong_to_the_capture_is_ignored_with_the_reason(
    store: Any, caplog: pytest.LogCaptureFixture, damage: str, reason: str
) -> None:
    write_index(PATH, STORAGE)
    index, data = bytearray(store.cat_file("/run/a.wtrace.index")), CAPTURE
    expected = RECORDS
    if damage == "index cut":
        del index[-1:]
    elif damage == "index flipped":
        index[-1] ^= 1
    elif damage == "capture cut":
        data, expected = CAPTURE[: starts()[-1]], RECORDS[:-6]
    else:
        data = CAPTURE.replace(CAPTURE[8:MARK_BYTES], bytes(8))  # neither mark nor header checksums are right
        expected = []
    store.pipe_file("/run/a.wtrace.index", bytes(index))
    store.pipe_file("/run/a.wtrace", data)
    with caplog.at_level(logging.WARNING):
        records, skipped = read(plan([PATH], 1000, STORAGE))
    assert records == expected
    if expected:
        assert skipped == []
        assert f"{PATH}.index is ignored" in caplog.text
        assert reason in caplog.text
        assert "segstore trace index" in caplog.text


def test_what_has_no_index_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.wtrace").write_bytes(b"something else")
    result = invoke("trace", "index", tmp_path / "a.wtrace", tmp_path / "b.wtrace")
    assert result.exit_code == 1
    assert "only captures have an index" in result.output
    assert "b.wtrace: No such file" in result.output
