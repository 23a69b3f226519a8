from __future__ import annotations

from uuid import UUID

import pytest

from segstore.wire import encode
from segstore.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    SegmentIsSealed,
    SegmentTruncated,
    SetupAppend,
    TruncateSegment,
)
from segstore.wire.history import Fact, Finding, Key, placed
from segstore.wire.history.facts import Acked, Refused, Sent, SetUp
from segstore.wire.history.traces import protocol
from segstore.wire.history.traces.connections import ConnectionFold
from segstore.wire.trace import Direction, Record, RecordKind
from tests.wire.history.traces.support import facts_of

WRITER = UUID(int=7)
SEGMENT = "s/t/0.#epoch.0"
EVENT = b"\x00\x00\x00\x00\x00\x00\x00\x01a"
SET_UP = (SetupAppend(1, WRITER, SEGMENT, ""), AppendSetup(1, SEGMENT, WRITER, 4))
END = AppendBlockEnd(WRITER, len(EVENT), b"", 1, 5, 2)


def test_appends_become_facts_when_they_are_sent_and_when_they_are_answered() -> None:
    facts = facts_of(*SET_UP, AppendBlock(WRITER, EVENT), END, DataAppended(2, WRITER, 5, 4, 9))
    set_up, sent, acked = (fact.value for fact in facts)
    assert (type(set_up), set_up.stored) == (SetUp, 4)
    assert sent == Sent(SEGMENT, str(WRITER), 5, 1, EVENT)
    assert (type(acked), acked.number, acked.length, acked.store) == (Acked, 5, 9, "a:1")
    assert acked.asked.record == 4


def test_an_event_that_crosses_the_end_of_its_block_is_whole() -> None:
    partial = (-2).to_bytes(4, "big", signed=True) + (3).to_bytes(4, "big") + EVENT[:3]
    end = AppendBlockEnd(WRITER, len(EVENT), EVENT[3:], 2, 6, 2)
    sent = facts_of(*SET_UP, AppendBlock(WRITER, EVENT + partial), end)[1].value
    assert sent == Sent(SEGMENT, str(WRITER), 6, 2, EVENT + EVENT)


def test_a_failed_append_and_one_whose_writer_is_not_known() -> None:
    refused = facts_of(*SET_UP, AppendBlock(WRITER, EVENT), END, SegmentIsSealed(2, SEGMENT, "", 5))[-1].value
    assert refused == Refused(SEGMENT, str(WRITER), 5)
    assert facts_of(AppendBlock(WRITER, EVENT), END, opened=False) == []


def test_appends_that_are_sent_before_the_reply_to_the_set_up() -> None:
    set_up, answer = SET_UP
    facts = facts_of(set_up, AppendBlock(WRITER, EVENT), END, answer, DataAppended(2, WRITER, 5, 4, 9))
    assert [type(fact.value) for fact in facts] == [Sent, SetUp, Acked]


def test_bytes_that_form_no_frame_may_hold_appends_unless_a_frame_is_cut_off() -> None:
    frame = encode(END)
    for datas, count in (((frame[:-1],), 0), ((frame,), 1), ((frame[:3],), 0), ((frame[:9], frame[9:]), 1)):
        findings: list[Finding] = []
        fold = ConnectionFold(Key("connection", ":1"), findings)
        records = [Record(1, 1, Direction.REQUEST, RecordKind.FRAME, encode(SET_UP[0]))]
        records += (Record(2, 1, Direction.REQUEST, RecordKind.BYTES, data) for data in datas)
        for place, record in placed(records):
            fold.see(place, record)
        facts = [finding.value for finding in findings if isinstance(finding, Fact)]
        assert [(fact.writer, fact.data) for fact in facts] == [(str(WRITER), None)] * count, datas


def test_too_many_pending_requests_become_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_WAITING", 2)
    requests = (TruncateSegment(number, SEGMENT, number, "") for number in (1, 2, 3))
    facts = facts_of(*requests, SegmentTruncated(1, SEGMENT), SegmentTruncated(3, SEGMENT))
    assert [(fact.value.what, fact.value.offset) for fact in facts] == [
        ("truncating", 1),
        ("truncating", 2),
        ("truncated", 3),
    ]
