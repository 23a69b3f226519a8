"""Controller calls of a trace: which one answers a call of a client, and what the client is answered."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from segstore.server.replay.calls import CallReplay, trailing_of_answer
from segstore.server.replay.problem import call_problem
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, Direction, Record, RecordKind
from tests.looped import looped
from tests.server.controller.calls import stream_config

STORE, HERE = Endpoint("127.0.0.1", 7), Endpoint("127.0.0.1", 8)
STREAM = m.StreamInfo(scope="a", stream="s")
FIRST, SECOND = TXNS = [UUID(int=number << 64 | 5) for number in (1, 2)]


def ask(rpc: str, request: Any = None, number: int = 1) -> Call:
    return Call(number, rpc, (METHODS[rpc].request() if request is None else request).SerializeToString())


def reply(rpc: str, answer: Any = None, number: int = 1, status: str = "OK", **more: Any) -> Call:
    data = b"" if status != "OK" else (METHODS[rpc].response() if answer is None else answer).SerializeToString()
    return Call(number, rpc, data, status=status, **more)


def record(call: Call | bytes, *, at: int = 0) -> Record:
    """The record of a call; one with a status is an answer."""
    data = call if isinstance(call, bytes) else call.pack()
    direction = Direction.REPLY if isinstance(call, Call) and call.status else Direction.REQUEST
    return Record(at, 0, direction, RecordKind.CALL, data)


def trace(*calls: Call | bytes) -> list[Record]:
    return [record(call, at=number * 1000) for number, call in enumerate(calls)]


def one_by_one(*pairs: tuple[Call, Call]) -> list[Record]:
    """Calls, each answered before the next is made."""
    numbered = enumerate(pairs, 1)
    return trace(*(replace(each, number=number) for number, pair in numbered for each in pair))


def scope(name: str) -> m.ScopeInfo:
    return m.ScopeInfo(scope=name)


def txn(identifier: UUID) -> m.TxnId:
    return m.TxnId(highBits=identifier.int >> 64, lowBits=identifier.int & (1 << 64) - 1)


TWO = one_by_one(
    (ask("createScope", scope("a")), reply("createScope")), (ask("createScope", scope("b")), reply("createScope"))
)


def test_calls_come_in_the_order_of_the_trace_or_in_any_by_mode() -> None:
    second = ask("createScope", scope("b"))
    assert CallReplay(TWO).answer(second) is None
    replay = CallReplay(TWO, "match")
    for name, number in (("b", 2), ("a", 1)):
        found = replay.answer(ask("createScope", scope(name)))
        assert found.number == number
    assert replay.answer(second) is None
    assert not replay.unused()


def test_calls_that_were_in_flight_together_come_in_any_order() -> None:
    first, second, third = (ask("createScope", scope(name), number) for number, name in enumerate("abc", 1))
    answers = [reply("createScope", number=number) for number in (1, 2, 3)]
    records = trace(first, second, answers[1], answers[0], third, answers[2])
    replay = CallReplay(records)
    assert replay.answer(third) is None, "it was made after the answers to the others"
    numbers = [step.number for each in (second, first, third) if (step := replay.answer(each))]
    assert numbers == [2, 1, 3]


def test_equal_calls_are_answered_in_the_order_of_the_trace() -> None:
    state = m.TxnState
    request = m.TxnRequest(streamInfo=STREAM, txnId=txn(FIRST))
    states = [state.COMMITTING, state.COMMITTED]
    records = one_by_one(
        *((ask("checkTransactionState", request), reply("checkTransactionState", state(state=each))) for each in states)
    )
    replay = CallReplay(records, "match")
    steps = [replay.answer(ask("checkTransactionState", request)) for _ in range(3)]
    found = [state.FromString(replay.message(step, STORE, HERE)).state for step in steps if step is not None]
    assert found == states


@looped("mode", ["strict", "match"])
def test_what_clients_repeat_is_answered_again_in_match_mode(mode: Any) -> None:
    segment = m.SegmentId(streamInfo=STREAM)
    records = one_by_one((ask("getURI", segment), reply("getURI", m.NodeUri(endpoint="there", port=1))))
    replay = CallReplay(records, mode)
    assert replay.answer(ask("getURI", segment)) is not None
    again = replay.answer(ask("getURI", segment))
    assert (again is not None) is (mode == "match")


@looped("mode", ["strict", "match"])
def test_pings_come_by_the_clock_and_those_that_the_trace_lacks_succeed(mode: Any) -> None:
    ping = m.PingTxnRequest(streamInfo=STREAM, txnId=txn(FIRST), lease=9)
    aborted = m.PingTxnStatus(status=m.PingTxnStatus.ABORTED)
    replay = CallReplay([*TWO, *one_by_one((ask("pingTransaction", ping), reply("pingTransaction", aborted)))], mode)
    for _ in range(2):
        step = replay.answer(ask("pingTransaction", ping))
        assert step is not None
        assert replay.message(step, STORE, HERE) == aborted.SerializeToString()
    other = replay.answer(ask("pingTransaction", m.PingTxnRequest(streamInfo=STREAM, txnId=txn(SECOND))))
    assert (other.number, replay.message(other, STORE, HERE)) == (0, b"")
    assert replay.answer(Call(1, "pingTransaction", b"\xff")) is None
    assert replay.unused() == {"createScope": 2}


def test_where_calls_are_forwarded_so_are_pings_of_transactions_that_the_trace_lacks() -> None:
    begun = reply("createTransaction", m.CreateTxnResponse(txnId=txn(FIRST)))
    replay = CallReplay(one_by_one((ask("createTransaction"), begun)), "match", forwards=True)
    ours, other = (ask("pingTransaction", m.PingTxnRequest(streamInfo=STREAM, txnId=txn(each))) for each in TXNS)
    assert replay.answer(ours) is not None
    assert replay.answer(other) is None


@looped(
    ("answer", "refusal"),
    [
        (reply("createStream", status="UNAVAILABLE"), "UNAVAILABLE"),
        (reply("createStream", status="ABORTED", details="no\x1b"), "ABORTED: no\\u001b"),
        (reply("createStream", m.CreateStreamStatus(status="SCOPE_NOT_FOUND")), "SCOPE_NOT_FOUND"),
        (reply("createStream", m.CreateStreamStatus(status="STREAM_EXISTS")), ""),
        (reply("createStream"), ""),
    ],
)
def test_a_forwarded_call_is_refused_by_status_or_for_lack_of_what_the_trace_had(answer: Call, refusal: str) -> None:
    replay = CallReplay(TWO, "match")
    assert replay.answer(ask("createScope", scope("a"))) is not None
    assert replay.refusal(ask("createStream", m.StreamConfig(streamInfo=STREAM)), answer) == refusal
    # The trace has not answered a call about this scope, so the client made no assumption.
    elsewhere = ask("createStream", m.StreamConfig(streamInfo=m.StreamInfo(scope="b", stream="s")))
    assert replay.refusal(elsewhere, answer) == ("" if refusal == "SCOPE_NOT_FOUND" else refusal)


def test_times_and_ids_of_the_client_are_translated_and_stay_paired() -> None:
    theirs, ours = "0f0e0d0c-0b0a-4908-8706-050403020100", "ffffffff-0b0a-4908-8706-050403020100"

    def group(identifier: str, name: str) -> m.ReaderGroupConfiguration:
        return m.ReaderGroupConfiguration(scope="a", readerGroupName=name, readerGroupId=identifier, generation=3)

    made = m.CreateReaderGroupResponse(config=group(theirs, "g"))
    records = one_by_one(
        (ask("createReaderGroup", group(theirs, "g")), reply("createReaderGroup", made)),
        (ask("updateReaderGroup", group(theirs, "g")), reply("updateReaderGroup")),
        (
            ask("noteTimestampFromWriter", m.TimestampFromWriter(writer=theirs, timestamp=5)),
            reply("noteTimestampFromWriter"),
        ),
    )
    replay = CallReplay(records, "match")
    step = replay.answer(ask("createReaderGroup", group(ours, "g")))
    assert step is not None
    assert m.CreateReaderGroupResponse.FromString(replay.message(step, STORE, HERE)).config == group(ours, "g")
    assert replay.answer(ask("updateReaderGroup", group(theirs, "g"))) is None, "it stands for the client's id"
    assert replay.answer(ask("updateReaderGroup", group(ours, "g"))) is not None
    for time, answered in ((0, False), (-7, False), (1_700_000_000_000, True)):
        note = m.TimestampFromWriter(writer=ours, timestamp=time)
        assert (replay.answer(ask("noteTimestampFromWriter", note)) is not None) is answered


def test_answers_lead_to_the_replay_and_have_no_tokens() -> None:
    uri = m.NodeUri(endpoint="10.0.0.1", port=1)
    ranges = m.SegmentRanges(delegationToken="***", segmentRanges=[m.SegmentRange(maxKey=1)])
    records = one_by_one(
        (ask("getURI"), reply("getURI", uri)),
        (ask("getControllerServerList"), reply("getControllerServerList", m.ServerResponse(nodeURI=[uri, uri]))),
        (ask("getCurrentSegments", STREAM), reply("getCurrentSegments", ranges)),
        (ask("getURI"), reply("getURI")),
    )
    replay = CallReplay(records)
    answers = []
    for each in replay.steps:
        step = replay.answer(each.request)
        assert step is each
        answers.append(replay.message(each, STORE, HERE))
    assert m.NodeUri.FromString(answers[0]) == m.NodeUri(endpoint=STORE.host, port=STORE.port)
    assert m.ServerResponse.FromString(answers[1]).nodeURI == [m.NodeUri(endpoint=HERE.host, port=HERE.port)]
    assert m.SegmentRanges.FromString(answers[2]) == m.SegmentRanges(segmentRanges=[m.SegmentRange(maxKey=1)])
    assert answers[3] == b"", "an answer without an address stays one"


def said(replay: CallReplay, call: Call) -> str:
    assert replay.answer(call) is None
    return str(call_problem(call, replay, compare=True))


def test_a_problem_names_the_nearest_calls_and_the_fields_that_differ() -> None:
    answer = reply("createStream")
    replay = CallReplay(
        one_by_one(*((ask("createStream", stream_config(name, 2)), answer) for name in ("orders", "zebra"))), "match"
    )
    assert said(replay, ask("createStream", stream_config("orderz", 2))).splitlines() == [
        "controller: createStream is not in the trace",
        "  near: call 1 of the trace: streamInfo.stream: 'orderz' here, 'orders' in the trace",
    ]
    assert said(replay, ask("deleteScope", scope("a"))) == "controller: deleteScope is not in the trace"
    replay.answer(ask("createStream", stream_config("orders", 2)))
    assert said(replay, ask("createStream", stream_config("orders", 2))).splitlines() == [
        "controller: createStream was answered before",
        "  same: call 1 of the trace, answered before",
    ]


def test_in_strict_mode_a_problem_names_the_expected_call() -> None:
    hint = "--mode match (mode='match') takes calls in any order"
    replay = CallReplay(TWO)
    assert said(replay, ask("deleteScope", scope("a"))) == (
        f"controller: deleteScope came where createScope comes in the trace; {hint}"
    )
    assert said(replay, ask("createScope", scope("b"))).splitlines() == [
        f"controller: createScope differs from the trace: scope: 'b' here, 'a' in the trace; {hint}",
        "  same: call 2 of the trace",
    ]
    assert list(replay.missed()) == ['call 1: createScope scope="a"', 'call 2: createScope scope="b"']


MADE = ask("createScope", scope("a"))


@looped(
    ("records", "why", "calls"),
    [
        (trace(b"{}"), "record 1: 2 bytes that are not a call", 0),
        (trace(Call(1, "no\x1bMethod")), "record 1: the controller has no method 'no\\\\u001bMethod'", 0),
        (trace(reply("createScope"), MADE), "record 1: an answer to createScope, call 1, which was not made before", 1),
        (trace(MADE, reply("deleteScope")), "record 2: call 1 is createScope, and its answer is one to deleteScope", 0),
        (
            trace(MADE, reply("createScope", status="FINE")),
            "record 2: the answer to createScope has the status 'FINE', which gRPC does not have",
            0,
        ),
    ],
)
def test_what_is_no_call_is_left_out_with_its_place_and_the_reason(records: list[Record], why: str, calls: int) -> None:
    replay = CallReplay(records, "match")
    assert [str(each) for each in replay.left_out] == [why]
    assert len(replay.steps) == calls


@given(
    st.lists(
        st.builds(
            Call,
            st.integers(0, 2),
            st.sampled_from(["createScope", "getURI", "pingTransaction", "x"]),
            st.binary(max_size=12) | st.just(b"\n\x01a"),
            status=st.sampled_from(["", "OK", "UNAVAILABLE", "x"]),
        ).map(record),
        max_size=12,
    ),
    st.sampled_from(["strict", "match"]),
)
def test_every_answer_is_part_of_a_call_or_left_out_and_each_call_can_be_made(records: list[Record], mode: Any) -> None:
    replay = CallReplay(records, mode)
    answers = {place for place, each in enumerate(records, 1) if each.direction is Direction.REPLY}
    left_out = {each.number for each in replay.left_out}
    assert answers <= left_out | {each.answered for each in replay.steps}
    assert len(left_out) == len(replay.left_out)
    for step in replay.steps:
        assert replay.answer(step.request) is not None
    assert not replay.unused()


def test_metadata_that_grpc_does_not_take_is_left_out() -> None:
    given = {"a": "1", "b-bin": "00ff", "c-bin": "0", "grpc-x": "1", ":path": "1", "D": "1", "é": "1", "f": "\x00"}
    answer = reply("createScope", metadata=given)
    assert trailing_of_answer(answer) == (("a", "1"), ("b-bin", b"\x00\xff"))
