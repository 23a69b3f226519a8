"""Files are found, cut and read so that each record and each damage is told once, whatever happened to the file."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from uuid import UUID

import pytest

from segstore.pipeline.compressed import BadLimit
from segstore.pipeline.trace.files import (
    MOST_PIECE_BYTES,
    PIECE_BYTES,
    FileRange,
    Skipped,
    find_files,
    find_traces,
    packed,
    piece_bytes_of,
    pieces_of,
    plan,
)
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import DataAppended
from segstore.wire.trace import NotATrace, Record
from tests.looped import looped
from tests.pipeline.support import both, write_capture, write_fixture
from tests.wire.trace.traces import capture, record

RECORDS = [record(DataAppended(number, UUID(int=1), number, 0, 0), at=number) for number in range(20)]


def read(path: Path, piece_bytes: int = 1 << 25) -> tuple[list[tuple[int, Record]], list[Skipped]]:
    records: list[tuple[int, Record]] = []
    skipped: list[Skipped] = []
    for piece in pieces_of(str(path), piece_bytes):
        for found in read_piece(piece):
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                records += [(each.block, each.record) for each in found]
    return records, skipped


# --- finding --------------------------------------------------------------------------------------------------------


def test_folders_globs_and_files_are_found_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("b.wtrace", "a.jsonl", "inner/c.pcap", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    found = [str(tmp_path / name) for name in ("a.jsonl", "b.wtrace", "inner/c.pcap")]
    assert find_files([str(tmp_path)]) == found
    assert find_files([str(tmp_path / "*.wtrace"), f"file://{tmp_path}"]) == [found[1], found[0], found[2]]
    assert find_files([str(tmp_path / "notes.txt")]) == [str(tmp_path / "notes.txt")]


def test_paths_without_any_trace_are_refused(tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "a.wtrace", RECORDS)
    traces = {"torn.wtrace": trace.read_bytes()[:90], "shifted.wtrace": b"x" + trace.read_bytes(), "empty.wtrace": b""}
    traces |= {"newer.jsonl": b'{"segstore_trace": 99}\n', "newer.jsonl.gz": gzip.compress(b'{"segstore_trace": 99}\n')}
    others = {"a.py": b"print(1)", "a.json": b'{"name": 1}', "b.wtrace": b"something else"}
    others |= {f"{name}.gz": gzip.compress(data) for name, data in others.items()}
    for name, data in (traces | others).items():
        path = tmp_path / name
        path.write_bytes(data)
        if name in traces:
            assert find_traces([str(path)]) == [str(path)]
        else:
            with pytest.raises(NotATrace, match=f"{name} is not a trace"):
                find_traces([str(path)])
    assert find_traces([str(tmp_path / "a.py"), str(trace)]) == [str(tmp_path / "a.py"), str(trace)]
    with pytest.raises(NotATrace):
        find_traces([str(tmp_path / "a.[pj]*")])


def test_an_invalid_limit_is_refused_before_a_compressed_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, packed = write_capture(tmp_path / "a.wtrace", RECORDS), tmp_path / "b.wtrace.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    monkeypatch.setenv("SEGSTORE_MAX_DECOMPRESSED_BYTES", "many")
    assert find_traces([str(trace)]) == [str(trace)]
    with pytest.raises(BadLimit):
        find_traces([str(tmp_path)])


def test_a_path_that_names_nothing_is_an_error_unless_files_may_come(tmp_path: Path) -> None:
    for path in ("none.wtrace", "*.wtrace", "."):
        with pytest.raises(FileNotFoundError) as caught:
            find_files([str(tmp_path / path)])
        assert caught.value.filename == str(tmp_path / path)
    assert find_files([str(tmp_path / "*.wtrace"), str(tmp_path)], may_be_none=True) == []
    with pytest.raises(FileNotFoundError):
        find_files([str(tmp_path / "none.wtrace")], may_be_none=True)
    with pytest.raises(ValueError, match="not of elsewhere"):
        find_files(["file://elsewhere/a.wtrace"])


# --- captures -------------------------------------------------------------------------------------------------------


def test_pieces_lie_side_by_side_and_know_how_many_records_they_have(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", RECORDS, a_block=2)
    pieces = plan([str(path)], 700)
    assert len(pieces) > 3
    assert [piece.stop for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
    assert (pieces[0].start, pieces[-1].stop) == (0, path.stat().st_size)
    assert sum(piece.records for piece in pieces) == len(RECORDS)
    assert max(piece.size for piece in pieces) <= 700


@looped(("total", "pieces"), [(1_000_000, 1), (100_000_000, 3), (400_000_000, 4), (2_000_000_000, 15), (10**12, 7451)])
def test_a_trace_is_cut_into_a_few_pieces_and_a_long_one_into_long_ones(total: int, pieces: int) -> None:
    size = piece_bytes_of(total)
    assert PIECE_BYTES <= size <= MOST_PIECE_BYTES
    assert -(-total // size) == pieces


def test_small_files_share_a_task_and_each_costs_something() -> None:
    small = [FileRange(f"{number:05}.wtrace", "capture", 0, 1_000) for number in range(10_000)]
    large = FileRange("large.wtrace", "capture", 0, PIECE_BYTES)
    tasks = packed([*small, large, small[0], large], PIECE_BYTES)
    assert [piece for task in tasks for piece in task] == [*small, large, small[0], large]
    assert [len(task) for task in tasks[-3:]] == [1, 1, 1]
    assert 15 < len(tasks) < 30
    assert len({len(task) for task in tasks[:-4]}) == 1
    assert packed([], PIECE_BYTES) == []


def test_a_capture_of_another_version_is_skipped_by_name(tmp_path: Path) -> None:
    whole = bytearray(capture(RECORDS))
    header = bytearray(whole[:60])
    header[16:18] = struct.pack("<H", 99)
    whole[:64] = header + struct.pack("<I", zlib.crc32(header))
    path = tmp_path / "a.wtrace"
    path.write_bytes(whole)
    ((kind, size, error),) = both(path, ["kind", "size", "error"])
    assert (kind, size) == ("skipped", len(whole))
    assert "version 99" in error


def test_a_file_that_is_no_trace_is_skipped(tmp_path: Path) -> None:
    for name, data in (("a.wtrace", b"something else"), ("empty.wtrace", b""), ("empty.jsonl", b"")):
        path = tmp_path / name
        path.write_bytes(data)
        ((kind, size, error),) = both(path, ["kind", "size", "error"])
        assert (kind, size) == ("skipped", len(data))
        assert error


def test_a_file_that_vanishes_or_shrinks_after_the_plan_is_told(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", RECORDS, a_block=5)
    first, *_ = pieces = plan([str(path)], 700)
    size = path.stat().st_size
    os.truncate(path, first.stop)
    rest = [found for piece in pieces[1:] for found in read_piece(piece)]
    assert all(isinstance(found, Skipped) for found in rest)
    assert sum(found.size for found in rest if isinstance(found, Skipped)) == size - first.stop
    path.unlink()
    (gone,) = read_piece(first)
    assert isinstance(gone, Skipped)
    assert (gone.offset, gone.size) == (first.start, first.size)
    assert "No such file" in gone.reason
    assert str(path) in str(gone)
    (late,) = pieces_of(str(path))
    assert "No such file" in late.reason


# --- fixtures -------------------------------------------------------------------------------------------------------


def test_any_pieces_of_a_fixture_give_all_its_lines_once(tmp_path: Path) -> None:
    path = write_fixture(tmp_path / "a.jsonl", RECORDS)
    for piece_bytes in (1, 10, 300, 1 << 20):
        records, skipped = read(path, piece_bytes)
        assert [each for _, each in records] == RECORDS
        assert skipped == []
    text = path.read_bytes()
    assert all(text[at : at + 1] == b"{" for at, _ in records)


def test_a_line_that_does_not_fit_is_skipped_and_the_next_is_read(tmp_path: Path) -> None:
    path = write_fixture(tmp_path / "a.jsonl", RECORDS[:3])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"at_ns": "soon"}\n'
    lines.insert(4, b"\xff\n")
    lines.append(lines[3][:20])
    path.write_bytes(b"".join(lines))
    records, skipped = read(path)
    assert [each for _, each in records] == [RECORDS[0], RECORDS[2]]
    assert [(each.offset, each.size) for each in skipped] == [
        (len(b"".join(lines[:2])), len(lines[2])),
        (len(b"".join(lines[:4])), 2),
        (len(b"".join(lines[:5])), 20),
    ]
    assert "exactly one of" in skipped[0].reason
    assert "not UTF-8" in skipped[1].reason


def test_a_fixture_without_a_first_line_is_skipped_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"at_ns": 1}\n{"at_ns": 2}\n')
    records, (skipped,) = read(path)
    assert records == []
    assert (skipped.offset, skipped.size) == (0, path.stat().st_size)
    assert "segstore_trace" in skipped.reason
