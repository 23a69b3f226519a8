from __future__ import annotations

import pytest

from segstore.wire import Command
from segstore.wire.commands import (
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
    StreamSegmentInfo,
    TruncateSegment,
    WrongHost,
)
from segstore.wire.history.facts import Changed, Key, Passed, Read
from tests.wire.history.traces.support import facts_of

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
