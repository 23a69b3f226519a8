"""Hostile traces: valid checksums over absurd values, and JSON that resembles a fixture.

Both readers return the same rows or skips and raise nothing; the number of bytes read is proportional to the file.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.pipeline.trace.columns import ALL_COLUMNS
from segstore.pipeline.trace.files import Skipped, plan
from segstore.pipeline.trace.reading import read_piece
from segstore.traces import FileRecorder, TraceFile
from segstore.wire import KeepAlive, encode
from segstore.wire.trace import FORMAT_VERSION, MAX_IN_VAIN, Damage, Metadata, RecordKind, TraceError, read_blocks
from segstore.wire.trace.blocks import MAX_BLOCK_BYTES, metadata_block
from tests.looped import looped
from tests.pipeline.support import both
from tests.wire.trace.traces import MARK, METADATA

METADATA_BLOCK = metadata_block(MARK, METADATA)
FRAME = encode(KeepAlive())
LARGEST, SMALLEST = (1 << 63) - 1, -1 << 63
INT64 = st.sampled_from([LARGEST, SMALLEST, LARGEST - 1, -1, 0, 1, 10**18]) | st.integers(SMALLEST, LARGEST)


def header(body: bytes, **other: int) -> bytes:
    """A header of a records block with any fields and a valid checksum."""
    said = {"version": FORMAT_VERSION, "type": 2, "flags": 0, "count": 0, "stored": len(body), "raw": len(body),
            "first": 0, "last": 0, "crc": zlib.crc32(body)} | other  # fmt: skip
    made = struct.pack("<16sHBBIQQqqI", MARK, *said.values())
    return made + struct.pack("<I", zlib.crc32(made))


def block(body: bytes, **other: int) -> bytes:
    return header(body, **other) + body + bytes(-len(body) % 8)


def body_of(rows: list[tuple[int, int, int, int, int]], data: bytes) -> bytes:
    """Columns as they are given: time, connection, end, direction, kind."""
    ts_ns, connection, end, direction, kind = zip(*rows, strict=True) if rows else ((),) * 5
    numbers = struct.pack(f"<{3 * len(rows)}q", *ts_ns, *connection, *end) + bytes(direction) + bytes(kind)
    return numbers + bytes(-len(numbers) % 8) + data


def rows_of(data: bytes, name: str = "a.wtrace") -> list[dict[str, Any]]:
    """The rows of a file with these bytes; asserts that both readers return the same."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return [dict(zip(ALL_COLUMNS, row, strict=True)) for row in both(path, ALL_COLUMNS)]


# --- captures -------------------------------------------------------------------------------------------------------


@given(st.data())
def test_absurd_values_under_right_checksums_give_rows_or_skips(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 5))
    content = data.draw(st.sampled_from([FRAME * count, b"{}" * count, b"\xff" * 8 * count]))
    step = len(content) // count if count else 0
    ends = [step * at for at in range(1, count + 1)]
    if data.draw(st.booleans()) and count:
        ends[data.draw(st.integers(0, count - 1))] = data.draw(INT64)
    rows = [
        (data.draw(INT64), data.draw(INT64), end, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 4)))
        for end in ends
    ]
    body = body_of(rows, content)
    other: dict[str, int] = {"count": count}
    if data.draw(st.booleans()):
        body, other["flags"], other["raw"] = zlib.compress(body), 1, len(body)
    for field, most in (("version", 16), ("type", 8), ("flags", 8), ("count", 32), ("stored", 64), ("raw", 64)):
        if data.draw(st.integers(0, 9)) == 0:
            other[field] = data.draw(st.sampled_from([0, 1, (1 << most) - 1, 1 << (most - 1), MAX_BLOCK_BYTES & 0xFF]))
    for field in ("first", "last"):
        other[field] = data.draw(INT64)
    hostile = METADATA_BLOCK + block(body, **other) + block(body_of([(1, 1, 8, 0, 0)], FRAME), count=1)
    found = rows_of(hostile)
    assert [row for row in found if row["kind"] == "frame" or row["kind"] == "skipped"]
    try:
        damages = [each for each in read_blocks(hostile) if isinstance(each, Damage)]
    except TraceError:
        return  # an unsupported version
    assert [damage.offset for damage in damages] == [row["block"] for row in found if row["kind"] == "skipped"]


def test_records_at_both_ends_of_time_are_rows() -> None:
    times = (SMALLEST, LARGEST, 0, SMALLEST)
    rows = [(time, time, 8 * at, at % 2, 0) for at, time in enumerate(times, 1)]
    found = rows_of(METADATA_BLOCK + block(body_of(rows, FRAME * 4), count=4))
    assert [row["ts_ns"] for row in found] == list(times)
    assert [row["time"].year for row in found] == [1677, 2262, 1970, 1677]


