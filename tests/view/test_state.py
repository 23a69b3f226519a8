"""What replies say about segments, writers and transactions at each record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from uuid import UUID

from segstore.view.state import States, Value
from segstore.wire import (
    AppendSetup,
    Command,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    GetStreamSegmentInfo,
    MergeSegments,
    NoSuchSegment,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SegmentSealed,
    SegmentsMerged,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    WrongHost,
    encode,
)
from segstore.wire.names import transaction_name
from segstore.wire.trace import Direction, Exchanges, Record, RecordKind

SEGMENT = "scope/stream/0.#epoch.0"
WRITER, TRANSACTION = UUID(int=7), UUID(int=9)
ENTITY = ("segment", SEGMENT, "")
Said = tuple[int, Command | None] | Command


def states_after(*said: Said) -> tuple[States, int]:
    """Takes commands in order, each on connection 1 or with the number of its connection; None ends a connection."""
    states, exchanges = States(), Exchanges()
    for at, each in enumerate(said):
        connection, command = each if isinstance(each, tuple) else (1, each)
        if command is None:
            record = Record(at, connection, Direction.REQUEST, RecordKind.CLOSE, b"{}")
        else:
            way = Direction.REQUEST if command.is_request else Direction.REPLY
            record = Record(at, connection, way, RecordKind.FRAME, encode(command))
        states.see(at, 10 - connection, exchanges.see(record))  # lanes are no connection numbers
    return states, len(said) - 1


def state(states: States, entity: Sequence[str], at: int) -> dict[str, Value]:
    """The state of an entity after a record, as the page finds it."""
    (facts,) = (facts for *key, facts in states.as_json() if key == list(entity))
    found: dict[str, Value] = {}
    for fact, (records, values) in facts.items():
        last = 0
        for record, value in zip(accumulate(records), values, strict=True):
            last += value if isinstance(value, int) else 0
            if record <= at:
                found[fact] = last if isinstance(value, int) else value
    return found


def test_a_segment_is_created_grows_is_truncated_sealed_and_deleted() -> None:
    states, last = states_after(
        SegmentCreated(1, SEGMENT),
        SetupAppend(2, WRITER, SEGMENT, ""),
        AppendSetup(2, SEGMENT, WRITER, -(2**63)),
        DataAppended(3, WRITER, 5, -(2**63), 100),
        TruncateSegment(4, SEGMENT, 40, ""),
        SegmentTruncated(4, SEGMENT),
        SealSegment(5, SEGMENT, ""),
        SegmentSealed(5, SEGMENT),
        DeleteSegment(6, SEGMENT, ""),
        SegmentDeleted(6, SEGMENT),
        SegmentIsSealed(7, SEGMENT, "", 100),  # of a read that waited
    )
    new = {"exists": "yes", "length": 0, "start offset": 0, "sealed": "no"}
    assert state(states, ENTITY, 0) == new
    assert state(states, ENTITY, 2) == new
    assert state(states, ENTITY, 3) == {**new, "length": 100}
    assert state(states, ENTITY, 4) == {**new, "length": 100}, "a request alone changes nothing"
    assert state(states, ENTITY, 5) == {**new, "length": 100, "start offset": 40}
    assert state(states, ENTITY, 7) == {**new, "length": 100, "start offset": 40, "sealed": "yes"}
    assert state(states, ENTITY, last)["exists"] == "no"


def test_the_length_of_a_table_segment_is_unknown() -> None:
    states, last = states_after(CreateTableSegment(1, SEGMENT, False, 0, "", 0), SegmentCreated(1, SEGMENT))
    assert state(states, ENTITY, last) == {"exists": "yes", "start offset": 0, "sealed": "no"}


def test_other_replies_say_something_about_a_segment_too() -> None:
    states, last = states_after(
        SegmentIsTruncated(1, SEGMENT, 10, "", 3),
        SegmentRead(SEGMENT, 20, True, False, b"12345", 2),
        SegmentRead(SEGMENT, 0, False, False, b"1", 3),
        GetStreamSegmentInfo(4, SEGMENT, ""),
        StreamSegmentInfo(4, SEGMENT, True, False, False, 0, 77, 11),
        SegmentIsSealed(5, SEGMENT, "", 0),
        NoSuchSegment(6, SEGMENT, "", 0),
        WrongHost(7, SEGMENT, "other:1", ""),
    )
    assert state(states, ENTITY, 0) == {"exists": "yes", "start offset": 10}
    assert state(states, ENTITY, 2) == {"exists": "yes", "start offset": 10, "length": 25}
    assert state(states, ENTITY, 4) == {"exists": "yes", "start offset": 11, "length": 77, "sealed": "no"}
    assert state(states, ENTITY, 5)["sealed"] == "yes"
    assert state(states, ENTITY, last)["exists"] == "no"


def test_a_writer_is_set_up_on_connections_until_they_end() -> None:
    states, last = states_after(
        SetupAppend(1, WRITER, SEGMENT, ""),
        AppendSetup(1, SEGMENT, WRITER, -(2**63)),
        DataAppended(2, WRITER, 8, -(2**63), -1),
        (2, SetupAppend(1, WRITER, SEGMENT, "")),
        (2, AppendSetup(1, SEGMENT, WRITER, 8)),
        (1, None),
        (2, None),
    )
    entity, acknowledged = ("writer", str(WRITER), SEGMENT), "last event number acknowledged"
    connections = "set up on connections"
    assert state(states, entity, 1) == {connections: "1", acknowledged: "none"}
    assert state(states, entity, 2) == {connections: "1", acknowledged: 8}
    assert state(states, entity, 4) == {connections: "1, 2", acknowledged: 8}
    assert state(states, entity, 5) == {connections: "2", acknowledged: 8}
    assert state(states, entity, last) == {connections: "none", acknowledged: 8}
    assert "length" not in state(states, ENTITY, last), "older versions do not say the offset"


def test_a_transaction_is_open_then_committed_or_aborted() -> None:
    segments = [transaction_name(f"scope/stream/{number}.#epoch.0", TRANSACTION) for number in range(2)]
    target = "scope/stream/0.#epoch.0"
    states, last = states_after(
        SegmentCreated(1, segments[0]),
        SegmentCreated(2, segments[1]),
        MergeSegments(3, target, segments[0], ""),
        SegmentsMerged(3, target, segments[0], 50),
        DeleteSegment(4, segments[1], ""),
        SegmentDeleted(4, segments[1]),
    )
    entity = ("transaction", str(TRANSACTION), "")
    assert state(states, entity, 1) == {"state": "open", "segments created": 2}
    assert state(states, entity, 3) == {"state": "committed", "segments created": 2, "segments committed": 1}
    assert state(states, entity, last)["state"] == "aborted"
    assert state(states, ("segment", segments[0], ""), last)["merged into"] == target
    assert state(states, ("segment", target, ""), last)["length"] == 50


def test_what_is_said_again_is_no_change() -> None:
    states, _ = states_after(*[SegmentSealed(number, SEGMENT) for number in range(5)])
    assert states.as_json() == [[*ENTITY, {"exists": [[0], ["yes"]], "sealed": [[0], ["yes"]]}]]


def test_a_value_that_javascript_would_round_is_text() -> None:
    states, last = states_after(AppendSetup(1, SEGMENT, WRITER, 2**60))
    acknowledged = state(states, ("writer", str(WRITER), SEGMENT), last)["last event number acknowledged"]
    assert acknowledged == str(2**60)
