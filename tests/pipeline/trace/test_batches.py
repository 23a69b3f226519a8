"""Batches have the rows that are made one by one over the codec, whatever the bytes are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.pipeline.trace import batches
from segstore.pipeline.trace.batches import ROWS_AT_ONCE, BatchMaker, joined, read_rows
from segstore.pipeline.trace.columns import ALL_COLUMNS, PLACE, ColumnError, select
from segstore.pipeline.trace.files import find_files, plan
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.options import read_options
from segstore.pipeline.trace.rows import BadTrace, Row, RowMaker, trace_rows
from segstore.wire import (
    AppendBlockEnd,
    ConditionalAppend,
    DataAppended,
    Event,
    Hello,
    KeepAlive,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    codec_backend,
    encode,
)
from tests.pipeline.planted import soup
from tests.pipeline.support import as_dicts, both, plain, vectorised, write_capture, write_fixture
from tests.pipeline.trace.test_packets import mixed
from tests.pipeline.trace.test_packets import written as packets_written
from tests.strategies import with_body
from tests.wire.codec.speed.test_backend import frames_recorded
from tests.wire.trace.traces import frame, record

WRITER = uuid.UUID(int=7)
IN_COLUMNS = [name for name in ALL_COLUMNS if name not in ("fields", "events")]
"""What C fills."""
NEEDS_C = pytest.mark.needs("the extension segstore._speed")


@NEEDS_C
@pytest.mark.skipif(codec_backend != "c", reason="another codec is chosen")
def test_c_fills_the_columns_of_the_usual_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [
        SetupAppend(1, WRITER, "a/b/0.#epoch.0", "token"),
        AppendBlockEnd(WRITER, 5, b"abc", 1, 9, 4),
        DataAppended(4, WRITER, 9, 8, 12),
        ReadSegment("a/b/1", 5, 100, "", 6),
        SegmentRead("a/b/1", 5, True, False, b"xyz", 6),
        ConditionalAppend(WRITER, 9, 4, Event(b"abc"), 6),
        NoSuchSegment(8, "gone", "trace", 4),
        KeepAlive(),
        Hello(17, 5),
    ]
    path = write_capture(tmp_path / "a.wtrace", [record(command) for command in commands], a_block=100)
    maker = BatchMaker(RowMaker(select()))
    monkeypatch.setattr(maker._one, "row", _refuse)
    (batch,) = (batch for found in _found(path) for batch in maker.batches(found))
    segments = ["a/b/0.#epoch.0", None, None, "a/b/1", "a/b/1", None, "gone", None, None]
    assert batch.column("segment").to_pylist() == segments
    assert batch.column("event_number").to_pylist() == [None, 9, 9, None, None, 9, None, None, None]
    assert batch.column("data_bytes").to_pylist() == [None, 3, None, None, 3, 3, None, None, None]


RECORDS = [record(each, at=at) for at, each in enumerate([Hello(17, 5), ReadSegment("a", 5, 1, "", 6), KeepAlive()])]


def _refuse(*_: Any) -> Any:
    raise AssertionError("C left a record to Python")


def _found(path: Path) -> Any:
    from segstore.pipeline.trace.files import plan
    from segstore.pipeline.trace.reading import read_piece

    return [found for piece in plan([str(path)]) for found in read_piece(piece)]


def test_a_frame_that_does_not_decode_is_a_row_with_the_reason(tmp_path: Path) -> None:
    cut = with_body(encode(ReadSegment("segment", 5, 1, "", 7)), b"\0\x20abc")
    path = write_capture(
        tmp_path / "a.wtrace", [record(cut), record(b"abc"), record(frame(111, b"?")), record(frame(0))]
    )
    columns = ["code", "command", "size", "error", "request_id", "fields"]
    cut_row, short, unknown, event = as_dicts(path, columns)
    assert (cut_row["command"], cut_row["request_id"], cut_row["fields"]) == ("READ_SEGMENT", None, None)
    assert "READ_SEGMENT.segment at byte 8" in cut_row["error"]
    assert (short["code"], short["command"], short["size"]) == (None, None, 3)
    assert "a header has 8 bytes" in short["error"]
    assert (unknown["command"], unknown["error"]) == ("UNKNOWN", None)
    assert unknown["fields"] == '{"type_code": 111, "data": "3f"}'
    assert (event["command"], event["code"], event["error"]) == ("EVENT", 0, None)  # kept, as all that is only watched


@pytest.mark.parametrize("make", [plain, vectorised])
def test_whoever_wants_no_skips_is_told_the_first_frame_that_does_not_decode(tmp_path: Path, make: Any) -> None:
    path = write_capture(tmp_path / "a.wtrace", [record(Hello(17, 5)), record(frame(9, b"\0"))])
    with pytest.raises(BadTrace, match=r"a\.wtrace: at byte \d+: record 1: READ_SEGMENT") as caught:
        make([path], select(["ts_ns"]), fail_fast=True)
    assert caught.value.path == str(path)
    assert len(make([path], select(["ts_ns"]))) == 2


def test_tokens_are_kept_only_for_those_who_ask(tmp_path: Path) -> None:
    token = "secret-token"
    commands = [SetupAppend(1, WRITER, "s", token), Hello(17, 5), MergeSegmentsBatch(3, "t", ("a",), token)]
    path = write_capture(tmp_path / "a.wtrace", [record(command) for command in commands])
    hidden = repr(both(path, ["fields", "frame"]))
    assert token not in hidden
    assert "*" * len(token) in hidden
    shown = both(path, ["frame"], tokens=True)
    assert [row[0] for row in shown] == [encode(each) for each in commands]


def test_a_fixture_gives_the_same_values_as_the_capture(tmp_path: Path) -> None:
    drawn = [
        record(DataAppended(4, WRITER, 9, 8, 12), at=5, reply=True),
        record(b"\0\0", at=6),
        record(Hello(17, 5), at=7),
    ]
    columns = [name for name in ALL_COLUMNS if name not in ("file", "block", "record")]
    assert both(write_fixture(tmp_path / "a.jsonl", drawn), columns) == both(
        write_capture(tmp_path / "a.wtrace", drawn), columns
    )


def changed(frame_: bytes) -> Iterator[bytes]:
    """Frames that are cut, with a header that says so or not, or changed in a byte."""
    for end in {*range(0, len(frame_), max(1, len(frame_) // 8)), len(frame_) - 1}:
        yield frame_[:end]
        if end >= 8:
            yield with_body(frame_, frame_[8:end])
            yield frame_[:end] + bytes([frame_[end] ^ 0x80]) + frame_[end + 1 :]
    yield with_body(frame_, frame_[8:] + b"more")


@pytest.mark.parametrize("tokens", [True, False])
def test_every_recorded_frame_and_what_becomes_of_it_gives_the_rows_of_the_codec(tmp_path: Path, tokens: bool) -> None:
    frames = frames_recorded()
    one_of_each = {each[:4]: each for each in frames}.values()
    drawn = [record(frame) for frame in frames] + [record(each) for found in one_of_each for each in changed(found)]
    path = write_capture(tmp_path / "a.wtrace", drawn, a_block=1000)
    rows = both(path, IN_COLUMNS, tokens=tokens)
    assert len(rows) == len(drawn)
    assert sum(row[IN_COLUMNS.index("error")] is None for row in rows) > 300


def test_batches_are_bounded_and_conditions_may_leave_one_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 3)
    path = write_capture(tmp_path / "a.wtrace", [record(Hello(17, 5), at=at) for at in range(10)], a_block=100)
    (chunk,) = _found(path)
    assert [batch.num_rows for batch in BatchMaker(RowMaker(select())).batches(chunk)] == [3, 3, 3, 1]
    for chosen in (Chosen(from_ns=4, until_ns=5), Chosen(from_ns=99), Chosen(from_ns=5, until_ns=-(1 << 63))):
        assert vectorised([path], select(), chosen=chosen) == plain([path], select(), chosen=chosen)
    both(path, ["file", "block"])


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_packed_rows_are_all_rows_of_connections_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    for name in ("_PACKED_ROWS", "_VALUE_ROWS", "_VALUES_AT_ONCE"):
        monkeypatch.setattr(batches, name, most)
    whole = write_capture(tmp_path / "a.wtrace", soup(seed, 400, 9), a_block=30).read_bytes()
    (tmp_path / "torn.wtrace").write_bytes(whole[:-40] + whole[: len(whole) // 3])
    packets_written(tmp_path / "b.pcap", mixed(Random(seed)))
    names = ["file", "connection", "kind", "block", "record", "command", "error"]
    options = read_options({"path": str(tmp_path), "columns": ",".join(names), "packed": "true"})
    pieces = plan(find_files([str(tmp_path)]), 1000)
    assert len(pieces) > 5
    Random(seed).shuffle(pieces)
    found = list(read_rows(pieces, options, options.given))
    packed = [row for batch in found for row in batch.to_pylist()]
    rows: dict[tuple[str, int], list[Row]] = {}
    for each in sorted(packed, key=lambda row: tuple(row[name] for name in PLACE)):
        value = pa.record_batch([pa.array([each["rows"]], pa.binary())], names=["rows"])
        (rows_of_value,) = batches.unpacked(batches.arrow_schema(select(names)), [value])
        inside = rows_of_value.to_pylist()
        assert 1 <= len(inside) <= most
        assert all(inside[0][name] == each[name] for name in PLACE)
        assert {(row["file"], row["connection"]) for row in inside} == {(each["file"], each["connection"])}
        rows.setdefault((each["file"], each["connection"]), []).extend(tuple(row.values()) for row in inside)
    expected: dict[tuple[str, int], list[Row]] = {}
    for row in trace_rows(str(tmp_path), names):
        if row[2] != "skipped":
            expected.setdefault((row[0], row[1]), []).append(row)
    assert rows == expected
    assert len({file for file, _ in rows}) == 3


def test_packed_rows_have_the_columns_that_are_wanted(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", RECORDS)
    options = read_options({"path": str(path), "columns": ",".join(PLACE), "packed": "true"})
    (batch,) = read_rows(plan([str(path)]), options, select(["rows", "block"], options.known))
    assert batch.schema.names == ["rows", "block"]
    with pytest.raises(ColumnError, match="no column 'size'; there are connection, file, block, record, rows"):
        select(["size"], options.known)


@given(st.lists(st.integers(1, ROWS_AT_ONCE + 9), max_size=12))
def test_short_batches_are_joined_up_to_a_limit_and_no_row_changes_its_place(counts: list[int]) -> None:
    numbers = pa.array(range(sum(counts)), pa.int32())
    starts = accumulate(counts, initial=0)
    given = [pa.record_batch({"n": numbers.slice(start, count)}) for start, count in zip(starts, counts, strict=False)]
    found = list(joined(given))
    assert pa.chunked_array([each.column(0) for each in found], pa.int32()).combine_chunks() == numbers
    assert all(each.num_rows <= max(ROWS_AT_ONCE, *counts) for each in found)
    assert all(one.num_rows + other.num_rows > ROWS_AT_ONCE for one, other in pairwise(found))


def test_a_batch_of_many_bytes_is_not_copied() -> None:
    large = pa.record_batch({"frame": pa.array([bytes(2_000_000)])})
    small = pa.record_batch({"frame": pa.array([b"a"])})
    assert [each.num_rows for each in joined([small, small, large, small, small])] == [2, 1, 2]
    assert next(joined([large])) is large
