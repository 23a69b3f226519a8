"""Where two traces part, stream by stream and field by field."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    Hello,
    KeepAlive,
    ReadSegment,
    SealSegment,
    SegmentSealed,
    SetupAppend,
    encode,
)
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.names import transaction_name
from segstore.wire.trace import (
    CONTROLLER,
    Call,
    Difference,
    FieldDifference,
    Record,
    RecordKind,
    Translation,
    compare_frames,
    differences,
)
from segstore.wire.trace.diff import TracesTooFarApart
from tests.looped import looped
from tests.wire.trace.traces import frame, frames, record

OPEN = record(b"{}", kind=RecordKind.OPEN)
SEAL = SealSegment(1, "a/b/0", "secret")


@given(st.lists(st.builds(record, frames(), connection=st.integers(1, 3), reply=st.booleans()), max_size=8))
def test_a_trace_does_not_differ_from_itself(drawn: list[Record]) -> None:
    assert list(differences(drawn, drawn)) == compared(drawn, drawn) == []


def test_times_numbers_of_connections_and_events_are_not_compared() -> None:
    left = [OPEN, record(SEAL), record(SegmentSealed(1, "a/b/0"), reply=True)]
    right = [record(SEAL, at=5, connection=9), record(SegmentSealed(1, "a/b/0"), at=7, connection=9, reply=True)]
    assert list(differences(left, right)) == []


def test_the_first_difference_of_each_stream_is_reported_by_field() -> None:
    left = [record(SEAL), record(SEAL), record(SEAL), record(SegmentSealed(1, "a/b/0"), reply=True)]
    other = SealSegment(2, "a/b/00", "secret")
    right = [record(SEAL), record(other), record(frame(9)), record(SegmentSealed(5, "a/b/0"), reply=True)]
    requests, replies = differences(left, right)
    assert (requests.connection, requests.direction, requests.number) == (1, 0, 2)
    assert requests.fields == (
        FieldDifference("request_id", 1, 2, False),
        FieldDifference("segment", "a/b/0", "a/b/00", False),
    )
    assert (replies.direction, replies.number, replies.fields[0].field) == (1, 1, "request_id")


def test_a_stream_that_ends_early_is_a_difference() -> None:
    (found,) = differences([record(SEAL)], [record(SEAL), record(SEAL), record(SEAL)])
    assert (found.left, found.number, found.left_over, found.right_over) == (None, 2, 0, 2)
    assert found.right == record(SEAL)


def appended(*events: bytes) -> list[Record]:
    ends = [AppendBlockEnd(UUID(int=1), 0, each, 1, number, number) for number, each in enumerate(events, 1)]
    blocks = [AppendBlock(UUID(int=1), event) for event in events]
    return [*map(record, (each for pair in zip(blocks, ends, strict=True) for each in pair)), record(SEAL)]


def test_a_record_that_one_trace_has_more_is_said_instead_of_how_the_records_behind_it_differ() -> None:
    events, one = [b"order %d" % number for number in range(1, 9)], {"APPEND_BLOCK_END": 1}
    left = appended(*events)
    for others, missing, more, fields in (
        ([*events[:3], *events[4:]], (7, 0), (one, {}), 0),
        ([*events[:3], b"other", *events[3:]], (0, 7), ({}, one), 0),
        (events[:-1], (15, 0), (one, {}), 0),
        ([event.upper() for event in events[1:]], (1, 1), (one, {}), 1),  # not found by its payload, but counted
        ([events[1], events[0], *events[2:]], (1, 1), ({}, {}), 1),  # in another order
    ):
        (found,) = differences(left, appended(*others))
        assert (found.places, found.more, len(found.fields)) == (missing, more, fields)
        assert found.more_text == (
            "".join(f"{name} has one more APPEND_BLOCK_END" for name in "AB"[more[0] != one :][:1]) if any(more) else ""
        )


def test_a_number_that_is_opened_again_is_another_connection() -> None:
    (found,) = differences([OPEN, record(SEAL), OPEN, record(SEAL)], [OPEN, record(SEAL)])
    assert (found.connection, found.number, found.right) == (2, 1, None)


def in_another_order(count: int) -> list[Record]:
    return [record(frame(number), connection=connection) for connection in (1, 2) for number in range(count)]


def test_the_order_among_connections_does_not_matter_and_what_waits_is_bounded() -> None:
    left = in_another_order(50)
    right = [each for pair in zip(left[:50], left[50:], strict=True) for each in pair]
    assert list(differences(left, right)) == []
    assert list(differences(left, left, max_waiting_bytes=0)) == []
    with pytest.raises(TracesTooFarApart, match="more than 4096 bytes"):
        list(differences(left, right, max_waiting_bytes=4096))


def test_behind_a_difference_nothing_waits_and_all_is_counted() -> None:
    left = [record(frame(number)) for number in range(200)]
    right = [record(frame(number + 1)) for number in range(150)]
    (found,) = differences(left, right, max_waiting_bytes=0)
    assert (found.number, found.left_over, found.right_over) == (1, 200, 150)


def test_tokens_are_withheld() -> None:
    (found,) = compare_frames(encode(SEAL), encode(SealSegment(1, "a/b/0", "Secret")))
    assert found == FieldDifference("delegation_token", "<6 characters>", "<6 characters>", True)


def test_fields_that_one_side_lacks_are_reported() -> None:
    short = encode(ReadSegment("s", 5, 6, "", 9))[:-8]
    short = short[:4] + (len(short) - 8).to_bytes(4, "big") + short[8:]
    (found,) = compare_frames(short, encode(ReadSegment("s", 5, 6, "", 9)))
    assert found == FieldDifference("request_id", -1, 9, False)


def test_bytes_outside_of_fields_are_reported_only_if_nothing_else_differs() -> None:
    other = encode(SealSegment(2, "a/b/0", "secret"))
    behind = other[:4] + (len(other) - 8 + 2).to_bytes(4, "big") + other[8:] + b"\0\0"
    assert [frame.field for frame in compare_frames(encode(SEAL), behind)] == ["request_id"]
    assert compare_frames(other, behind)


@given(frames(), frames())
def test_frames_that_differ_have_a_field_that_does(left: bytes, right: bytes) -> None:
    assert bool(compare_frames(left, right)) == (left != right)


def run_of(seed: int, *, segment: str = "s/t/0", event: bytes = b"event", request: int = 7) -> list[Record]:
    """A writer's connection, and what it writes to a transaction; all ids come from the seed."""
    writer, transaction = UUID(int=seed), UUID(int=seed << 64)
    name = transaction_name(segment, transaction)
    requests = [
        Hello(17, 5),
        SetupAppend(request + seed, writer, name, "token"),
        AppendBlockEnd(writer, 0, str(transaction).encode() + event, 1, 1, request + seed + 1),
    ]
    replies = [
        Hello(17, 5),
        AppendSetup(request + seed, name, writer, -1),
        DataAppended(request + seed + 1, writer, 1, -1, 0),
    ]
    return [
        each
        for pair in zip(requests, replies, strict=True)
        for each in (record(pair[0], connection=seed), record(pair[1], connection=seed, reply=True))
    ]


