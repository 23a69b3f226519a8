"""Rows in plain Python: the events of appends, and paths that hold no trace."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from uuid import UUID

from segstore.client.stream import frame_event
from segstore.pipeline.trace.rows import events_json, trace_rows
from segstore.wire import AppendBlock, AppendBlockEnd, Command, ConditionalAppend, DataAppended, Event

FIXTURES = Path(__file__).parent.parent.parent.parent / "fixtures" / "traces"
W = UUID(int=1)


def test_each_event_of_an_append_is_in_the_list_of_the_command_in_which_it_starts() -> None:
    one, split = frame_event(b'{"a": 1}'), frame_event(b"split\xff")
    head = struct.Struct(">ii").pack
    cases: tuple[tuple[Command, list[object]], ...] = (
        (AppendBlock(W, one + head(-1, 4) + bytes(4)), [{"a": 1}]),
        (AppendBlock(W, one + head(-2, 11) + split[:11]), [{"a": 1}, {"hex": b"spl".hex(), "bytes": 6}]),
        (AppendBlock(W, one + head(-2, 4) + split[:4]), [{"a": 1}, {"hex": "00000000", "bytes": None}]),
        (AppendBlockEnd(W, len(one), split[11:], 2, 2, 1), []),
        (AppendBlockEnd(W, len(one), b"", 1, 1, 1), []),
        (AppendBlockEnd(W, 2 * len(one), one + one, 2, 2, 1), [{"a": 1}, {"a": 1}]),
        (AppendBlockEnd(W, 5, b"bytes", 1, 1, 1), ["bytes"]),
        (ConditionalAppend(W, 1, 0, Event(b""), 1), [""]),
    )
    for command, events in cases:
        assert json.loads(events_json(command) or "") == events, command
    assert events_json(DataAppended(1, W, 1, 0, 0)) is None


def test_appends_of_the_official_client_have_their_events() -> None:
    for name, count in (("write", 14), ("seal", 13), ("read_group", 12), ("transaction", 5)):
        rows = list(trace_rows(str(FIXTURES / f"{name}.jsonl"), ["events"]))
        assert sum(len(json.loads(events)) for (events,) in rows if events) == count, name
