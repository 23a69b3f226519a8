"""Requests that wait are the same in memory and on disk, and few of them are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from segstore.pipeline.report import connection
from segstore.pipeline.report.exchange import Request, Row, to_row
from segstore.pipeline.report.pending import UnfinishedRequests
from segstore.pipeline.report.reference import Reference, reference
from segstore.pipeline.trace.rows import trace_rows
from segstore.wire import AppendBlockEnd, DataAppended
from segstore.wire.trace import Record
from tests.pipeline.planted import planted, soup
from tests.pipeline.support import write_capture
from tests.wire.trace.traces import record


def made(trace: Path, held: int) -> Reference:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "UnfinishedRequests", lambda: UnfinishedRequests(held))
        return reference(str(trace))


@pytest.mark.parametrize("held", [1, 2, 5, 50])
@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_how_many_are_held(tmp_path: Path, seed: int, held: int) -> None:
    for records in (planted(seed)[0], soup(seed, 1000, 2)):
        trace = write_capture(tmp_path / "a.wtrace", records, a_block=50)
        found, plain = made(trace, held), reference(str(trace))
        assert found.exchanges == plain.exchanges


def rows(tmp_path: Path, records: list[Record]) -> Iterator[Row]:
    trace = write_capture(tmp_path / "a.wtrace", records, a_block=100)
    return map(to_row, trace_rows(str(trace), Row._fields))


def test_of_a_writer_that_is_acknowledged_now_and_then_few_appends_are_in_memory(tmp_path: Path) -> None:
    records, writer = [], UUID(int=1)
    for number in range(1, 501):
        records.append(record(AppendBlockEnd(writer, 1, b"x", 1, number, number)))
        if number % 10 == 0:
            records.append(record(DataAppended(number, writer, number, number - 10, 0), reply=True))
    pending, most = UnfinishedRequests(8), 0
    for count, row in enumerate(rows(tmp_path, records)):
        if row.direction == "request":
            request = Request(row, count)
            request.epoch = 1
            pending.add(request, append=True)
        else:
            answered = pending.answer(row)
            assert answered is not None
            assert answered.row.request_id == row.request_id
            pending.acknowledge(1, row)
        most = max(most, len(pending))
    assert most <= 8
    left = list(pending.rest())
    assert [each.row.event_number for each in left] == list(range(1, 501))
    assert all(each.ack is not None and each.ack.event_number - each.row.event_number < 10 for each in left)
    assert sum(each.reply is not None for each in left) == 50
