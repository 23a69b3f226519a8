"""The recorded traces in fixtures/: they decode, lose nothing in either form, are asked and answered alike again.

Those of `reference` are what a real Pravega answered: segstore's own store answers them alike.
"""

import re
from functools import partial
from pathlib import Path

import pytest

from segstore.server import MockSegmentStore
from segstore.traces import ReplyDifference, TraceFile, drive, report, write_trace
from segstore.wire import TableEntriesDeltaRead, decode, encode
from segstore.wire.trace import Direction, Exchanges, Metadata, Record, RecordKind
from tests.looped import looped
from tests.server.traffic import check_replayed_as_a_server

FIXTURES = Path(__file__).parent.parent / "fixtures"
REFERENCE = FIXTURES / "reference"
TRACES = sorted([*REFERENCE.glob("*.jsonl"), *(FIXTURES / "traces").glob("*.jsonl")])

every_trace = pytest.mark.parametrize("path", TRACES, ids=[f"{path.parent.name}-{path.stem}" for path in TRACES])

CLIENTS = {"java": "pravega-client 0.15.0-SNAPSHOT", "controller_calls": "segstore 0.1.0"}


def read(path: Path) -> tuple[Metadata, list[Record]]:
    with TraceFile(path) as trace:
        records = list(trace.records())
        assert trace.damages == []
        return trace.metadata, records


def frames(records: list[Record]) -> list[Record]:
    return [record for record in records if record.kind is RecordKind.FRAME]


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


@looped(("folder", "count", "most_bytes"), [("traces", 7, 300_000), ("reference", 12, 250_000)])
def test_the_traces_are_those_that_the_readme_names_and_stay_small(folder: str, count: int, most_bytes: int) -> None:
    readme = (FIXTURES / folder / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (\S+\.jsonl) \| \S", readme, re.MULTILINE)
    traces = [path for path in TRACES if path.parent.name == folder]
    assert sorted(named) == [path.name for path in traces]
    assert len(named) == count
    assert sum(path.stat().st_size for path in traces) < most_bytes


@every_trace
def test_every_frame_decodes_and_says_all_that_its_bytes_say(path: Path) -> None:
    metadata, records = read(path)
    assert metadata.wire_version == 17
    assert metadata.values["scenario"] == path.stem
    if path.parent == REFERENCE:
        assert metadata.values["store"].startswith("Pravega 0.15.0-SNAPSHOT")
    else:
        assert metadata.values["client"] == CLIENTS.get(path.stem, "pravega 0.3.8")
    assert len(records) > 20
    assert not [each for each in records if each.kind is RecordKind.BYTES]
    exchanges = Exchanges()
    for number, record in enumerate(records):
        seen = exchanges.see(record)
        if record.kind is RecordKind.FRAME:
            assert seen.command is not None, f"record {number} does not decode"
            # A shorter, older form is written anew in the current one; what it says stays the same.
            again = decode(encode(seen.command))
            assert again == decode(record.data)
            if record.direction is Direction.REPLY:
                assert seen.answers, f"record {number}, {again.type_name}, answers nothing"


@every_trace
def test_a_capture_of_it_converted_back_is_the_same_file(path: Path, tmp_path: Path) -> None:
    metadata, records = read(path)
    for number, compress in enumerate((False, True)):
        capture, back = tmp_path / f"{number}.wtrace", tmp_path / f"{number}.jsonl"
        write_trace(capture, records, lambda: metadata, compress=compress)
        captured, from_capture = read(capture)
        assert from_capture == records
        assert captured == metadata
        write_trace(back, from_capture, partial(Metadata, captured.wire_version, captured.recorder, captured.values))
        assert back.read_bytes() == path.read_bytes()


@every_trace
async def test_a_fresh_store_answers_it_as_was_recorded(path: Path) -> None:
    _, records = read(path)
    async with MockSegmentStore() as mock:
        found = await drive(records, mock.host, mock.port, all_differences=True)
    differences = [each for each in found.differences if path.parent != REFERENCE or not is_order_of_a_delta(each)]
    assert [line for difference in differences for line in report(difference)] == []
    sent = [frame for frame in frames(records) if frame.direction is Direction.REQUEST]
    assert (found.requests, found.replies) == (len(sent), len(frames(records)) - len(sent))


@every_trace
async def test_replayed_as_a_server_it_says_what_was_recorded(path: Path) -> None:
    _, records = read(path)
    await check_replayed_as_a_server(records)


async def test_another_order_than_that_of_a_delta_is_reported() -> None:
    """The comparison above could pass over too much."""
    _, records = read(REFERENCE / "group.jsonl")
    async with MockSegmentStore() as mock:
        found = await drive(records, mock.host, mock.port, all_differences=True)
    of_deltas = [difference for difference in found.differences if is_order_of_a_delta(difference)]
    assert of_deltas
    assert not is_order_of_a_delta(of_deltas[0]._replace(actual=None))
    other = next(frame.data for frame in frames(records) if frame.direction is Direction.REPLY)
    assert not is_order_of_a_delta(of_deltas[0]._replace(actual=other))
