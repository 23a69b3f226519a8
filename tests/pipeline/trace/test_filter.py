"""A selection means the same on columns, on rows and on blocks."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from segstore.pipeline.trace.columns import select
from segstore.pipeline.trace.files import plan
from segstore.pipeline.trace.filter import Chosen
from segstore.pipeline.trace.reading import read_piece
from segstore.wire import DataAppended, Hello, KeepAlive, NoSuchSegment
from segstore.wire.trace import RecordKind
from tests.pipeline.support import write_capture
from tests.wire.trace.traces import frame, record

RECORDS = [
    record(Hello(17, 5), at=-3_000),
    record(Hello(17, 5), at=1_000, reply=True),
    record(DataAppended(1, UUID(int=1), 1, 0, 0), at=2_000, connection=2, reply=True),
    record(NoSuchSegment(1, "s", "", 0), at=2_000, connection=3, reply=True),
    record(KeepAlive(), at=3_000),
    record(frame(111), at=4_000),
    record(b"ab", at=5_000),
    record(b"ab", at=6_000, kind=RecordKind.BYTES),
    record(b"{}", at=7_000, kind=RecordKind.CLOSE),
]
COLUMNS = select(["kind", "command", "connection", "ts_ns", "size", "error"])


def test_bounds_of_time_pass_over_blocks_that_cannot_match(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", RECORDS, a_block=2)
    (piece,) = plan([str(path)])
    for chosen, records in (
        (Chosen(from_ns=2_000, until_ns=2_001), 2),
        (Chosen(from_ns=6_001), 1),
        (Chosen(from_ns=2_001, until_ns=4_001), 2),
        (Chosen(until_ns=0), 2),
        (Chosen(frozenset(("HELLO",)), frozenset((3,))), 9),
    ):
        chunks = read_piece(piece, takes_block=chosen.takes_block)
        assert sum(len(chunk) for chunk in chunks if hasattr(chunk, "columns")) == records
