from __future__ import annotations

from uuid import UUID

import pytest

from segstore.wire import Command
from segstore.wire.blocks import framed
from segstore.wire.commands import (
    AppendSetup,
    ConditionalBlockEnd,
    DataAppended,
    DeleteSegment,
    GetStreamSegmentInfo,
    MergeSegments,
    MergeSegmentsBatch,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
    SegmentIsTruncated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    WrongHost,
)
from segstore.wire.history.facts import Changed, GroupUpdate, Key, Passed, Read
from segstore.wire.reader_groups import AcquireSegment, AddReader, ReleaseSegment, Update, encode_update
from segstore.wire.revisioned import encode_updates
from tests.wire.history.traces.support import facts_of

WRITER = UUID(int=7)
STATE = "s/_RGgroup/0.#epoch.0"
SEGMENT = "s/t/0.#epoch.0"
PART = f"{SEGMENT}#transaction.{'0' * 32}"


@pytest.mark.parametrize(
    ("request_", "reply", "facts"),
    [
        (SealSegment(1, SEGMENT, ""), SegmentSealed(1, SEGMENT), [("sealed", -1, "")]),
        (TruncateSegment(1, SEGMENT, 9, ""), SegmentTruncated(1, SEGMENT), [("truncated", 9, "")]),
        (MergeSegments(1, SEGMENT, PART, ""), SegmentsMerged(1, SEGMENT, PART, 30), [("merged", 30, PART)]),
        (
            MergeSegmentsBatch(1, SEGMENT, ["a", "b"], ""),
            SegmentsBatchMerged(1, SEGMENT, ["a", "b"], [5, 7]),
            [("merged", 5, "a"), ("merged", 7, "b")],
        ),
        (
            GetStreamSegmentInfo(1, SEGMENT, ""),
            StreamSegmentInfo(1, SEGMENT, True, True, False, 0, 30, 9),
            [("described", 30, "")],
        ),
        (SealSegment(1, SEGMENT, ""), NoSuchSegment(1, SEGMENT), []),
    ],
)
def test_answered_requests(request_: Command, reply: Command, facts: list[tuple[str, int, str]]) -> None:
    changes = [fact.value for fact in facts_of(request_, reply) if fact.key.kind == "segment"]
    assert all(isinstance(change, Changed) for change in changes)
    assert [(change.what, change.offset, change.source) for change in changes] == facts


def test_a_read_has_its_reader_and_its_request() -> None:
    fact, _ = facts_of(ReadSegment(SEGMENT, 3, 9, "", 1), SegmentRead(SEGMENT, 3, True, False, b"abc", 1))
    assert isinstance(fact.value, Read)
    assert (fact.value.offset, fact.value.data, fact.value.asked.record) == (3, b"abc", 1)


@pytest.mark.parametrize(
    ("request_", "reply", "passed"),
    [
        (ReadSegment(SEGMENT, 3, 9, "", 1), SegmentRead(SEGMENT, 3, True, False, b"abc", 1), [(3, 6)]),
        (ReadSegment(SEGMENT, 3, 9, "", 1), SegmentRead(SEGMENT, 3, True, False, b"", 1), []),
        (ReadSegment(SEGMENT, 3, 9, "", 1), SegmentIsTruncated(1, SEGMENT, 8), [(0, 8)]),
        (ReadSegment(SEGMENT, 3, 9, "", 1), WrongHost(1, SEGMENT, ""), [(0, -1)]),
        (GetStreamSegmentInfo(1, SEGMENT, ""), StreamSegmentInfo(1, SEGMENT, True, True, False, 0, 30, 9), [(0, 9)]),
        (GetStreamSegmentInfo(1, SEGMENT, ""), StreamSegmentInfo(1, SEGMENT, True, True, False, 0, 30, 0), []),
    ],
)
def test_bytes_that_no_reader_misses(request_: Command, reply: Command, passed: list[tuple[int, int]]) -> None:
    facts = [fact for fact in facts_of(request_, reply) if fact.key == Key("positions", "s")]
    assert [fact.value for fact in facts] == [Passed(SEGMENT, *each) for each in passed]


def test_requests_without_an_answer_may_have_been_applied() -> None:
    lost = [
        fact.value
        for fact in facts_of(
            SealSegment(1, SEGMENT, ""),
            DeleteSegment(2, SEGMENT, ""),
            TruncateSegment(3, SEGMENT, 9, ""),
            MergeSegments(4, SEGMENT, PART, ""),
        )
    ]
    assert lost[0].what == "deleting"
    assert [(change.what, change.offset, change.source) for change in lost[-2:]] == [
        ("truncating", 9, ""),
        ("merging", -1, PART),
    ]


def test_updates_of_a_group_have_offsets() -> None:
    steps: list[Update] = [AddReader("a"), AcquireSegment("a", "s/t/0"), ReleaseSegment("a", "s/t/0", 7)]
    state = encode_updates([encode_update(step) for step in steps])
    update = GroupUpdate(STATE, 40, 48 + len(state), tuple(steps))
    for data, segment, updates in (
        (state, STATE, [update]),
        (state, "s/t/0.#epoch.0", []),
        (b"no state", STATE, []),  # another application may use such a name
    ):
        facts = facts_of(
            *(SetupAppend(1, WRITER, segment, ""), AppendSetup(1, segment, WRITER, 0)),
            ConditionalBlockEnd(WRITER, 1, 40, framed([data])[0], 2),
            DataAppended(2, WRITER, 1, 0, 90),
        )
        assert [fact.value for fact in facts if fact.key == Key("positions", "s")] == updates
