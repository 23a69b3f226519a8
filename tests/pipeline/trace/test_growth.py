"""How far a micro-batch goes: whole blocks and lines, within its limit, never beyond the target, always forward."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from segstore.pipeline.trace.files import pieces_of
from segstore.pipeline.trace.growth import next_offset, steps
from segstore.pipeline.trace.options import Limit
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import DataAppended
from segstore.wire.trace import Record
from tests.pipeline.support import write_capture, write_fixture
from tests.wire.trace.traces import capture, record


def records(first: int, count: int, every: int = 1) -> list[Record]:
    return [record(DataAppended(at, UUID(int=1), at, 0, 0), at=at) for at in range(first, first + count * every, every)]


def read(path: str, start: int, stop: int) -> list[int]:
    pieces = pieces_of(path, 500, start, stop) if stop > start else []
    found = [found for piece in pieces for found in read_piece(piece)]
    return [each.record.ts_ns for chunk in found for each in chunk]  # type: ignore[union-attr]  # nothing is skipped


@pytest.mark.parametrize("write", [write_capture, write_fixture])
def test_a_file_that_grows_byte_by_byte_gives_each_record_once(tmp_path: Path, write: object) -> None:
    whole = write(tmp_path / "whole", records(0, 6)).read_bytes()  # type: ignore[operator]
    path = tmp_path / "a.wtrace"
    offset: dict[str, int] = {}
    seen: list[int] = []
    for size in (*range(1, len(whole), 29), len(whole)):
        path.write_bytes(whole[:size])
        after = next_offset([str(path)], offset, None, None)
        assert after.get(str(path), 0) <= size
        seen += read(str(path), offset.get(str(path), 0), after.get(str(path), 0))
        offset = after
    assert seen == list(range(6))
    assert offset == {str(path): len(whole)}
    assert next_offset([str(path)], offset, None, None) == offset


def test_a_batch_takes_the_oldest_blocks_of_all_files_up_to_its_limit(tmp_path: Path) -> None:
    even = str(write_capture(tmp_path / "even.wtrace", records(0, 8, 2), a_block=2))
    odd = str(write_capture(tmp_path / "odd.wtrace", records(1, 8, 2), a_block=2))
    offset: dict[str, int] = {}
    batches = []
    while (after := next_offset([even, odd], offset, Limit("rows", 4), None)) != offset:
        batches.append(sorted(at for path in after for at in read(path, offset.get(path, 0), after[path])))
        offset = after
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_block_that_is_longer_than_the_limit_is_taken_by_itself(tmp_path: Path) -> None:
    path = str(write_capture(tmp_path / "a.wtrace", records(0, 9), a_block=3))
    (metadata, *blocks) = [step.end for step in steps(path, 0)]
    ends, offset = [], {path: metadata}
    while (after := next_offset([path], offset, Limit("bytes", 1), None)) != offset:
        ends.append(after[path])
        offset = after
    assert ends == blocks


def test_a_limit_of_files_counts_those_that_are_read_from(tmp_path: Path) -> None:
    paths = [str(write_capture(tmp_path / f"{name}.wtrace", records(at, 4))) for at, name in enumerate("abc")]
    first = next_offset(paths, {}, Limit("files", 2), None)
    assert {Path(path).stem for path in first} == {"a", "b"}
    second = next_offset(paths, first, Limit("files", 2), None)
    assert second == {path: Path(path).stat().st_size for path in paths}


def test_what_comes_after_the_target_was_set_is_left(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", records(0, 6))
    target = next_offset([str(path)], {}, None, None)
    with path.open("ab") as file:
        file.write(capture(records(6, 3)))
    later = str(write_capture(tmp_path / "b.wtrace", records(0, 3)))
    assert next_offset([str(path), later], {}, None, target) == target


def test_a_file_that_has_vanished_stays_where_it_was_and_one_that_shrank_too(tmp_path: Path) -> None:
    path = str(write_capture(tmp_path / "a.wtrace", records(0, 6)))
    offset = next_offset([path], {}, None, None)
    os.truncate(path, 100)
    assert next_offset([path], offset, None, None) == offset
    Path(path).unlink()
    assert next_offset([path], offset, None, None) == offset


def test_damage_is_passed_once_a_whole_block_stands_behind_it(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", records(0, 6), a_block=2)
    whole = bytearray(path.read_bytes())
    ends = [step.end for step in steps(str(path), 0)]
    whole[ends[1] : ends[1] + 20] = bytes(20)  # the header of the second block
    path.write_bytes(whole[: ends[2]])
    assert next_offset([str(path)], {}, None, None) == {str(path): ends[1]}
    path.write_bytes(whole)
    assert next_offset([str(path)], {}, None, None) == {str(path): ends[3]}


def test_a_file_that_is_no_trace_is_passed_and_a_packet_capture_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wtrace"
    path.write_bytes(b"something else")
    assert next_offset([str(path)], {}, None, None) == {str(path): 14}
    path.write_bytes(bytes.fromhex("d4c3b2a1"))
    with pytest.raises(ValueError, match="packet capture"):
        next_offset([str(path)], {}, None, None)
