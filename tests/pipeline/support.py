"""Traces on disk, and rows of them both ways, for the tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from segstore.pipeline.trace.batches import BatchMaker
from segstore.pipeline.trace.columns import TraceColumn, select
from segstore.pipeline.trace.files import FileRange, find_files, plan
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import Row, RowMaker
from segstore.wire.trace import CONTROLLER, Call, Direction, Metadata, Record, RecordKind, write_lines
from tests.wire.trace.traces import capture

__all__ = ["as_dicts", "both", "controller_calls", "plain", "vectorised", "write_capture", "write_fixture"]


def controller_calls() -> list[Record]:
    """Calls with their answers, three of which failed, and one without an answer."""
    answers = [
        ("createStream", b"", "OK"),
        *[("createStream", b"\x08\x02", "OK")] * 2,
        ("createStream", b"", "UNAVAILABLE"),
        ("pingTransaction", b"\x08\x05", "OK"),
        ("createScope", b"", ""),
    ]
    calls = [
        (way, Call(number, rpc, message if way else b"", status=status if way else ""))
        for number, (rpc, message, status) in enumerate(answers, 1)
        for way in Direction
        if status or not way
    ]
    return [Record(at, CONTROLLER, way, RecordKind.CALL, call.pack()) for at, (way, call) in enumerate(calls)]


def write_capture(path: Path, records: list[Record], **how: Any) -> Path:
    path.write_bytes(capture(records, **how))
    return path


def write_fixture(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(write_lines(Metadata(17, "test", {}), records)))
    return path


def pieces(paths: Iterable[Path], piece_bytes: int) -> list[FileRange]:
    return plan(find_files(map(str, paths)), piece_bytes)


def plain(
    paths: Iterable[Path], columns: tuple[TraceColumn, ...], *, piece_bytes: int = 1 << 25, **how: Any
) -> list[Row]:
    maker = RowMaker(columns, **how)
    return [row for piece in pieces(paths, piece_bytes) for found in read_piece(piece) for row in maker.rows(found)]


def vectorised(
    paths: Iterable[Path], columns: tuple[TraceColumn, ...], *, piece_bytes: int = 1 << 25, **how: Any
) -> list[Row]:
    maker = BatchMaker(RowMaker(columns, **how))
    rows = []
    for piece in pieces(paths, piece_bytes):
        for found in read_piece(piece):
            for batch in maker.batches(found):
                assert batch.schema == maker.schema
                batch.validate(full=True)
                rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def both(path: Path, columns: Iterable[str] | None = None, **how: Any) -> list[Row]:
    """The rows of one trace, which both ways to them give alike."""
    chosen = select(columns)
    found = plain([path], chosen, **how)
    assert vectorised([path], chosen, **how) == found
    return found


def as_dicts(path: Path, columns: list[str], **how: Any) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in both(path, columns, **how)]