class _Counted:
    """Counts the bytes that a reader requests of a capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self._read)

    def _read(self, fd: int, size: int, at: int) -> bytes:
        data = self._pread(fd, size, at)
        self.bytes += len(data)
        return data


def overlapping(count: int) -> bytes:
    """Valid headers; the body of each contains all later ones and has a wrong checksum."""
    return b"".join(header(b"", stored=64 * (count - at - 1), crc=1) for at in range(count))


@pytest.mark.parametrize(
    "hostile", [MARK * 20_000, MARK[:8] * 40_000, overlapping(5_000)], ids=["mark", "magic", "nested"]
)
def test_false_blocks_are_not_read_repeatedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: bytes) -> None:
    path = tmp_path / "a.wtrace"
    path.write_bytes(METADATA_BLOCK + hostile)
    counted = _Counted(monkeypatch)
    found = [each for piece in plan([str(path)]) for each in read_piece(piece)]
    assert sum(each.size for each in found if isinstance(each, Skipped)) == len(hostile)
    assert counted.bytes <= (2 * MAX_IN_VAIN + 4) * len(hostile)
    read = [block for block in read_blocks(path.read_bytes()) if isinstance(block, Damage)]
    assert [(each.offset, each.size) for each in read] == [
        (each.offset, each.size) for each in found if isinstance(each, Skipped)
    ]
    path.write_bytes(hostile)  # without a single whole block
    assert all(isinstance(each, Skipped) for piece in plan([str(path)]) for each in read_piece(piece))


def test_damaged_bodies_do_not_cost_the_blocks_behind_them() -> None:
    good = block(body_of([(1, 1, 8, 0, 0)], FRAME), count=1)
    inside = header(b"", stored=len(good) + 64, crc=1) + good  # what a lost piece of a file leaves
    found = rows_of(METADATA_BLOCK + (inside + good) * 200)
    assert len([row for row in found if row["kind"] == "frame"]) == 400


@looped("raw", [MAX_BLOCK_BYTES + 1, (1 << 64) - 1, 10])
def test_a_body_that_decompresses_to_more_than_is_allowed_is_not_decompressed(raw: int) -> None:
    body = zlib.compress(bytes(1 << 22))
    ((*_,),) = [
        row for row in rows_of(METADATA_BLOCK + block(body, flags=1, raw=raw, count=1)) if row["kind"] == "skipped"
    ]


def test_a_recorder_writes_the_half_frames_of_connections_that_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segstore.wire.trace.blocks.MAX_BLOCK_BYTES", 24 << 20)
    recorder = FileRecorder(tmp_path / "a.wtrace", Metadata(17, "test"))
    half = struct.pack(">ii", 3, 1 << 23) + bytes(1 << 22)
    numbers = [recorder.opened() for _ in range(10)]
    for number in numbers:
        recorder.received(number, half)
    for number in numbers:
        recorder.closed(number)
    recorder.close()
    with TraceFile(tmp_path / "a.wtrace") as trace:
        assert [record.data for record in trace.records() if record.kind is RecordKind.BYTES] == [half] * 10


# --- fixtures -------------------------------------------------------------------------------------------------------

FIRST = {"segstore_trace": 2, "wire_version": 17, "recorder": "test", "start_ns": 0, "values": {}}
LINE: dict[str, Any] = {
    "at_ns": 1,
    "conn": 1,
    "dir": "request",
    "type": "HELLO",
    "fields": {"high_version": 17, "low_version": 5},
}
EVENT = {"at_ns": 1, "conn": 1, "open": {"peer": "a"}}


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "0" + closing * depth


HOSTILE_JSON = st.sampled_from(
    [
        "NaN", "Infinity", "-Infinity", "1e999", "-0", "0.5", "true", "null", '"\\ud800"', '"\\u0000"', "{}", "[]",
        "9" * 4_300, "-" + "9" * 4_300, "9" * 4_301, str(1 << 63), str(-1 << 63), str(LARGEST),
        nested(300), nested(983), nested(20_000), nested(490, '{"a":', "}"), nested(20_000, '{"a":', "}"),
        '{"a":1,"a":2}', '{"self":1,"facts":2,"":3}', '{"\\ud800":"\\udfff"}', '"' + "00" * 5_000 + '"',
    ]
)  # fmt: skip


@given(st.data())
def test_hostile_json_in_any_place_of_a_fixture_gives_rows_or_skips(data: st.DataObject) -> None:
    first, line, event = json.dumps(FIRST), json.dumps(LINE), json.dumps(EVENT)
    lines = [first, line, event]
    at = data.draw(st.integers(0, 2))
    old = data.draw(
        st.sampled_from([[": 1", ": 0", "17", "{}"], [": 1", '"request"', '"HELLO"', "17", '"high_version"'],
                         [": 1", '"a"', '{"peer": "a"}', '"open"']][at])
    )  # fmt: skip
    lines[at] = lines[at].replace(old, data.draw(HOSTILE_JSON))
    found = rows_of("\n".join([*lines, line]).encode(), "a.jsonl")
    assert found
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_text("\n".join(lines))
        with TraceFile(path) as trace, suppress(TraceError):
            list(trace.records())


def test_text_that_utf_8_cannot_hold_is_replaced_in_reasons_and_in_names_of_files(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    path.write_text("\n".join(map(json.dumps, (FIRST, LINE, LINE | {"\ud800": 1}))))
    for row in both(path, ["file", "error"]):
        assert row[0].endswith("/\ufffd.jsonl")
        assert row[1] is None or row[1].startswith("\ufffd: there is no such key")


def test_a_line_that_never_ends_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("segstore.pipeline.trace.files", "segstore.traces.files", "segstore.wire.trace.fixture"):
        monkeypatch.setattr(f"{module}.LONGEST_LINE", 1_000)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(FIRST) + "\n" + " " * 5_000_000)
    assert all(isinstance(each, Skipped) for piece in plan([str(path)]) for each in read_piece(piece))
    with TraceFile(path) as trace, pytest.raises(TraceError, match="line 2: a line exceeds 1000 bytes"):
        list(trace.records())
