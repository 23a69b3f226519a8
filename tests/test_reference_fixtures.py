"""What a real Pravega answered to two clients, in fixtures/reference: segstore's own store answers them alike."""

from __future__ import annotations

import re
from pathlib import Path

from segstore.server import MockSegmentStore
from segstore.traces import ReplyDifference, TraceFile, drive, report
from segstore.wire import TableEntriesDeltaRead, decode
from segstore.wire.trace import Direction, Exchanges, Record, RecordKind
from tests.looped import looped
from tests.server.traffic import check_replayed_as_a_server

FOLDER = Path(__file__).parent.parent / "fixtures" / "reference"
TRACES = sorted(FOLDER.glob("*.jsonl"))
MOST_BYTES = 250_000

every_trace = looped("path", TRACES)


def read(path: Path) -> list[Record]:
    with TraceFile(path) as trace:
        records = list(trace.records())
        assert trace.damages == []
        assert trace.metadata.values["scenario"] == path.stem
        assert trace.metadata.values["store"].startswith("Pravega 0.15.0-SNAPSHOT")
        return records


def is_order_of_a_delta(difference: ReplyDifference) -> bool:
    """Whether two deltas of a table hold the same entries, each where it likes."""
    if difference.expected is None or difference.actual is None:
        return False
    expected, actual = decode(difference.expected), decode(difference.actual)
    if not isinstance(expected, TableEntriesDeltaRead) or not isinstance(actual, TableEntriesDeltaRead):
        return False
    entries = [sorted(map(repr, each.entries.entries)) for each in (expected, actual)]
    rest = [
        (each.request_id, each.segment, each.should_clear, each.reached_end, each.last_position)
        for each in (expected, actual)
    ]
    return entries[0] == entries[1] and rest[0] == rest[1]


def test_the_traces_are_those_that_the_readme_names_and_stay_small() -> None:
    named = re.findall(r"^\| (\S+\.jsonl) \| \S", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [path.name for path in TRACES]
    assert len(named) == 12
    assert sum(path.stat().st_size for path in TRACES) < MOST_BYTES


@every_trace
def test_every_frame_of_the_reference_decodes_and_every_reply_answers_something(path: Path) -> None:
    exchanges = Exchanges()
    replies = 0
    for number, record in enumerate(read(path)):
        seen = exchanges.see(record)
        assert record.kind is not RecordKind.BYTES
        if record.kind is RecordKind.FRAME:
            assert seen.command is not None, f"record {number} does not decode"
            if record.direction is Direction.REPLY:
                replies += 1
                assert seen.answers, f"record {number}, {seen.command.type_name}, answers nothing"
    assert replies > 10


@every_trace
async def test_a_fresh_store_answers_as_the_reference_did(path: Path) -> None:
    records = read(path)
    async with MockSegmentStore() as mock:
        found = await drive(records, mock.host, mock.port, all_differences=True)
    real = [each for each in found.differences if not is_order_of_a_delta(each)]
    assert [line for each in real for line in report(each)] == []
    replies = sum(each.kind is RecordKind.FRAME and each.direction is Direction.REPLY for each in records)
    assert found.replies == replies


@every_trace
async def test_replayed_as_a_server_it_says_what_the_reference_said(path: Path) -> None:
    await check_replayed_as_a_server(read(path))
