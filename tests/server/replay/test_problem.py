"""What a request that a trace does not answer resembles: the nearest requests, and the fields that differ, as text."""

import json
from typing import Any
from uuid import UUID

from segstore.server.replay.matching import Mode, Replay
from segstore.server.replay.problem import problem
from segstore.wire import (
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    DeleteSegment,
    GetStreamSegmentInfo,
    SegmentCreated,
    SetupAppend,
)
from segstore.wire.blocks import Append
from segstore.wire.protocol import frames_of
from segstore.wire.trace import Direction, Record, RecordKind
from tests.server.support import HELLO, SEGMENT, create, event, set_up

ORDERS = "shop/orders/0.#epoch.0"
WRITER, OTHER_WRITER = UUID(int=7), UUID(int=8)


def appended(last: int, *events: bytes, writer: UUID = WRITER) -> Append:
    return Append(ORDERS, writer, last, len(events), b"".join(map(event, events)), None, 9)


def order(number: int, **values: Any) -> bytes:
    return json.dumps({"id": number, "city": "Rome", "lines": [{"tea": number}], **values}).encode()


def records(*dialogue: Command | Append) -> list[Record]:
    """A trace with one connection: requests and replies, in order."""
    found = []
    for at, each in enumerate(dialogue):
        reply = not isinstance(each, Append) and each.is_reply and each is not HELLO
        data = frames_of(each)
        size = 8 + int.from_bytes(data[4:8], "big")
        frames = filter(None, (data[:size], data[size:]))
        found += [Record(at, 1, Direction(int(reply)), RecordKind.FRAME, frame) for frame in frames]
    return found


def acknowledged(*items: Append) -> list[Command | Append]:
    dialogue: list[Command | Append] = [HELLO, create(ORDERS), SegmentCreated(1, ORDERS)]
    dialogue += [SetupAppend(2, WRITER, ORDERS, ""), AppendSetup(2, ORDERS, WRITER, -1)]
    before = 0
    for item in items:
        ack = DataAppended(
            writer_id=WRITER,
            event_number=item.event_number,
            previous_event_number=before,
            request_id=9,
            current_segment_write_offset=item.event_number * 10,
        )
        before = item.event_number
        dialogue += [item, ack]
    return dialogue


def orders(mode: Mode = "match") -> Replay:
    return Replay(records(*acknowledged(*(appended(each, order(each)) for each in range(1, 6)))), mode)


def said(replay: Replay, item: Command | Append) -> list[str]:
    return [str(each) for each in replay.near(item)]


def test_an_event_that_differs_is_shown_by_the_path_in_its_document() -> None:
    (line,) = said(orders(), appended(2, order(2, city="Oslo", paid=True)))
    differences = 'data[0].city: "Oslo" here, "Rome" in the trace; data[0].paid: only here (true)'
    assert line == f"near: request 5 of the trace (connection 1): {differences}"


def test_events_are_compared_by_number_however_they_are_batched() -> None:
    item = appended(4, order(2), order(3, lines=[{"tea": 9}]), order(4, lines=[]))
    assert said(orders(), item) == [
        "near: request 6 of the trace (connection 1): data[1].lines[0].tea: 9 here, 3 in the trace",
        "near: request 7 of the trace (connection 1): data[2].lines[0]: only in the trace (an object of 1)",
    ]


def test_what_was_answered_before_is_said_to_be_so_also_in_another_batch() -> None:
    replay = orders()
    for item in (
        SetupAppend(7, OTHER_WRITER, ORDERS, ""),
        *(appended(n, order(n), writer=OTHER_WRITER) for n in (1, 2)),
    ):
        assert replay.answer(item, replay.connection()) is not None
    again = appended(2, order(1), order(2), writer=OTHER_WRITER)
    for item in (SetupAppend(7, OTHER_WRITER, ORDERS, ""), again):
        (miss,) = replay.near(item)
        assert (miss.used, miss.fields) == (True, ())
        found = problem(3, item, near=(miss,))
        assert found.sentence == f"connection 3: {found.request} was answered before"
        assert str(found).endswith(f"\n  same: request {miss.number} of the trace (connection 1), answered before")
    (late,) = replay.near(appended(3, order(8), writer=OTHER_WRITER))
    assert (late.number, late.used) == (6, False)


def test_the_nearest_requests_come_first_and_those_that_are_less_alike_are_left_out() -> None:
    names = [f"shop/orders/{number}.#epoch.0" for number in range(5)]
    replay = Replay(
        records(HELLO, *(CreateSegment(1, name, 0, 7, "", 0) for name in names), DeleteSegment(1, SEGMENT, "")), "match"
    )
    found = replay.near(CreateSegment(1, "shop/orders/3.#epoch.1", 0, 7, "", 0))
    assert [(each.number, each.connection) for each in found] == [(5, 1), (2, 1), (3, 1)]
    assert found[0].text == "segment: 'shop/orders/3.#epoch.1' here, 'shop/orders/3.#epoch.0' in the trace"
    assert replay.near(GetStreamSegmentInfo(1, SEGMENT, "")) == ()


def test_tokens_are_neither_compared_nor_shown() -> None:
    replay = Replay(records(HELLO, CreateSegment(1, ORDERS, 0, 7, "its-token", 0)), "match")
    found = problem(1, item := CreateSegment(1, ORDERS, 1, 7, "my-token", 0), near=replay.near(item))
    assert "token" not in str(found)
    assert "scale_type" in str(found)


def test_in_strict_mode_the_place_of_the_request_is_shown() -> None:
    replay = orders("strict")
    expected = replay.connection()
    item = SetupAppend(2, WRITER, ORDERS, "")
    found = problem(1, item, expected[0], strict=True, near=replay.near(item))
    assert str(found).endswith("\n  same: request 3 of the trace (connection 1)")
    assert str(problem(2, item, near=replay.near(item))).startswith("connection 2: SETUP_APPEND comes elsewhere")


def test_a_writer_that_is_paired_with_another_is_the_difference() -> None:
    replay = Replay(records(HELLO, set_up(ORDERS)), "match")
    assert replay.answer(set_up(ORDERS), replay.connection()) is not None
    (miss,) = replay.near(set_up(ORDERS, OTHER_WRITER))
    assert [field.field for field in miss.fields] == ["writer_id"]


def test_what_was_not_requested_is_listed_with_place_and_fields() -> None:
    replay = orders()
    assert replay.missed(1) == ["request 1 (connection 1): HELLO high_version=17 low_version=5"]
    assert replay.missed(9)[3] == (
        f"request 4 (connection 1): APPEND_BLOCK_END segment={ORDERS} event_number=1 event_count=1 "
        """data='{"id": 1, "city": "Rome", "lines": [{"tea": 1}]}'"""
    )