def compared(left: list[Record], right: list[Record], **how: Any) -> list[Difference]:
    return list(differences(left, right, translation=Translation(**how)))


def test_two_runs_do_not_differ_by_their_ids() -> None:
    assert compared(run_of(1), run_of(2)) == []
    assert len(list(differences(run_of(1), run_of(2)))) == 2
    alive = record(KeepAlive(), connection=2)
    assert compared(run_of(1), [run_of(2)[0], alive, *run_of(2)[1:], alive]) == []


@looped(("how", "field"), [({"segment": "s/t/1"}, "segment"), ({"event": b"other"}, "data")])
def test_what_is_no_id_is_a_difference(how: dict[str, Any], field: str) -> None:
    found = compared(run_of(1), run_of(2, **how))
    assert [each.field for each in found[0].fields] == [field]  # and not the ids beside it
    assert compared(run_of(1), run_of(2, **how), ignore=frozenset({field})) == []


def test_an_id_that_stands_for_two_is_a_difference() -> None:
    left = [record(SetupAppend(number, UUID(int=1), "s", "")) for number in (1, 2)]
    right = [record(SetupAppend(number, UUID(int=number), "s", "")) for number in (1, 2)]
    for one, other in ((left, right), (right, left)):
        (found,) = compared(one, other)
        assert (found.number, [field.field for field in found.fields]) == (2, ["writer_id"])


