"""The recorded traces in fixtures/: they decode, lose nothing in either form, are asked and answered alike again."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from segstore.server import MockSegmentStore
from segstore.traces import TraceFile, drive, report, write_trace
from segstore.wire import decode, encode
from segstore.wire.trace import Direction, Exchanges, Metadata, Record, RecordKind
from tests.server.traffic import check_replayed_as_a_server

FOLDER = Path(__file__).parent.parent / "fixtures" / "traces"
TRACES = sorted(FOLDER.glob("*.jsonl"))
MOST_BYTES = 300_000

every_trace = pytest.mark.parametrize("path", TRACES, ids=[path.stem for path in TRACES])

CLIENTS = {"java": "pravega-client 0.15.0-SNAPSHOT", "controller_calls": "segstore 0.1.0"}


def read(path: Path) -> tuple[Metadata, list[Record]]:
    with TraceFile(path) as trace:
        records = list(trace.records())
        assert trace.damages == []
        return trace.metadata, records


def frames(records: list[Record]) -> list[Record]:
    return [each for each in records if each.kind is RecordKind.FRAME]


def test_the_traces_are_those_that_the_readme_names_and_stay_small() -> None:
    named = re.findall(r"^\| (\S+\.jsonl) \| \S", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [path.name for path in TRACES]
    assert len(named) >= 5
    assert sum(path.stat().st_size for path in TRACES) < MOST_BYTES


@every_trace
def test_every_frame_decodes_and_says_all_that_its_bytes_say(path: Path) -> None:
    metadata, records = read(path)
    assert metadata.wire_version == 17
    client = CLIENTS.get(path.stem, "pravega 0.3.8")
    assert (metadata.values["scenario"], metadata.values["client"]) == (path.stem, client)
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
    assert [line for each in found.differences for line in report(each)] == []
    sent = [each for each in frames(records) if each.direction is Direction.REQUEST]
    assert (found.requests, found.replies) == (len(sent), len(frames(records)) - len(sent))


@every_trace
async def test_replayed_as_a_server_it_says_what_was_recorded(path: Path) -> None:
    _, records = read(path)
    await check_replayed_as_a_server(records)
