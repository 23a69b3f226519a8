"""Conditions mean the same on columns, on rows and on blocks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from segstore.pipeline.trace.columns import select
from segstore.pipeline.trace.files import plan
from segstore.pipeline.trace.filter import FILTERED, Chosen, Condition, condition
from segstore.pipeline.trace.reading import read_piece
from segstore.pipeline.trace.rows import time_of
from segstore.wire import DataAppended, Hello, KeepAlive, NoSuchSegment
from segstore.wire.trace import RecordKind
from tests.looped import looped
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
COLUMNS = select([*FILTERED, "error"])
VALUES: dict[str, list[Any]] = {
    "kind": ["frame", "close", "skipped", "no"],
    "direction": ["request", "reply"],
    "command": ["HELLO", "UNKNOWN", "NO_SUCH_SEGMENT", "no"],
    "failure": [True, False],
    "code": [-127, 111, 7, 1 << 40],
    "connection": [1, 2, 1 << 70],
    "ts_ns": [-3_000, 0, 2_000, 7_000],
    "size": [0, 8, 16, 1 << 70],
    "time": [time_of(at) for at in (-3_000, 0, 2_000, 2_500, 7_000)],
}


def test_a_condition_on_time_passes_over_blocks_that_cannot_have_it(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "a.wtrace", RECORDS, a_block=2)
    (piece,) = plan([str(path)])

    def read(*drawn: Condition | None) -> int:
        chosen = Chosen(tuple(each for each in drawn if each is not None))
        return sum(
            len(found) for found in read_piece(piece, takes_block=chosen.takes_block) if hasattr(found, "columns")
        )

    assert read(condition("ts_ns", "=", (2_000,))) == 2
    assert read(condition("ts_ns", ">", (6_000,))) == 1
    assert read(condition("ts_ns", ">", (2_000,)), condition("ts_ns", "<=", (4_000,))) == 2
    assert read(condition("time", "<", (datetime(1970, 1, 1, tzinfo=UTC),))) == 2
    assert read(condition("ts_ns", "in", (7_000, 99_000))) == 1
    assert read(condition("ts_ns", "=", (2_000,), negated=True)) == 9


@looped(
    ("column", "values"),
    [
        ("request_id", (5,)),
        ("code", ("7",)),
        ("code", (7.0,)),
        ("failure", (1,)),
        ("time", (datetime(2026, 1, 1),)),  # noqa: DTZ001 — that is the point
    ],
)
def test_a_condition_that_is_not_decided_here_is_left_to_spark(column: str, values: tuple[Any, ...]) -> None:
    assert condition(column, "=", values) is None