def test_connections_are_matched_by_their_first_requests() -> None:
    first, second = run_of(1), run_of(2, segment="s/t/1")
    third, fourth = run_of(3), run_of(4, segment="s/t/1")
    assert compared(first + second, fourth + third) == []
    (found,) = compared(first + second, fourth + third[:-1])
    assert (found.connection, found.direction, found.number) == (1, 1, 3)
    assert found.places == (6, 0)
    silent = [record(Hello(17, 5), connection=9)]
    assert compared(silent + first, third + silent) == []
    assert [each.connection for each in compared(first + second, third)] == [2, 2]


def test_records_that_differ_are_found_in_both_traces_by_their_places() -> None:
    alive, other = record(KeepAlive(), connection=2), run_of(3, segment="s/t/1")
    left, right = run_of(1) + other, [*other, alive, *run_of(2, event=b"other")]
    (found,) = compared(left, right)
    assert found.places == (5, 12)
    assert (left[4], right[11]) == (found.left, found.right)
    left, right = both(7, "listScopes"), [alive, *both(9, "createScope", scope="a"), *both(8, "listScopes")]
    (found,) = compared(left, right)
    assert (found.places, found.right) == ((0, 2), right[1])


def test_an_id_that_is_wrong_in_one_place_is_a_difference() -> None:
    left, right = run_of(1), run_of(2)
    right[4] = record(
        AppendBlockEnd(UUID(int=3), 0, str(UUID(int=2 << 64)).encode() + b"event", 1, 1, 10), connection=2
    )
    (found,) = compared(left, right)
    assert [field.field for field in found.fields] == ["writer_id"]


def ask(number: int, rpc: str, **fields: Any) -> Record:
    message = METHODS[rpc].request(**fields).SerializeToString()
    return record(
        Call(number, rpc, message, {"agent": "x"}, f"ipv4:{number}").pack(), connection=0, kind=RecordKind.CALL
    )


def answer_to(number: int, rpc: str, status: str = "OK", details: str = "", **fields: Any) -> Record:
    message = METHODS[rpc].response(**fields).SerializeToString() if status == "OK" else b""
    call = Call(number, rpc, message, status=status, details=details)
    return record(call.pack(), connection=0, reply=True, kind=RecordKind.CALL)


def both(number: int, rpc: str, answer: dict[str, Any] | None = None, **fields: Any) -> list[Record]:
    return [ask(number, rpc, **fields), answer_to(number, rpc, **(answer or {}))]


def calls_of(transaction: int, port: int, *, reverse: bool = False) -> list[Record]:
    """A program that asks twice at once, and pings the transaction that it began."""
    identifier = m.TxnId(highBits=transaction, lowBits=7)
    at_once = [ask(1, "createScope", scope="a"), ask(2, "createScope", scope="b")]
    answers = [answer_to(1, "createScope"), answer_to(2, "createScope")]
    return [
        *(at_once[::-1] if reverse else at_once),
        *answers,
        *both(3, "getURI", {"endpoint": "127.0.0.1", "port": port}),
        *both(4, "createTransaction", {"txnId": identifier}, lease=9),
        *both(5, "pingTransaction", txnId=identifier),
        *both(6, "noteTimestampFromWriter", timestamp=1_000 + transaction, writer=f"{transaction:032x}"),
    ]


