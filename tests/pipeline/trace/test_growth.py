"""How far a micro-batch goes: whole blocks and lines, within its limit, never beyond the target, always forward."""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.pipeline.trace.files import pieces_of
from segstore.pipeline.trace.growth import WATERMARK, Offset, is_late, late, next_offset, parts, steps
from segstore.pipeline.trace.options import BatchLimit
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
    while (after := next_offset([even, odd], offset, BatchLimit("rows", 4), None)) != offset:
        batches.append(sorted(at for path in after for at in read(path, offset.get(path, 0), after[path])))
        offset = after
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_block_that_is_longer_than_the_limit_is_taken_by_itself(tmp_path: Path) -> None:
    path = str(write_capture(tmp_path / "a.wtrace", records(0, 9), a_block=3))
    (metadata, *blocks) = [step.end for step in steps(path, 0)]
    ends, offset = [], {path: metadata}
    while (after := next_offset([path], offset, BatchLimit("bytes", 1), None)) != offset:
        ends.append(after[path])
        offset = after
    assert ends == blocks


def test_a_limit_of_files_counts_those_that_are_read_from(tmp_path: Path) -> None:
    paths = [str(write_capture(tmp_path / f"{name}.wtrace", records(at, 4))) for at, name in enumerate("abc")]
    first = next_offset(paths, {}, BatchLimit("files", 2), None)
    assert {Path(path).stem for path in first} == {"a", "b"}
    second = next_offset(paths, first, BatchLimit("files", 2), None)
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


AGE = 1000
BY_TWO = partial(write_capture, a_block=2)


class Folder:
    """A folder in which time is that of the records, and a query that follows it. gone: records that nobody read."""

    def __init__(self, folder: str, write: object) -> None:
        self.folder = Path(folder)
        self.write = write
        self.now = 10_000
        self.offset: Offset = {}
        self.files: dict[Path, list[Record]] = {}
        self.changed: dict[Path, int] = {}
        self.read: Counter[int] = Counter()
        self.batches: list[tuple[Offset, Offset, Counter[int]]] = []

    def append(self, number: int) -> None:
        """Adds records to a file, or to a new one."""
        known = sorted(self.files)
        path = known[number] if number < len(known) else self.folder / f"{self.now:06}.wtrace"
        if number < len(known) and self.now - self.changed[path] >= AGE:
            return
        self.files.setdefault(path, []).extend(records(self.now, 2))
        self.write(path, self.files[path])  # type: ignore[operator]
        self.changed[path] = self.now + 1
        os.utime(path, ns=(self.now + 1, self.now + 1))

    def delete(self, number: int) -> None:
        self.follow(None)
        if number < len(self.files):
            path = sorted(self.files)[number]
            path.unlink()
            del self.files[path]

    def follow(self, limit: int | None) -> None:
        after = next_offset(self.paths(), self.offset, limit and BatchLimit("rows", limit), None, most_age_ns=AGE)
        found = Counter(self.between(self.offset, after))
        self.batches.append((self.offset, after, found))
        self.read += found
        self.offset = after

    def between(self, start: Offset, end: Offset) -> list[int]:
        assert not [path for path in parts(start, end) if is_late(end, path)]
        return [at for path, part in parts(start, end).items() for at in read(path, *part)]

    def paths(self) -> list[str]:
        return sorted(map(str, self.files))


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 12)),
    st.tuples(st.just("append"), st.just(99)),
    st.tuples(st.just("delete"), st.integers(0, 12)),
    st.tuples(st.just("follow"), st.none() | st.integers(1, 5)),
    st.tuples(st.just("wait"), st.integers(2, AGE)),
)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40), write=st.sampled_from([BY_TWO, write_fixture]))
def test_offsets_that_forget_files_read_each_record_once(actions: list[tuple[str, int]], write: object) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(name, write)
        for action, value in actions:
            folder.now += 2
            if action == "wait":
                folder.now += value
            else:
                getattr(folder, action)(value)
        before: Offset | None = None
        while folder.offset != before:
            before = folder.offset
            folder.follow(3)
        assert not [at for at, times in folder.read.items() if times > 1]
        kept = [record.ts_ns for records in folder.files.values() for record in records]
        assert [at for at in kept if at not in folder.read] == []
        for start, end, found in folder.batches:
            there = {path for path in parts(start, end) if Path(path).exists()}
            if len(there) == len(parts(start, end)):
                assert Counter(folder.between(start, end)) == found


def test_a_file_that_was_forgotten_is_not_read_again_when_it_grows(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), write_capture)
    for _ in range(4):
        folder.append(999)
        folder.follow(None)
        folder.now += AGE
    first = tmp_path / "010000.wtrace"
    assert str(first) not in folder.offset
    assert WATERMARK in folder.offset
    write_capture(first, records(10_000, 9))
    after = next_offset(folder.paths(), folder.offset, None, None, most_age_ns=AGE)
    assert parts(folder.offset, after) == {str(first): (0, first.stat().st_size)}
    assert is_late(after, str(first))
    (skipped,) = read_piece(late(str(first), *parts(folder.offset, after)[str(first)]))
    assert "has grown, or it came too late" in str(skipped)
    assert next_offset(folder.paths(), after, None, None, most_age_ns=AGE) == after


def test_a_file_of_a_clock_that_is_ahead_does_not_hide_later_ones(tmp_path: Path) -> None:
    files: list[str] = []
    offset: Offset = {}
    now_ns, age_ns = time.time_ns(), 1000 * 10**9
    for number, changed_ns in enumerate((now_ns - 5 * age_ns, 3 * now_ns, now_ns - age_ns // 2, now_ns)):
        files.append(str(write_capture(tmp_path / f"{number}.wtrace", records(min(changed_ns, now_ns), 2))))
        os.utime(files[-1], ns=(changed_ns, changed_ns))
        before, offset = offset, next_offset(files, offset, None, None, most_age_ns=age_ns)
        assert [*parts(before, offset)] == files[-1:]
    assert sorted(offset) == [WATERMARK, *files[1:]]


def test_a_compressed_file_is_forgotten_by_its_first_record(tmp_path: Path) -> None:
    plain, files, read = tmp_path / "plain", list[str](), list[str]()
    offset: Offset = {}
    for number in range(5):
        write_capture(plain, records(number * AGE, 2))
        path = tmp_path / f"{number}.wtrace.gz"
        path.write_bytes(gzip.compress(plain.read_bytes()))
        os.utime(path, ns=(number * AGE, number * AGE))
        files.append(str(path))
        before, offset = offset, next_offset(files, offset, None, None, most_age_ns=AGE)
        read += parts(before, offset)
    assert read == files
    assert sorted(offset) == [WATERMARK, *files[-2:]]
