"""Rows made by column equal those made one by one over the codec, whatever the bytes are."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from segstore.pipeline.trace.columns import ALL_COLUMNS, OFTEN, select
from segstore.pipeline.trace.rows import BadTrace, RowMaker
from segstore.pipeline.trace.vectorised import plan_of
from segstore.pipeline.trace.vectorised_rows import BatchMaker
from segstore.wire import (
    AppendBlockEnd,
    AuthTokenCheckFailed,
    DataAppended,
    Hello,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadSegment,
    SegmentRead,
    SetupAppend,
    encode,
)
from tests.pipeline.support import as_dicts, both, plain, vectorised, write_capture, write_fixture
from tests.strategies import FRAMED, with_body
from tests.wire.trace.traces import frame, record

WRITER = uuid.UUID(int=7)
EVERYTHING = select(ALL_COLUMNS)
PLANNED = [cls for cls in FRAMED.values() if plan_of(cls) is not None]


def test_the_usual_commands_are_decoded_together_and_not_one_by_one(tmp_path: Path) -> None:
    commands = [
        SetupAppend(1, WRITER, "a/b/0.#epoch.0", "token"),
        AppendBlockEnd(WRITER, 5, b"abc", 1, 9, 4),
        DataAppended(4, WRITER, 9, 8, 12),
        ReadSegment("a/b/é", 5, 100, "", 6),
        SegmentRead("a/b/é", 5, True, False, b"xyz", 6),
        NoSuchSegment(8, "gone", "trace", 4),
        AuthTokenCheckFailed(1, "", AuthTokenCheckFailed(1).error_code),
        Hello(17, 5),
    ]
    assert {*OFTEN} <= {*PLANNED}
    path = write_capture(tmp_path / "a.wtrace", [record(each) for each in commands], a_block=100)
    maker = BatchMaker(select())
    maker._codec = _Refuses()  # type: ignore[assignment]
    (batch,) = (batch for found in _found(path) for batch in maker.batches(found))
    assert batch.column("segment").to_pylist() == ["a/b/0.#epoch.0", None, None, "a/b/é", "a/b/é", "gone", None, None]
    assert batch.column("event_number").to_pylist() == [None, 9, 9, None, None, None, None, None]


class _Refuses(RowMaker):
    def __init__(self) -> None: ...

    def row(self, *_: Any) -> Any:
        raise AssertionError("a frame went through the codec by itself")


def _found(path: Path) -> Any:
    from segstore.pipeline.trace.files import plan, read_piece

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


def test_a_command_with_a_list_has_no_plan_and_is_read_all_the_same(tmp_path: Path) -> None:
    assert plan_of(MergeSegmentsBatch) is None
    path = write_capture(tmp_path / "a.wtrace", [record(MergeSegmentsBatch(3, "target", ("a", "b"), "secret"))])
    (row,) = as_dicts(path, ["request_id", "flow", "segment", "fields"])
    assert (row["request_id"], row["flow"], row["segment"]) == (3, 0, "target")
    assert '"source_segment_ids": ["a", "b"]' in row["fields"]


def test_tokens_are_kept_only_for_those_who_ask(tmp_path: Path) -> None:
    token = "secret-token"
    commands = [SetupAppend(1, WRITER, "s", token), Hello(17, 5), MergeSegmentsBatch(3, "t", ("a",), token)]
    path = write_capture(tmp_path / "a.wtrace", [record(each) for each in commands])
    hidden = repr(both(path, ["fields", "frame"]))
    assert token not in hidden
    assert "*" * len(token) in hidden
    shown = both(path, ["frame"], tokens=True)
    assert [row[0] for row in shown] == [encode(each) for each in commands]


def test_text_that_utf_8_does_not_have_is_told_in_fields_only(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", [record(ReadSegment("a\ud800b", 0, 0, "", 1))])
    assert as_dicts(path, ["segment", "fields"])[0]["segment"] == "a\ufffdb"
    assert "a\\ud800b" in both(path, ["fields"])[0][0]


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


def test_what_was_recorded_of_the_official_client_reads_the_same_both_ways() -> None:
    folder = Path(__file__).parent.parent.parent.parent / "fixtures" / "traces"
    rows = both(folder, ["command", "error", "kind"])
    assert len(rows) > 300
    assert {kind for _, error, kind in rows if error} == set()
