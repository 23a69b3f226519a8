"""Controller calls in traces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.controller_api import METHODS, messages
from segstore.wire.trace import (
    CONTROLLER,
    Call,
    Direction,
    Exchanges,
    FixtureError,
    FixtureHeader,
    Metadata,
    Record,
    RecordKind,
    from_line,
    parse_filter,
    redacted_call,
    to_line,
)
from tests.looped import looped

STREAM = messages.StreamInfo(scope="s", stream="t")
CREATE = messages.StreamConfig(streamInfo=STREAM).SerializeToString()
EXISTS = messages.CreateStreamStatus(status=messages.CreateStreamStatus.STREAM_EXISTS).SerializeToString()
HEADER = FixtureHeader(Metadata(), 100)


def record(call: Call, direction: Direction = Direction.REQUEST, at_ns: int = 100) -> Record:
    return Record(at_ns, CONTROLLER, direction, RecordKind.CALL, call.pack())


texts = st.text(max_size=8)
calls = st.builds(
    Call,
    st.integers(),
    st.sampled_from(sorted(METHODS)) | texts,
    st.binary(max_size=60),
    st.dictionaries(texts, texts, max_size=3),
    texts,
    st.sampled_from(("", "OK", "UNAVAILABLE")) | texts,
    texts,
)


@given(calls)
def test_what_is_packed_is_unpacked(call: Call) -> None:
    assert Call.unpack(call.pack()) == call


@given(calls, st.sampled_from(Direction))
def test_a_line_of_a_fixture_restores_a_call(call: Call, direction: Direction) -> None:
    kept = record(call, direction)
    assert from_line(to_line(kept, 100), HEADER, 2) == kept


@looped(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"call":"1","rpc":"x","message":""}',
        b'{"call":1,"rpc":"x","message":"*"}',
        b'{"call":1,"rpc":"x","message":"","metadata":{"a":1}}',
        b'{"call":1,"rpc":"x","message":"","other":1}',
    ],
)
def test_other_data_is_no_call(data: bytes) -> None:
    assert Call.unpack(data) is None
    seen = Exchanges().see(Record(0, CONTROLLER, Direction.REQUEST, RecordKind.CALL, data))
    assert seen.malformed
    assert seen.call is None
    kept = Record(100, CONTROLLER, Direction.REQUEST, RecordKind.CALL, data)
    assert from_line(to_line(kept, 100), HEADER, 2) == kept


@looped(("number", "direction", "status"), [(0, 0, "OK"), (0, 1, "OKAY"), (0, 1, ""), (7, 0, ""), (7, 1, "OK")])
def test_a_call_that_no_fixture_may_hold_is_kept_by_its_bytes(number: int, direction: int, status: str) -> None:
    data = Call(1, "createScope", status=status).pack()
    kept = Record(100, number, Direction(direction), RecordKind.CALL, data)
    line = to_line(kept, 100)
    assert json.loads(line)["rpc"] == data.hex()
    assert from_line(line, HEADER, 2) == kept


@given(st.binary(max_size=200), st.sampled_from(sorted(METHODS)), st.sampled_from(("", "OK")))
def test_any_message_is_shown_and_redacted_without_an_error(message: bytes, rpc: str, status: str) -> None:
    call = Call(1, rpc, message, status=status)
    assert str(call).startswith(rpc)
    assert isinstance(call.streams, tuple)
    assert Call.unpack(redacted_call(call).pack()) == redacted_call(call)


def test_a_summary_shortens_long_texts_and_lists() -> None:
    stream = messages.StreamConfig(tags=messages.Tags(tag=["x" * 100, *"bcdef"]))
    call = Call(1, "createStream", stream.SerializeToString())
    assert str(call) == f'createStream tags={{"tag": ["{"x" * 96}… (100 characters)", "b", "c", "d", "… 6 in all"]}}'
    assert call.summary(full=True) == f'createStream tags={{"tag": ["{"x" * 100}", "b", "c", "d", "e", "f"]}}'


def test_a_message_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.wire.trace.calls.MOST_MESSAGE_BYTES", 3)
    found = Call.unpack(Call(1, "createScope", b"four").pack())
    assert found == Call(1, "createScope", b"", omitted=4)
    assert from_line(to_line(record(found), 100), HEADER, 2) == record(found)


def test_tokens_and_credentials_become_asterisks() -> None:
    answer = messages.DelegationToken(delegationToken="secret").SerializeToString()
    call = redacted_call(Call(1, "getDelegationToken", answer, {"authorization": "Basic x", "a": "b"}, status="OK"))
    assert b"secret" not in call.message
    assert call.metadata == {"authorization": "*******", "a": "b"}
    assert call.fields == {"delegationToken": "******"}
    nested = messages.SegmentRanges(
        segmentRanges=[messages.SegmentRange(maxKey=1.0)], delegationToken="secret"
    ).SerializeToString()
    assert b"secret" not in redacted_call(Call(1, "getCurrentSegments", nested, status="OK")).message


def test_a_message_that_does_not_decode_is_not_kept_in_a_redacted_trace() -> None:
    call = redacted_call(Call(1, "getDelegationToken", b"\xff\xffsecret", status="OK"))
    assert (call.message, call.omitted) == (b"", 8)


@looped(
    ("answer", "outcome", "failed"),
    [
        (Call(1, "createStream", CREATE), "", False),
        (Call(1, "createStream", b"", status="OK"), "OK", False),
        (Call(1, "createStream", EXISTS, status="OK"), "STREAM_EXISTS", True),
        (Call(1, "createStream", b"", status="UNAVAILABLE"), "UNAVAILABLE", True),
        (Call(1, "scale", b"", status="OK"), "STARTED", False),
        (Call(1, "checkScale", b"", status="OK"), "IN_PROGRESS", False),
        (Call(1, "checkTransactionState", b"\x08\x03", status="OK"), "COMMITTED", False),
        (Call(1, "checkTransactionState", b"\x08\x05", status="OK"), "ABORTED", False),
        (Call(1, "checkTransactionState", b"", status="OK"), "UNKNOWN", True),
        (Call(1, "checkTransactionState", b"", status="DEADLINE_EXCEEDED"), "DEADLINE_EXCEEDED", True),
        (Call(1, "pingTransaction", b"", status="OK"), "OK", False),
        (Call(1, "pingTransaction", b"\x08\x05", status="OK"), "COMMITTED", False),
        (Call(1, "pingTransaction", b"\x08\x06", status="OK"), "ABORTED", False),
        (Call(1, "pingTransaction", b"", status="ABORTED"), "ABORTED", True),
        (Call(1, "pingTransaction", b"\x08\x01", status="OK"), "LEASE_TOO_LARGE", True),
        (Call(1, "pingTransaction", b"\x08\x07", status="OK"), "UNKNOWN", True),
    ],
)
def test_a_call_in_progress_and_the_state_of_a_transaction_are_no_failures(
    answer: Call, outcome: str, failed: bool
) -> None:
    assert (answer.outcome, answer.failed) == (outcome, failed)


@looped(
    ("text", "matches"),
    [
        ("rpc = createstream and status = STREAM_EXISTS", [True, True]),
        ("rpc = createStream and status != OK", [True, True]),
        ("rpc ~ create*", [True, True]),
        ("status = stream_exists and direction = reply", [False, True]),
        ("stream = s/t", [True, False]),
        ("scope = s and kind = call", [True, False]),
        ("failure", [True, True]),
        ("latency = 7ns", [True, True]),
        ("type = READ_SEGMENT", [False, False]),
        ("kind = frame", [False, False]),
    ],
)
def test_filters_select_calls(text: str, matches: list[bool]) -> None:
    exchanges, chosen = Exchanges(), parse_filter(text)
    pair = record(Call(3, "createStream", CREATE)), record(Call(3, "createStream", EXISTS, status="OK"), at_ns=107)
    request, answer = (exchanges.see(each._replace(direction=way)) for each, way in zip(pair, Direction, strict=True))
    assert [chosen(request), chosen(answer)] == matches
    assert answer.answers == (request,)


def test_calls_without_a_counterpart_are_counted() -> None:
    exchanges = Exchanges()
    assert exchanges.see(record(Call(1, "createStream", CREATE))).awaits_reply
    assert exchanges.see(record(Call(2, "getURI", b"", status="OK"), Direction.REPLY)).unasked


@looped(
    ("line", "field"),
    [
        ('{"at_ns": 0, "conn": 0, "dir": "request", "rpc": "nope", "call": 1, "fields": {"a": 1}}', "fields"),
        ('{"at_ns": 0, "conn": 0, "dir": "request", "rpc": "getURI", "call": 1, "fields": {"scop": 1}}', "fields"),
        ('{"at_ns": 0, "conn": 0, "dir": "request", "rpc": "getURI", "call": 1, "message": "0"}', "message"),
        ('{"at_ns": 0, "conn": 0, "dir": "request", "rpc": "getURI", "call": "1"}', "call"),
        ('{"at_ns": 0, "conn": 0, "dir": "request", "rpc": "getURI", "call": 1, "metadata": {"a": 1}}', "metadata"),
        ('{"at_ns": 0, "conn": 0, "dir": "request", "hex": "00", "call": 1}', "call"),
    ],
)
def test_an_invalid_line_names_the_key(line: str, field: str) -> None:
    with pytest.raises(FixtureError) as caught:
        from_line(line, HEADER, 5)
    assert (caught.value.line, caught.value.field) == (5, field)
