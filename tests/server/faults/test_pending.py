"""Which pending request a reply answers, and how many are remembered."""

from __future__ import annotations

from segstore.server.faults.decisions import Plan
from segstore.server.faults.observe import request_seen
from segstore.server.faults.pending import PendingRequests, PlannedReply
from segstore.wire import Command, DataAppended, ErrorMessage, ErrorMessageCode, Hello, KeepAlive, SegmentRead
from segstore.wire.blocks import Append
from tests.server.support import SEGMENT, WRITER, read


def asked(item: Command | Append, number: int = 1) -> PlannedReply:
    return PlannedReply(request_seen(item, number, store=0, connection=1, now_s=0.0, started_s=0.0), Plan())


def test_an_acknowledgement_answers_all_appends_up_to_its_number() -> None:
    pending = PendingRequests()
    items = [Append(SEGMENT, WRITER, number, 1, memoryview(b"data"), None, 3) for number in (1, 2, 3)]
    notes = [asked(each, number) for number, each in enumerate(items)]
    for item, note in zip(items, notes, strict=True):
        assert pending.add(item, note)
    assert pending.answered_by(DataAppended(3, WRITER, 2, 0, 8)) == notes[:2]
    failed = ErrorMessage(3, SEGMENT, "", ErrorMessageCode.UNSPECIFIED)
    assert pending.answered_by(failed) == notes[2:]
    assert pending.answered_by(failed) == []


def test_replies_find_their_requests_by_id_and_those_without_an_id_by_their_type() -> None:
    pending = PendingRequests()
    notes = [asked(each) for each in (read(0, request_id=1), KeepAlive(), read(0, request_id=2))]
    for item, note in zip((read(0, request_id=1), KeepAlive(), read(0, request_id=2)), notes, strict=True):
        assert pending.add(item, note)
    assert pending.answered_by(SegmentRead(SEGMENT, 0, False, False, b"", 2)) == [notes[2]]
    assert pending.answered_by(KeepAlive()) == [notes[1]]
    assert pending.answered_by(Hello(17, 5)) == []


def test_requests_that_are_never_answered_do_not_pile_up() -> None:
    pending, note = PendingRequests(), asked(read(0))
    added = [pending.add(read(0, request_id=number), note) for number in range(20_000)]
    assert added.count(False) == 1
    assert len(pending) <= 16_384
    assert not pending.is_full, "reads wait at the tail"
    assert pending.answered_by(SegmentRead(SEGMENT, 0, False, False, b"", 19_999)) == [note]