def test_calls_of_two_runs_differ_in_ids_addresses_times_and_order_only() -> None:
    left, right = calls_of(1, 4711), calls_of(2, 4712, reverse=True)
    assert list(differences(left, right, translation=Translation())) == []
    found = {name.field for difference in differences(left, right) for name in difference.fields}
    assert found == {"scope", "endpoint", "txnId", "timestamp", "writer"}
    assert list(differences(left, left)) == []


def test_an_id_of_a_call_that_stands_for_two_is_a_difference() -> None:
    right = [
        *calls_of(2, 1)[:-4],
        *both(5, "pingTransaction", txnId=m.TxnId(highBits=3, lowBits=7)),
        *calls_of(2, 1)[-2:],
    ]
    (found,) = differences(calls_of(1, 1), right, translation=Translation())
    assert (found.connection, found.number, found.direction) == (CONTROLLER, 5, 0)
    assert [field.field for field in found.fields] == ["txnId"]


def test_answers_differ_by_status_details_and_fields() -> None:
    left = [*both(1, "createScope", scope="a"), *both(2, "createScope", scope="b"), ask(3, "getURI")]
    gone = answer_to(1, "createScope", status="UNAVAILABLE", details="gone")
    right = [left[0], gone, left[2], answer_to(2, "createScope", details="x"), ask(3, "getURI"), answer_to(3, "getURI")]
    answer, missing = differences(left, right, translation=Translation())
    assert (answer.number, answer.direction, answer.left_over, answer.right_over) == (1, 1, 1, 1)
    assert [(field.field, field.left, field.right) for field in answer.fields] == [
        ("grpc-status", "OK", "UNAVAILABLE"),
        ("grpc-message", None, "gone"),
    ]
    assert (missing.number, missing.left, missing.right) == (3, None, right[-1])
    ignored = Translation(frozenset({"grpc-status", "grpc-message"}))
    assert [difference.number for difference in differences(left, right, translation=ignored)] == [3]


def test_a_call_that_asks_something_else_and_one_too_many_are_differences() -> None:
    left = both(1, "createScope", scope="a")
    right = [*both(1, "createScope", scope="b"), *both(2, "createScope", scope="c"), *both(3, "getURI")]
    asked, extra = differences(left, right, translation=Translation())
    assert [(field.field, field.left, field.right) for field in asked.fields] == [("scope", "a", "b")]
    assert (asked.left_over, asked.right_over) == (0, 1)
    assert (extra.left, extra.right, extra.number) == (None, right[-2], 3)


def test_tokens_in_calls_are_withheld() -> None:
    left, right = (both(1, "getDelegationToken", {"delegationToken": token}) for token in ("a secret", "another"))
    (found,) = differences(left, right, translation=Translation())
    assert found.fields == (FieldDifference("delegationToken", "<8 characters>", "<7 characters>", secret=True),)


def test_records_that_are_no_calls_and_answers_without_a_request_are_compared() -> None:
    left = [answer_to(9, "getURI"), record(b"no call", connection=0, kind=RecordKind.CALL)]
    assert list(differences(left, left, translation=Translation())) == []
    (found,) = differences(left, left[:1])
    assert (found.left, found.right) == (left[1], None)
    (found,) = differences(left, [left[0], left[1]._replace(data=b"nope")], translation=Translation())
    assert found.fields[0].left == b"no call".hex()


@given(st.lists(st.sampled_from([each for number in (1, 2) for each in calls_of(number, number)]), max_size=14))
def test_calls_in_any_order_do_not_differ_from_themselves(drawn: list[Record]) -> None:
    assert list(differences(drawn, drawn)) == []
    assert list(differences(drawn, drawn, translation=Translation())) == []


def test_calls_that_wait_for_the_other_trace_are_bounded() -> None:
    many = [each for number in range(40) for each in both(number, "createScope", scope=str(number))]
    assert list(differences(many, many, max_waiting_bytes=2_000)) == []
    with pytest.raises(TracesTooFarApart):
        list(differences(many, [], max_waiting_bytes=2_000))
